"""The documents agree with the code: generated pages are fresh, paths and links lead somewhere, the way in is short."""

import re
from pathlib import Path

import pytest

from tools import structure

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(path for top in ("docs", "tests", "tools", "src") for path in (ROOT / top).rglob("*.md"))]
)
MAPS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "docs" / "structure.md"]
MAX_LINES = {ROOT / "README.md": 140, ROOT / "docs" / "structure.md": 150}
SUFFIXES = "py|pyi|md|yaml|toml|txt|sh|cu|cuh|jsonl|svg|png|ipynb"

FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
SPAN = re.compile(r"`([^`\n]+)`")
FILE_NAME = re.compile(rf"[a-z_][\w/]*\.(?:{SUFFIXES})\b")
PATH = re.compile(rf"\.?[A-Za-z_][\w.-]*(?:/[\w.-]+)*(?:/|\.(?:{SUFFIXES}))|[a-z_]+(?:/[\w.-]+)+")
LINK = re.compile(r"\]\(([^)\s]+)\)")
NAMES = {path.name for top in ("src", "tests", "tools", "docs") for path in (ROOT / top).rglob("*") if path.is_file()}


def name(path):
    return str(path.relative_to(ROOT))


def paths_of(text):
    """What looks like a path: whole code spans; in fenced text files of ours, and all files of a walk with arrows."""
    yield from (span for span in SPAN.findall(FENCED.sub("", text)) if PATH.fullmatch(span))
    for block in FENCED.findall(text):
        is_walk = "-->" in block
        yield from (
            path for path in FILE_NAME.findall(block) if is_walk or path.startswith(("src/", "tests/", "tools/"))
        )


def is_there(path):
    """A path from the root or from the package; a bare file name, which the text before it places, in any folder."""
    return (ROOT / path).exists() or (ROOT / "src" / "eyas" / path).exists() or path in NAMES


def broken_links(text, folder):
    text = SPAN.sub("", FENCED.sub("", text))
    targets = [target.partition("#")[0] for target in LINK.findall(text) if "://" not in target]
    return [target for target in targets if not (folder / target).exists()]


def test_generated_pages_are_fresh():
    """The table of packages and rooms, and the list of files."""
    for page, text in structure.pages().items():
        assert page.read_text(encoding="utf-8") == text, f"{page.name}: run python tools/structure.py"


@pytest.mark.parametrize("page", MAPS, ids=name)
def test_every_path_exists(page):
    found = list(paths_of(page.read_text(encoding="utf-8")))
    assert [path for path in found if not is_there(path)] == []
    assert found or page.name == "README.md"  # which links instead


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_leads_somewhere(page):
    assert broken_links(page.read_text(encoding="utf-8"), page.parent) == []


@pytest.mark.parametrize("page", MAX_LINES, ids=name)
def test_the_way_in_is_short(page):
    assert len(page.read_text(encoding="utf-8").splitlines()) <= MAX_LINES[page]


def test_every_helper_of_tests_is_listed():
    tests = ROOT / "tests"
    listed = re.findall(r"^\| `([\w/]+\.py)` \| \S", (tests / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    helpers = {path.relative_to(tests).as_posix() for path in tests.rglob("support/*.py") if path.name != "__init__.py"}
    assert helpers
    assert sorted(listed) == sorted(helpers)


def test_the_log_lists_its_pages():
    log = ROOT / "docs" / "log"
    listed = re.findall(
        r"^\| \[([\w-]+\.md)\]\(\1\) \| \S", (log / "README.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert sorted(listed) == sorted(path.name for path in log.glob("*.md") if path.name != "README.md")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("`engine/nothing.py` and `docs/nowhere/`", ["engine/nothing.py", "docs/nowhere/"]),
        ("`no_such_file.py`, `NOTHING.md`", ["no_such_file.py", "NOTHING.md"]),
        ("`src/eyas/nothing`", ["src/eyas/nothing"]),
        ("```\n--engine/nothing.py--->\n-->\n```", ["engine/nothing.py"]),
        ("```\nmake test ARGS=tests/nothing.py OUT=out.txt\n```", ["tests/nothing.py"]),
        ("`engine/step/core.py`, `core.py`, `docs/`, `kernels/cuda/`, `.ci/run`, `Makefile`", []),
        ("`make test`, `/v1/models`, `--draft-tokens`, `F.linear`, `POST /v1/x`, `tokens_SN`, `eyas up`", []),
    ],
)
def test_a_wrong_path_is_found(text, expected):
    assert [path for path in paths_of(text) if not is_there(path)] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[a](nothing.md), ![b](images/nothing.png)", ["nothing.md", "images/nothing.png"]),
        ("[a](plan.md#a-plan), [b](log/), [c](https://example.org/x.md), `[d](nothing.md)`", []),
        ("```\nx[0](nothing)\n```\n[a](../README.md)", []),
    ],
)
def test_a_broken_link_is_found(text, expected):
    assert broken_links(text, ROOT / "docs") == expected
