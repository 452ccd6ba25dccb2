"""A file has one job: at most 500 lines, functions of at most 70, a docstring that says what it is, ASCII source."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAX_LINES = 500
MAX_FUNCTION_LINES = 70

SOURCE = sorted((ROOT / "src").rglob("*.py"))
ALL = SOURCE + sorted(path for folder in ("tests", "tools") for path in (ROOT / folder).rglob("*.py"))


def name(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", ALL, ids=name)
def test_size_and_docstring(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_LINES
    assert ast.get_docstring(ast.parse(text)), "says in its first lines what it is"


@pytest.mark.parametrize("path", SOURCE, ids=name)
def test_source_is_ascii_and_functions_are_short(path):
    text = path.read_text(encoding="utf-8")
    assert text.isascii(), [line for line in text.splitlines() if not line.isascii()]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno - node.lineno < MAX_FUNCTION_LINES, node.name


def test_no_file_names_a_registry():
    """What is installed from where is the machine's own setting."""
    files = [ROOT / "pyproject.toml", ROOT / "Makefile", *ROOT.glob("constraints*.txt"), *(ROOT / ".ci").iterdir()]
    for path in files:
        text = path.read_text()
        assert "index-url " not in text.replace("--extra-index-url $(TORCH_INDEX)", "") and "pypi" not in text.lower()
        assert "://" not in text.replace("http://127.0.0.1", ""), path
