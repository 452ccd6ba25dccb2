"""Random Markdown as models write it, and what is open at its end, found in another way than by our scanner."""

import re

from hypothesis import strategies as st

WORDS = [
    *("the", "model", "answers", "a", "I", "tokens,", "speculation.", "0)", "[0,", "x*y", "**bold**", "_it_", "`code`"),
    *(
        "👩‍👩‍👧‍👦",
        "🇩🇪🇫🇷",
        "👍🏽",
        "e\u0301\u0323a",
        "שלום",
        "مرحبا",
        "漢字仮名交じり文",
        "한국어",
        "\u1112\u1161\u11ab",
        "~",
        "#",
    ),
]
ATOMS = [
    *("<@123456>", "<@&987>", "<#55>", "<:wave:12>", "<a:wave_2:345678>", "<t:1700000000:R>", "<https://a.example/b>"),
    *("[a link](https://a.example/x_(y)?q=1)", "https://b.example/very/long?path=1&b=2", "[one](http://c.example)"),
]
words = st.lists(st.sampled_from(WORDS + ATOMS), min_size=1, max_size=14).map(" ".join)
markers = st.sampled_from(["```", "````", "~~~", "~~~~~"])
infos = st.sampled_from(["", "py", "c++", "python title=x"])
CODE = ["", "x = 1", "    return [", "if a:", "# why", "> no quote", "- no list", "`a`"]
code_lines = st.lists(st.sampled_from(CODE), max_size=12)


@st.composite
def fences(draw, first="", rest="", *, is_closed=True):
    """A fence whose lines begin with `rest`, the first one with `first`."""
    marker, info = draw(markers), draw(infos)
    lines = [rest + line for line in draw(code_lines)]
    return "\n".join([f"{first or rest}{marker}{info}", *lines, *([rest + marker] if is_closed else [])])


blocks = st.one_of(
    words,
    words,
    words.map(lambda text: f"## {text}"),
    fences(),
    fences(),
    fences("- ", "  "),
    fences("1. ", "   "),
    fences("> ", "> "),
    fences("> > ", "> > "),
    fences("> - ", ">   "),
    st.lists(words, min_size=1, max_size=4).map(lambda items: "\n".join(f"- {item}" for item in items)),
    st.lists(words, min_size=1, max_size=3).map(lambda items: "\n".join(f"> {item}" for item in items)),
    st.integers(1, 6).map(lambda rows: "| a | b |\n|---|---|" + "\n| 1 | two |" * rows),
)


@st.composite
def documents(draw, *, may_be_open=True):
    """Blocks with blank lines between them; at the end perhaps a fence that is still open."""
    text = "\n\n".join(draw(st.lists(blocks, min_size=1, max_size=8)))
    if may_be_open and draw(st.booleans()):
        text += "\n\n" + draw(fences(is_closed=False))
    return text


# What no model should write, and all that our scanner looks at.
soup = st.text(st.sampled_from("```~~~>>-- \n\n\t1.)([]<@:a/h#😀\u0301\u200d🇩漢"), max_size=300)


def open_fence(text):
    """The sign and length of the fence that is open at the end of a text, None if none is.

    It looks for pairs by a search from each opening line, instead of going line by line with a state.
    """
    lines = text.split("\n")
    number = 0
    while number < len(lines):
        quotes, rest = unmarked(lines[number])
        found = re.match(r"(`{3,})[^`]*$|(~{3,})", rest)
        number += 1
        if not found:
            continue
        sign, length = rest[0], len(found[1] or found[2])
        while number < len(lines):
            its, inner = unquoted(lines[number], quotes)
            if its < quotes:
                break
            number += 1
            if set(inner.strip(" \t")) == {sign} and len(inner.strip(" \t")) >= length:
                break
        else:
            return sign, length
    return None


def unmarked(line):
    """The number of quotes that a line is in, and what is behind all marks of quotes and lists."""
    quotes, rest = 0, line.lstrip(" \t")
    while mark := re.match(r">|(?:[-*+]|\d{1,9}[.)])(?=[ \t])", rest):
        quotes += mark[0] == ">"
        rest = rest[mark.end() :].lstrip(" \t")
    return quotes, rest


def unquoted(line, most):
    """How many of `most` marks of quotes a line begins with, and what is behind them."""
    quotes, rest = 0, line
    while quotes < most and rest.lstrip(" \t").startswith(">"):
        quotes, rest = quotes + 1, rest.lstrip(" \t")[1:]
    return quotes, rest
