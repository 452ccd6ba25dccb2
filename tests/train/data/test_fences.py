"""Fenced code against markdown-it's reading of the same text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from eyas.train.data.fences import code_spans

LINES = (
    "```",
    "````",
    "```python",
    "``` a b",
    "   ```",
    "``",
    "```x```",
    "x = 1",
    "",
    "text",
    "~~~ no",
    "``` ",
    "a ```",
)


@given(lines=st.lists(st.sampled_from(LINES), max_size=12), ends=st.booleans())
def test_fences_are_those_of_markdown(lines, ends):
    """Tildes, tabs and lists aside: chats have backticks, and code in lists is deeper than three spaces."""
    lines = [line.replace("~~~ no", "no") for line in lines]
    text = "\n".join(lines) + "\n" * ends
    found = [text.encode()[begin:end].decode() for begin, end in code_spans(text.encode())]
    expected = [token.content for token in MarkdownIt("commonmark").parse(text) if token.type == "fence"]
    assert [code.rstrip("\n") for code in found] == [code.rstrip("\n") for code in expected]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("- a:\n    ```py\n    x\n    ```\n- b", ["    x\n"]),
        ("\u4f60\n```\n\u597d\n```", ["\u597d\n"]),
        ("```", [""]),
        ("no code", []),
        ("```a``` inline", []),
    ],
)
def test_some_texts(text, code):
    assert [text.encode()[begin:end].decode() for begin, end in code_spans(text.encode())] == code
