"""A file has one job: at most 500 lines, functions of at most 70, a docstring that says what it is, ASCII source."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAX_LINES = 500
MAX_FUNCTION_LINES = 70

SOURCE = sorted((ROOT / "src").rglob("*.py"))
OTHERS = sorted(path for folder in ("tests", "tools") for path in (ROOT / folder).rglob("*.py"))


def faults(text, *, is_source):
    """What is wrong with a file."""
    tree = ast.parse(text)
    if (num_lines := len(text.splitlines())) > MAX_LINES:
        yield f"{num_lines} lines"
    if not ast.get_docstring(tree):
        yield "does not say in its first lines what it is"
    if is_source:
        yield from (f"not ASCII: {line}" for line in text.splitlines() if not line.isascii())
        for node in ast.walk(tree):
            is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            if is_function and (num_lines := node.end_lineno - node.lineno + 1) > MAX_FUNCTION_LINES:
                yield f"{node.name} has {num_lines} lines"


@pytest.mark.parametrize(("paths", "is_source"), [(SOURCE, True), (OTHERS, False)], ids=["source", "others"])
def test_files_have_one_job(paths, is_source):
    """One test for all files: a test a file costs more than the look at it."""
    found = {path.relative_to(ROOT): list(faults(path.read_text("utf-8"), is_source=is_source)) for path in paths}
    assert len(found) > 100
    assert not {str(path): wrong for path, wrong in found.items() if wrong}


def test_each_fault_is_found():
    long = "def f():" + "\n    pass" * MAX_FUNCTION_LINES
    text = f"{long}\nx = '\u00e9'" + "\n" * MAX_LINES
    assert list(faults(text, is_source=True)) == [
        f"{MAX_LINES + MAX_FUNCTION_LINES + 1} lines",
        "does not say in its first lines what it is",
        "not ASCII: x = '\u00e9'",
        f"f has {MAX_FUNCTION_LINES + 1} lines",
    ]
    assert len(list(faults(text, is_source=False))) == 2
    assert not list(faults('"""What it is."""\nx = 1\n', is_source=True))


def test_no_file_names_a_registry():
    """What is installed from where is the machine's own setting."""
    files = [ROOT / "pyproject.toml", ROOT / "Makefile", *ROOT.glob("constraints*.txt"), *(ROOT / ".ci").iterdir()]
    for path in files:
        text = path.read_text()
        assert "index-url " not in text.replace("--extra-index-url $(TORCH_INDEX)", "") and "pypi" not in text.lower()
        assert "://" not in text.replace("http://127.0.0.1", ""), path
