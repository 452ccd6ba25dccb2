"""What is not cut: each kind of mention, link and address, to its very end, and where one may still begin."""

import pytest

from eyas.discord.text.wholes import is_between_characters, wholes


def found(text):
    """Parts of a text, in their order; one that may go on behind it ends in `...`."""
    spans = sorted(set(wholes(text)))
    return [text[start:end] + ("..." if end > len(text) else "") for start, end in spans]


@pytest.mark.parametrize("text", [
    "<@123>", "<@!123>", "<@&987>", "<#55>", "<:wave:12>", "<a:wave_2:345678>", f"<:{'w' * 32}:1>", "<t:1700000000:R>",
    "</ask it:12>", "<id:customize>", f"<@{'1' * 100}>", "<@>",
    "https://a.example/b?c=(d)", "http://a", "HTTPS://A.EXAMPLE", "<https://a.example/b>", "<http://a",
    "[a link](b)", "[a](https://a.example/x_(y)?q=1)", r"[a\]b](c)", r"[a](b\)c)", "[](b)", "[a]()", "[a](b((c)d)e)",
])  # fmt: skip
def test_one_part(text):
    """With words around it, and at the start."""
    assert found(f"x {text} y") == [text] and found(f"{text} y") == [text]
    assert found(f"x {text}\ny") == [text]


@pytest.mark.parametrize("text", [
    "<@12\n3>", f"<@{'1' * 101}>", "< @1>", "<b:wave:12>", f"<:{'w' * 33}:1>", "<tt:1>", "a < b", "<a c", "<%1>",
    "https:/a", "http:// a", "hhttp", "an h in it", "ftp://a.example", "http <",
    "[a] (b)", "[a\n](b)", "[a](b\nc)", r"\[a](b)", "a](b)", "[a](b\n)",
])  # fmt: skip
def test_no_part(text):
    assert found(f"x {text} y") == []


@pytest.mark.parametrize(("text", "last"), [
    ("x <", "<"), ("x <@", "<@"), ("x <@!12", "<@!12"), ("x <a", "<a"), ("x <a:", "<a:"), ("x <:wav", "<:wav"),
    ("x <a:wave:1", "<a:wave:1"), ("x <t:17", "<t:17"), ("x <id", "<id"), ("x <id:cu", "<id:cu"), ("x </as", "</as"),
    ("x <#", "<#"), ("x <@&", "<@&"), ("x <t", "<t"), (f"x <{'w' * 32}", "<" + "w" * 32),
    *((f"x {start}", start) for start in ("h", "ht", "htt", "http", "https", "http:", "https:", "http:/", "https:/")),
    ("x http://", "http://"), ("x https://", "https://"), ("x <https", "<https"), ("x H", "H"), ("-h", "h"),
    ("x https://a.b", "https://a.b"), ("x <@1>", "<@1>"), ("x https://a>", "https://a>"), ("h", "h"),
    ("x [", "["), ("x [a b", "[a b"), ("x [a]", "[a]"), ("x [a](", "[a]("), ("x [a](b", "[a](b"),
    ("x [a](b(c)", "[a](b(c)"), (r"x [a\](b) c", r"[a\](b) c"), ("[a [b", "[a [b"), (r"x [a](b\)", r"[a](b\)"),
])  # fmt: skip
def test_what_may_go_on_behind_the_text(text, last):
    assert found(text)[0] == f"{last}..."


@pytest.mark.parametrize(
    "text", ["xh", "x <%", f"x <{'w' * 33}", "x [a](b)", "x ]", "x <a b", "9h", "Zhttp", "x [a](b).", "x >"]
)
def test_what_may_not(text):
    assert not any(one.endswith("...") for one in found(text))


@pytest.mark.parametrize(("text", "parts"), [
    ("<@1><@2> x", ["<@1>", "<@2>"]),
    ("[a](https://b) https://c d", ["[a](https://b)", "https://c"]),
    ("https://c [a](https://b) d", ["https://c", "[a](https://b)"]),
    ("[a [b](c)", ["[a [b](c)...", "[b](c)"]),
    ("[a [b](c)](d) e", ["[a [b](c)](d)", "[b](c)"]),
    ("[a\n[b](c) d", ["[b](c)"]),
    ("[a](https://b c) https://d", ["[a](https://b c)", "https://d..."]),
    ("[https://a](https://b)https://c d", ["[https://a](https://b)", "https://c"]),
    ("[a](https://b", ["[a](https://b..."]),
])  # fmt: skip
def test_several_parts(text, parts):
    """The address of a link ends with the link."""
    assert found(text) == parts


@pytest.mark.parametrize(("before", "after"), [
    ("\r", "\n"), ("\ud83d", "\ude00"), ("\ud800", "\udc00"), ("\udbff", "\udfff"),
    ("a", "\u0301"), ("a", "\u0903"), ("a", "\u20dd"), ("a", "\ufe0f"), ("\u00e9", "\u0301"),
    ("a", "\u200d"), ("\u200d", "a"), ("👩", "\u200d"), ("\u200d", "👩"),
    ("👍", "\U0001f3fb"), ("👍", "\U0001f3ff"), ("🏴", "\U000e0020"), ("🏴", "\U000e007f"),
    ("\U0001f1e6", "\U0001f1e6"), ("\U0001f1ff", "\U0001f1ff"),
    ("\u1100", "\u1160"), ("\ud7fb", "\u11ff"), ("한", "\ud7b0"), ("한", "\ud7fb"), ("\u1161", "\u11a8"),
])  # fmt: skip
def test_one_character(before, after):
    assert not is_between_characters(f"{before}{after}", 1)
    assert not is_between_characters(f"x{before}{after}y", 2)


@pytest.mark.parametrize(("before", "after"), [
    ("a", "b"), ("\r", "a"), ("a", "\n"), ("\n", "\r"), ("\r", "\u00e9"), ("\u00e9", "\n"), ("a", "é"), ("é", "a"),
    ("\udc00", "\udc00"), ("\ud800", "\ud800"), ("\ud7ff", "\udc00"), ("\ud800", "\ue000"), ("\udc00", "\ud800"),
    ("\ud800", "\udbff"),
    ("👍", "👍"), ("👍", "\U0001f3fa"), ("👍", "\U0001f400"), ("🏴", "\U000e001f"), ("🏴", "\U000e0080"),
    ("\U0001f1e5", "\U0001f1e5"), ("\U0001f200", "\U0001f200"), ("a", "🇩"), ("🇩", "a"), ("漢", "字"),
    ("\u10ff", "\u1160"), ("\ud7fc", "\u1160"), ("a", "\u1161"), ("한", "\u115f"), ("한", "\u1200"), ("한", "\ud7af"),
    ("한", "\ud7fc"), ("한", "국"), ("한", "a"),
])  # fmt: skip
def test_two_characters(before, after):
    assert is_between_characters(f"{before}{after}", 1)


def test_flags_are_pairs_from_the_first_of_their_row_on():
    flags = "🇩🇪🇫🇷🇮🇹"
    for text, first in ((flags, 0), (f"a{flags}", 1), (f"🇩🇪 {flags}", 3)):
        places = [place - first for place in range(first + 1, first + 6) if is_between_characters(text, place)]
        assert places == [2, 4]
