"""Words: plain, idiomatic English in docstrings, help texts, messages and comments, and docstrings with a subject."""

import ast
import io
import re
import tokenize
from pathlib import Path

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

PYTHON = {str(path.relative_to(ROOT)): path for path in sorted(ROOT.rglob("*.py"))}
DATA = sorted((ROOT / "recipes" / "data").glob("*.yaml"))


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


def banned(source):
    """Lines with banned words in strings and comments. Most files have none anywhere, so need no look at tokens."""
    if not BANNED.search(" ".join(source.split())):
        return []
    return [(line, text) for line, text in texts(source) if BANNED.search(text)]


def test_no_file_has_words_that_no_reader_expects():
    assert len(PYTHON) > 100
    assert not [(name, *found) for name, path in PYTHON.items() for found in banned(path.read_text("utf-8"))]


def test_neither_has_a_table_of_the_planner():
    lines = [(path.name, *line) for path in DATA for line in enumerate(path.read_text("utf-8").splitlines(), 1)]
    assert lines
    assert not [line for line in lines if BANNED.search(line[-1])]


def test_docstrings_begin_with_a_verb_or_name_what_is_returned():
    found = [(name, *first) for name, path in PYTHON.items() for first in first_words(path.read_text("utf-8"))]
    assert len(found) > 1000
    assert not [first for first in found if first[-1].lower() in NOT_FIRST]


def test_the_rules_see_what_they_forbid():
    source = '"""Of one choice."""\nx = 1  # told anew\ny = f"{x} for whoever"\nz = """a\nso\nmany"""\n'
    assert [line for line, _ in banned(source)] == [2, 3, 4]
    assert [word for _, word in first_words(source) if word.lower() in NOT_FIRST] == ["Of"]
