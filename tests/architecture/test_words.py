"""Words: plain, idiomatic English in docstrings, help texts, messages and comments, and docstrings with a subject."""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "src" / "eyas"
BANNED = re.compile(
    r"\b(whoever|whomever|nobody|somebody|everybody|so many|so much|(un)?told|anew|foretold|foretells?|by lot)\b", re.I
)
# A docstring begins with a verb, or names what is returned; "Whether" names a truth value.
PREPOSITIONS = "about across after against among around as at before behind beside besides between but by during else"
PREPOSITIONS += " except for from if in inside into like of off on onto out over past per since than through till to"
PREPOSITIONS += " toward under until up upon with within without"
PRONOUNS = "and he his it its or she so such that their them these they this those thus"
QUESTIONS = "how what when where which who whom whose why"
NOT_FIRST = {*PREPOSITIONS.split(), *PRONOUNS.split(), *QUESTIONS.split()}
TEXT = {tokenize.STRING, tokenize.COMMENT} | (
    {tokenize.FSTRING_MIDDLE} if hasattr(tokenize, "FSTRING_MIDDLE") else set()
)

PYTHON = sorted(ROOT.rglob("*.py"))
DATA = sorted((ROOT / "recipes" / "data").glob("*.yaml"))


def name(path):
    return str(path.relative_to(ROOT))


def texts(source):
    """Every string and comment of a Python file, with its line."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in TEXT:
            yield token.start[0], " ".join(token.string.split())


def first_words(source):
    """The line and first word of every docstring that begins with a word; quoted names and formulas are no words."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node) or ""
            if word := re.match(r"[A-Za-z][a-z-]*\b", text):
                yield getattr(node, "lineno", 1), word[0]


@pytest.mark.parametrize("path", PYTHON, ids=name)
def test_no_file_has_words_that_no_reader_expects(path):
    found = [(line, text) for line, text in texts(path.read_text(encoding="utf-8")) if BANNED.search(text)]
    assert not found


@pytest.mark.parametrize("path", DATA, ids=name)
def test_neither_has_a_table_of_the_planner(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    assert not [(number, line) for number, line in enumerate(lines, 1) if BANNED.search(line)]


@pytest.mark.parametrize("path", PYTHON, ids=name)
def test_docstrings_begin_with_a_verb_or_name_what_is_returned(path):
    found = first_words(path.read_text(encoding="utf-8"))
    assert not [(line, word) for line, word in found if word.lower() in NOT_FIRST]


def test_the_rules_see_what_they_forbid():
    source = '"""Of one choice."""\nx = 1  # told anew\ny = f"{x} for whoever"\nz = """a\nso\nmany"""\n'
    assert [line for line, text in texts(source) if BANNED.search(text)] == [2, 3, 4]
    assert [word for _, word in first_words(source) if word.lower() in NOT_FIRST] == ["Of"]
