"""The router's page as served: its own files and some of the server's, under the same policy, and nothing else."""

import asyncio
import re
from importlib.resources import files

import pytest
from tests.router.support.operated import operated

from eyas.gateway.page.files import CHAT, INDEX
from eyas.router.page.files import OWN

FOLDER = files("eyas.router.page") / "static"
SERVERS = files("eyas.gateway.page") / "static"


def test_the_list_is_what_is_there():
    assert {path.name for path in FOLDER.iterdir()} == set(OWN)
    assert not set(OWN[1:]) & {path.name for path in SERVERS.iterdir()}, "a name would hide one of the server's"


def test_each_is_served_under_a_policy_and_nothing_else_is():
    async def main():
        async with operated() as one:
            for name in (*OWN, *CHAT):
                answer = await one.http.get("/" if name == INDEX else f"/page/{name}")
                folder = FOLDER if name in OWN else SERVERS
                assert answer.status_code == 200 and answer.content == (folder / name).read_bytes()
                policy = answer.headers["content-security-policy"]
                assert policy.startswith("default-src 'self';") and "unsafe" not in policy
            for name in ("", "live/live.js", "app.js", "../files.py", "%2e%2e/files.py"):
                assert (await one.http.get(f"/page/{name}")).status_code == 404

    asyncio.run(main())


@pytest.mark.parametrize("name", OWN)
def test_no_file_asks_for_anything_from_elsewhere_or_has_code_inline(name):
    text = (FOLDER / name).read_text(encoding="utf-8")
    assert not re.search(r"https?://", text)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text)
    assert "sessionStorage" not in text, "the key is in memory only"
    if name == INDEX:
        assert not re.search(r"<style|\sstyle=|\son\w+=|<script>", text)
