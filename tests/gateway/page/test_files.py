"""The page's files as served: an exact list, revalidated by ETag, under a policy that lets nothing else in."""

import re
from importlib.resources import files
from pathlib import Path, PurePosixPath

import httpx
import pytest

from eyas.gateway.page.files import FILES, INDEX, MEDIA_TYPES, VENDORED

FOLDER = files("eyas.gateway.page") / "static"


def test_the_list_is_what_is_there():
    folder = Path(str(FOLDER))
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    assert set(found) == set(FILES)
    assert set(VENDORED) == {name for name in found if name.startswith("vendor/")}
    assert sum(path.stat().st_size for name, path in found.items() if name not in VENDORED) <= 160_000


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_served_once_and_then_asked_about(server, name):
    url = f"{server.url}/" if name == INDEX else f"{server.url}/page/{name}"
    answer = httpx.get(url)
    assert answer.status_code == 200 and answer.content == (FOLDER / name).read_bytes()
    assert answer.headers["content-type"].startswith(MEDIA_TYPES[PurePosixPath(name).suffix])
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'self';") and "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    again = httpx.get(url, headers={"if-none-match": answer.headers["etag"]})
    assert again.status_code == 304 and not again.content
    assert httpx.get(url, headers={"if-none-match": '"another"'}).status_code == 200


@pytest.mark.parametrize("name", ["", "nothing.js", "../app.py", "..%2fapp.py", "%2e%2e/app.py", "chat/b.js", "chat"])
def test_nothing_else_is(server, name):
    assert httpx.get(f"{server.url}/page/{name}").status_code == 404


@pytest.mark.parametrize("name", sorted(set(FILES) - set(VENDORED)))
def test_no_file_asks_for_anything_from_elsewhere_or_has_code_inline(name):
    text = (FOLDER / name).read_text(encoding="utf-8")
    assert set(re.findall(r"https?://[\w.]+", text)) <= {"http://www.w3.org"}  # the names of SVG
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text)
    if name == INDEX:
        assert not re.search(r"<style|\sstyle=|\son\w+=|<script>", text)
