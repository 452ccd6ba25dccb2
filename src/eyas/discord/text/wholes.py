"""Parts of a text that are not cut: user-perceived characters, mentions, links, addresses.

What reaches the end of the text may go on behind it, so it counts as such a part as soon as it may become one. Whether
a place is within one then depends on nothing behind the text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from itertools import takewhile

__all__ = ["is_between_characters", "wholes"]

# https://discord.com/developers/docs/reference#message-formatting
MENTION = re.compile(r"<(?:@[!&]?|#|a?:\w{1,32}:|t:|/|id:)[^<>\n]{0,100}?(?:>|\Z)|<(?:[at]?:?\w{0,32}|id)\Z")
ADDRESS = re.compile(
    r"<?https?://[^\s<>]+>?|(?<![A-Za-z0-9])<?(?:h|ht|htt|http|https|https?:|https?:/|https?://)\Z", re.IGNORECASE
)
LINK_SIGN = re.compile(r"\\.|[\[\]\n]", re.DOTALL)
DESTINATION_SIGN = re.compile(r"\\.|[()\n]", re.DOTALL)
ZWJ = "\N{ZERO WIDTH JOINER}"
Span = tuple[int, int]


def wholes(text: str) -> Iterator[Span]:
    """Yield start and end of each part that is not cut. One that may go on behind the text ends behind it.

    The address of a link ends with the link.
    """
    for mention in MENTION.finditer(text):
        yield mention.start(), _end(mention, text)
    links = list(_links(text))
    yield from links
    place = 0
    while match := ADDRESS.search(text, place):
        ends = [end for start, end in links if start <= match.start() < end]
        place = min(max(ends), len(text)) if ends else match.end()
        if not ends:
            yield match.start(), _end(match, text)


def _end(match: re.Match[str], text: str) -> int:
    return match.end() + (match.end() == len(text))


def _links(text: str) -> Iterator[Span]:
    """Yield links in Markdown, `[text](address)`, that stand on one line."""
    beyond = len(text) + 1
    starts: list[int] = []
    for match in LINK_SIGN.finditer(text):
        sign, end = match[0], match.end()
        if sign == "[":
            starts.append(match.start())
        elif sign == "\n":
            starts.clear()
        elif sign == "]" and starts:
            start = starts.pop()
            if end == len(text):
                yield start, beyond
            elif text[end] == "(" and (closed := _destination_end(text, end)) is not None:
                yield start, closed
    if starts:
        yield starts[0], beyond


def _destination_end(text: str, start: int) -> int | None:
    """Return where the brackets that open at `start` are closed, None if that is not in their line."""
    depth = 0
    for match in DESTINATION_SIGN.finditer(text, start):
        if match[0] == "\n":
            return None
        depth += {"(": 1, ")": -1}.get(match[0], 0)
        if depth == 0:
            return match.end()
    return len(text) + 1


def is_between_characters(text: str, place: int) -> bool:
    """Return whether a cut at `place` leaves user-perceived characters whole.

    This is Unicode's rule for extended grapheme clusters (UAX #29) without prepended marks and Indic conjuncts.
    """
    before, after = text[place - 1], text[place]
    if before == "\r" and after == "\n":
        return False
    if before.isascii() and after.isascii():
        return True
    if "\ud800" <= before <= "\udbff" and "\udc00" <= after <= "\udfff":
        return False
    if after == ZWJ or before == ZWJ or _extends(after):
        return False
    if _is_regional(after):
        return sum(1 for _ in takewhile(_is_regional, reversed(text[:place]))) % 2 == 0
    return not ("\u1100" <= before <= "\ud7fb" and _follows_in_syllable(after))


def _extends(char: str) -> bool:
    is_skin_tone = "\U0001f3fb" <= char <= "\U0001f3ff"
    is_tag = "\U000e0020" <= char <= "\U000e007f"
    return is_skin_tone or is_tag or unicodedata.category(char) in ("Mn", "Mc", "Me")


def _is_regional(char: str) -> bool:
    return "\U0001f1e6" <= char <= "\U0001f1ff"


def _follows_in_syllable(char: str) -> bool:
    """Return whether a letter of Hangul is a vowel or a final consonant, which may stand behind another one."""
    return "\u1160" <= char <= "\u11ff" or "\ud7b0" <= char <= "\ud7fb"
