"""Pieces of an answer: nothing is lost, each is valid by itself and within the limit, and what is full stays."""

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from tests.discord.support.markdown import ATOMS, documents, open_fence, soup

from eyas.discord.text.chunks import split

FENCE_LINE = re.compile(r"[ >]*(`{3,}[^`\n]*|~{3,}[^\n]*)\n?(?:[ >]*>[ ]*)?")
limits = st.integers(40, 300)


def utf16(text):
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def check(text, limit, max_chunks):
    """What holds for every text."""
    found = split(text, limit, max_chunks=max_chunks)
    assert len(found.pieces) <= max_chunks
    chunks = [*found.pieces, *([found.file] if found.file else [])]
    assert "".join(chunk.source for chunk in chunks) == text
    for chunk in chunks:
        assert chunk.text == chunk.opening + chunk.source + chunk.closing and chunk.source
        assert not chunk.opening or FENCE_LINE.fullmatch(chunk.opening)
        assert not chunk.closing or FENCE_LINE.fullmatch(chunk.closing.removeprefix("\n"))
        assert open_fence(chunk.text) is None, chunk.text
    for chunk in found.pieces:
        assert utf16(chunk.text) <= limit
    return found


@settings(max_examples=60)
@given(documents(), limits, st.integers(1, 60))
def test_pieces_are_the_text_and_valid_at_every_moment_and_what_is_full_stays(text, limit, max_chunks):
    whole = check(text, limit, max_chunks)
    step = max(1, len(text) // 60)
    for end in range(step, len(text), step):
        now = check(text[:end], limit, max_chunks)
        full = now.pieces if now.file else now.pieces[:-1]
        assert whole.pieces[: len(full)] == full
        assert not now.file or whole.file


@settings(max_examples=60)
@given(soup, st.integers(12, 60), st.integers(1, 60))
@example("````" * 30, 40, 5)
@example("word word word ``` more more more", 17, 9)
@example("> ```\n> aaaa\n> bbbb\nplain text that goes on", 28, 9)
@example("```" + "\U0001f44d" * 4 + "\naaaa aaaa\naaaa aaaa\naaaa aaaa\n```", 36, 9)
@example("> ```py\n> x\nplain ``` text\n> ```\n> y\n> ```", 20, 9)
def test_the_same_of_any_text_of_the_signs_that_matter(text, limit, max_chunks):
    whole = check(text, limit, max_chunks)
    for end in range(1, len(text)):
        now = check(text[:end], limit, max_chunks)
        full = now.pieces if now.file else now.pieces[:-1]
        assert whole.pieces[: len(full)] == full


def codes(text):
    return [(token.info, token.content) for token in MarkdownIt("commonmark").parse(text) if token.type == "fence"]


def merged(blocks):
    return "".join(content.rstrip("\n") + "\n" for _, content in blocks if content.strip())


@settings(max_examples=60)
@given(documents(), st.integers(120, 400))
def test_code_is_the_same_to_a_parser_of_markdown(text, limit):
    """A real parser finds the same code in the pieces as in the text, with the same languages."""
    found = split(text, limit, max_chunks=1000)
    if found.file is not None:
        return
    pieces = [block for chunk in found.pieces for block in codes(chunk.text)]
    blank_free = re.compile(r"\n\s*\n")
    assert blank_free.sub("\n", merged(pieces)) == blank_free.sub("\n", merged(codes(text)))
    assert {info for info, content in pieces} == {info for info, content in codes(text)}
    for chunk in found.pieces:
        tokens = MarkdownIt("commonmark").parse(chunk.text + "\n\nbehind it")
        assert (tokens[-3].type, tokens[-2].content, tokens[-3].level) == ("paragraph_open", "behind it", 0)


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from([*ATOMS, "word", "漢字漢字", "(", "👍"]), min_size=1, max_size=40), limits, st.booleans()
)
def test_mentions_links_and_addresses_stay_whole(parts, limit, is_spaced):
    if not is_spaced:  # an address without brackets would have no end
        parts = [part for part in parts if not part.startswith("https:")]
    text = (" " if is_spaced else ".").join(parts).replace("漢字漢字.", "漢字漢字")
    found = split(text, limit, max_chunks=1000)
    places, end = set(), 0
    for chunk in found.pieces:
        end += len(chunk.source)
        places.add(end)
    spans = [(match.start(), match.end()) for atom in ATOMS for match in re.finditer(re.escape(atom), text)]
    assert not [text[start:end] for start, end in spans for place in places if start < place < end]


