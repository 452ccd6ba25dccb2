"""Where a piece ends, rule by rule: how early, before which signs, and what is cut when nothing better is there."""

import pytest

from eyas.discord.text.chunks import split

LONG = "d" * 60


def first(text, limit):
    """The first piece of a text that is longer than a piece."""
    pieces = split(text, limit).pieces
    assert len(text) > limit
    return pieces[0].source if pieces else None


@pytest.mark.parametrize(("limit", "place"), [(30, 10), (27, 9), (31, 11)])
def test_a_paragraph_or_line_behind_the_first_third_comes_before_words(limit, place):
    """From exactly a third on; before it a piece would be short without need."""
    words = "bb " * 20
    for end in ("\n\n", "\n"):
        head = "a" * (place - len(end)) + end
        assert first(head + words, limit) == head
        assert len(first(head[1:] + words, limit)) > limit - 3


def test_words_behind_the_first_third_come_before_lines_before_it():
    assert first("ab\nccccc " + LONG, 27) == "ab\nccccc "
    assert first("ab\ncccc " + LONG, 27) == "ab\n"
    assert first("cccc " + LONG, 27) == "cccc "


def test_in_code_an_early_line_comes_before_words():
    assert first("```\na\nb\n" + "word " * 20, 40) == "```\na\nb\n"


def test_no_piece_is_blank_without_need():
    assert first("\n" * 8 + "aaaa bbbb cccc dddd", 20) == "\n" * 8 + "aaaa bbbb "
    assert first(" " * 8 + LONG, 20) == " " * 8 + "d" * 12


@pytest.mark.parametrize("sign", [*"#>*+-|=", "```", "~~~"])
def test_no_piece_begins_with_a_sign_that_would_mean_another_thing_there(sign):
    assert first(f"aaaa bbbb {sign} cccc dddd", 11) == "aaaa "
    assert first(f"aaaa bbbb {sign}cccc dddd", 11) == "aaaa "


@pytest.mark.parametrize(("text", "limit", "piece"), [
    ("e\u0301" * 20, 21, "e\u0301" * 10),
    ("~~~\n" + "`" * 60, 30, "~~~\n"),
    ("[" + "a" * 60 + "](b) ", 20, "[" + "a" * 19),
    ("[" + "\ud83d\udc00" * 20, 20, "[" + "\ud83d\udc00" * 9),
    ("[" + "\ud83d\udfff" * 20, 20, "[" + "\ud83d\udfff" * 9),
    ("[" + "\ud83d\ue000" * 20, 20, "[" + "\ud83d\ue000" * 9 + "\ud83d"),
    ("[" + "\udbff" * 40, 20, "[" + "\udbff" * 19),
])  # fmt: skip
def test_what_is_cut_when_no_line_and_no_word_is_left(text, limit, piece):
    """A character; else a line that leaves an empty block; else anywhere but within a pair of surrogates."""
    assert first(text, limit) == piece


@pytest.mark.parametrize(("text", "limit", "pieces"), [
    # a line that is a fence, or may become one, is not cut, but its rest within a line is no fence
    ("```](b)|---|\n```\n", 16, []),
    ("``````py\n>|---|\r\n~~~```py\n\n> `# ", 25, ["``````py\n>|---|\n``````"]),
    # mentions and links are whole also at the very place of the cut, and code has none
    ("](b)\u00e91. aaaa```[x](y)  \u0301", 23, ["](b)\u00e91. "]),
    ("<@1>[<@1>|---|> ", 15, ["<@1>"]),
    ("- >aaaa[x](y)\n\u00e9", 14, ["- >aaaa[x](y)\n", "\u00e9"]),
    ("~~~1. [[|a| <@1>\u03011. \\\n```|a| ~|---|\\\n>", 30, ["~~~1. [[|a| <@1>\u03011. \\\n~~~"]),
    ("\n```\n\r\n\n```\n[\\\n\t<@1>bb`|a|\\\n> aaaa\t \r\n[~>\t1. ", 31,
     ["\n```\n\r\n\n```\n", "[\\\n\t<@1>bb`|a|\\\n> aaaa\t \r\n", "[~>\t1. "]),
    ("-  [~~~  # \\\n\t---- \u00e9```", 18, ["-  ", "[~~~  # \\\n\t---- ", "\u00e9```"]),
    # a fence ends with its quote
    ("  `|a|># - \n\n> ~~~\r\n- ```\u0301`[x](y)", 18, ["  `|a|># - \n\n"]),
    (">\t\t1. ```py\n\t`bb```---\r\n- >bb~", 29, [">\t\t1. ```py\n\t", "`bb```---\r\n- >bb~"]),
    ("\n1. [x](y)\n\n# [[- ~~~\\\n ```", 14, ["\n1. [x](y)\n\n", "# ", "[[- ~~~", "\\\n ```\n ```"]),
    ("\n\n\\\n- |---|\n> ```~  ", 14, ["\n\n\\\n- |---", "|\n", "> ```~  \n> ```"]),
    # no block is empty where another line or character does
    ("```py\n\r\n`>\n\n  `[bb1. ", 18, ["```py\n\r\n`>\n```", "```py\n\n  `[bb1\n```"]),
    ("\n\n ```py\nbb```<@1>", 16, ["\n\n ```py\nb\n ```"]),
    ("|---|\n```\n\n\n> \r\n", 14, ["|---", "|\n```\n\n\n```", "```\n> \r\n```"]),
    # a line of marks and blanks ends a paragraph
    ("# > \\\n\t\nbb\\\n1. 1. ", 16, ["# > \\\n\t\n", "bb\\\n1. 1. "]),
])  # fmt: skip
def test_corners(text, limit, pieces):
    assert [piece.text for piece in split(text, limit, max_chunks=30).pieces] == pieces