GRAPHEMES = [
    "👩‍👩‍👧‍👦",
    "🇩🇪",
    "👍🏽",
    "e\u0301\u0323",
    "한",
    "\u1112\u1161\u11ab",
    "🏴\U000e0067\U000e0062\U000e007f",
    "a",
    "✍️",
]


@settings(max_examples=60)
@given(st.lists(st.sampled_from(GRAPHEMES), min_size=1, max_size=120), st.integers(20, 60))
def test_characters_stay_whole(parts, limit):
    text = "".join(parts)
    whole, end = {0}, 0
    for part in parts:
        end += len(part)
        whole.add(end)
    end = 0
    for chunk in split(text, limit, max_chunks=1000).pieces:
        end += len(chunk.source)
        assert end in whole
        chunk.text.encode("utf-8")


def test_half_a_pair_is_no_piece():
    """Text that came as escapes of UTF-16 may hold surrogates; a pair is not parted."""
    for chunk in split("\ud83d\ude00" * 30, 21, max_chunks=1000).pieces:
        assert len(chunk.source) % 2 == 0


@pytest.mark.parametrize("limit", [1900, 2000])
def test_one_line_of_10_000_characters(limit):
    """The first piece shows its start, the file has the rest."""
    found = check("word " * 2000, limit, 5)
    assert len(found.pieces) == 1 and utf16(found.pieces[0].text) > limit - 10
    assert found.file.source.startswith("word")


def test_a_long_line_behind_others_leaves_what_was_shown():
    text = "first\n\n" + "word " * 2000
    assert [chunk.source for chunk in check(text, 1900, 5).pieces] == [text[:1897]]


def test_6_000_backticks_are_a_file():
    found = check("`" * 6000, 1900, 5)
    assert found.pieces == () and found.file.source == "`" * 6000
    found = check("a text\n\n" + "`" * 6000 + "\n", 1900, 5)
    assert [chunk.source for chunk in found.pieces] == ["a text\n\n"]


def test_more_than_the_most_pieces_end_in_a_file_with_its_fence():
    text = "```py\n" + "x = 1\n" * 3000 + "```"
    found = check(text, 1900, 5)
    assert len(found.pieces) == 5 and found.file.opening == "```py\n" and found.file.text.endswith("x = 1\n```")


@pytest.mark.parametrize(
    ("text", "limit", "pieces"),
    [
        ("one two\n\nthree four five", 20, ["one two\n\n", "three four five"]),
        ("one two\nthree four five", 20, ["one two\n", "three four five"]),
        ("a\nthree four five six", 20, ["a\nthree four five ", "six"]),
        ("one two three four five", 30, ["one two three four five"]),
        ("a b\n\none two three\nfour five six", 20, ["a b\n\none two three\n", "four five six"]),
        ("```py\na = 1\nb = 2\nc = 3\n```\nend", 24, ["```py\na = 1\nb = 2\n```", "```py\nc = 3\n```\nend"]),
        ("> ~~~\n> a a a\n> b b b\n> ~~~", 24, ["> ~~~\n> a a a\n> ~~~", "> ~~~\n> b b b\n> ~~~"]),
        ("1. ```c\n   aaaaa\n   bbbbb\n   ```", 30, ["1. ```c\n   aaaaa\n   ```", "   ```c\n   bbbbb\n   ```"]),
        ("12345. ```\n       aaa\n       bbb\n       ```", 40,
         ["12345. ```\n       aaa\n       ```", "   ```\n       bbb\n       ```"]),
        ("text text\n```\na\n```", 24, ["text text\n```\na\n```"]),
        ("text text\n```\na\n```", 18, ["text text\n", "```\na\n```"]),
        ("a title of it\n| a | b |\n|---|---|\n| 1 | 2 |", 36, ["a title of it\n", "| a | b |\n|---|---|\n| 1 | 2 |"]),
        ("one two - three", 14, ["one two - "]),
        ("", 20, []),
    ],
)  # fmt: skip
def test_where_it_is_cut(text, limit, pieces):
    assert [chunk.text for chunk in split(text, limit).pieces] == pieces


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("```", "```\n```"),
        ("```py\nx", "```py\nx\n```"),
        ("~~~~\nx\n~~~", "~~~~\nx\n~~~\n~~~~"),
        ("> ```\n> x", "> ```\n> x\n> ```"),
    ],
)
def test_what_is_open_at_the_moment_is_closed(text, shown):
    (piece,) = split(text).pieces
    assert piece.text == shown and piece.source == text
