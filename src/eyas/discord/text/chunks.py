"""Cuts the text of an answer, while it grows, into messages whose Markdown is whole.

A piece is cut at a paragraph, else at a line, else at a word. A code fence that is cut is closed, and opened again in
the next piece; the last piece closes what is open at the moment. Sizes are UTF-16 units: Discord's page does not say
what it counts, its people say code points (https://github.com/discord/discord-api-docs/issues/1315), and there are
never fewer units than those.

Where a piece ends depends on the text up to the first character that it has no room for, and on nothing behind it. So
what is full stays as it is when the text grows, and its message need not be edited again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from eyas.discord.text.fences import Fence, fence_after, may_be_fence
from eyas.discord.text.seams import Seam, Window, best_seam

__all__ = ["Chunk", "Chunks", "split", "units"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """A piece of the text: `source` as the model wrote it, between the fences that were inserted."""

    source: str
    opening: str = ""
    closing: str = ""

    @property
    def text(self) -> str:
        """The piece as it is shown."""
        return self.opening + self.source + self.closing


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunks:
    """Messages of an answer, and the rest that is to be a file. Their sources, joined, are the text."""

    pieces: tuple[Chunk, ...]
    file: Chunk | None = None


def split(text: str, limit: int = 1900, *, max_chunks: int = 5) -> Chunks:
    """Cut a text into at most `max_chunks` pieces of at most `limit` UTF-16 units, and a file with the rest.

    The file begins early where a line is longer than a piece, behind the piece that shows its start. A text that cannot
    be cut, such as 6,000 backticks, is a file alone. A piece may be blank where a text has that many blanks in a row.
    """
    pieces: list[Chunk] = []
    start = _Start(0, 0, None)
    while start.place < len(text):
        found = _piece(text, start, limit) if len(pieces) < max_chunks else None
        if found is None:
            return Chunks(pieces=tuple(pieces), file=_chunk(text, start, len(text), _last_fence(text, start)))
        end, fence = found
        pieces.append(_chunk(text, start, end, fence))
        line = text.rfind("\n", 0, end) + 1
        start = _Start(end, line, fence and fence.continued())
        if line < end < len(text) and _is_too_long(text, start, limit):
            return Chunks(pieces=tuple(pieces), file=_chunk(text, start, len(text), _last_fence(text, start)))
    return Chunks(pieces=tuple(pieces))


@dataclass(frozen=True, slots=True)
class _Start:
    """Start of a piece: its place, the start of its line, and the fence that is open there."""

    place: int
    line: int
    fence: Fence | None

    @property
    def is_within_line(self) -> bool:
        return self.place > self.line

    @property
    def opening(self) -> str:
        """Lines that are inserted before the piece."""
        if self.fence is None:
            return ""
        return self.fence.opening + (self.fence.prefix if self.is_within_line and self.fence.depth else "")


def units(text: str) -> int:
    """Return the number of UTF-16 units."""
    return len(text) + sum(char > "\uffff" for char in text)


def _tail_size(fence: Fence | None) -> int:
    """Return the most that closing a fence takes, its line's start included."""
    return 0 if fence is None else 1 + units(fence.closing)


def _chunk(text: str, start: _Start, end: int, fence: Fence | None) -> Chunk:
    source = text[start.place : end]
    closing = "" if fence is None else ("" if source.endswith("\n") else "\n") + fence.closing
    return Chunk(source=source, opening=start.opening, closing=closing)


def _piece(text: str, start: _Start, limit: int) -> tuple[int, Fence | None] | None:
    """Return where the piece that starts there ends and the fence that is open there, None if it cannot be cut."""
    window = text[start.place : start.place + limit + 1]
    room, seams, fence = _walk(window, start, limit)
    if room == len(window):
        return start.place + room, fence
    found = best_seam(Window(window[: room + 1], tuple(seams), start.is_within_line))
    return None if found is None else (start.place + found.place, found.fence)


def _walk(window: str, start: _Start, limit: int) -> tuple[int, list[Seam], Fence | None]:
    """Return how much of a window fits into a piece, the starts of its lines, and the fence that is open at its end.

    A place fits if all before it do. With a closing fence counted until it is there, the text cannot come to fit later.
    """
    sizes = list(accumulate((1 + (char > "\uffff") for char in window), initial=units(start.opening)))
    fence, place, lines = start.fence, 0, [Seam(0, start.fence)]
    if sizes[0] + _tail_size(fence) > limit:
        return 0, lines, fence
    is_plain = start.is_within_line
    while place < len(window):
        newline = window.find("\n", place)
        end = len(window) if newline < 0 else newline
        for fit, after in _line_states(window[place:end], fence, is_plain=is_plain):
            most = limit - _tail_size(after)
            if sizes[place + fit] > most:
                return _room(sizes, place, place + fit, most), lines, fence
        after_line = fence if is_plain else fence_after(fence, window[place:end])
        if newline < 0:
            return end, lines, after_line
        fence, is_plain, place = after_line, False, end + 1
        if sizes[place] + _tail_size(fence) > limit:
            return end, lines, fence
        lines.append(Seam(place, fence))
    return place, lines, fence


def _line_states(line: str, fence: Fence | None, *, is_plain: bool) -> Iterator[tuple[int, Fence | None]]:
    """Yield lengths of a line's beginnings, with the fence that is open after each.

    A line that can be no fence leaves it as it is or ends it, so its whole length will do.
    """
    if is_plain or not may_be_fence(line):
        yield len(line), fence
        return
    for length in range(1, len(line) + 1):
        yield length, fence_after(fence, line[:length])


def _room(sizes: list[int], low: int, high: int, most: int) -> int:
    """Return the last place from `low` on, before `high`, up to which `most` units have room."""
    return max((place for place in range(low, high) if sizes[place] <= most), default=low)


def _is_too_long(text: str, start: _Start, limit: int) -> bool:
    """Return whether the line that a piece starts within, as far as it is there, has no room in a piece."""
    newline = text.find("\n", start.line, start.line + limit + 1)
    line = text[start.line : start.line + limit + 1 if newline < 0 else newline]
    return units(start.opening) + units(line) + _tail_size(start.fence) > limit


def _last_fence(text: str, start: _Start) -> Fence | None:
    """Return the fence that is open at the end of the text."""
    fence = start.fence
    lines = text[start.place :].split("\n")
    for number, line in enumerate(lines):
        if number or not start.is_within_line:
            fence = fence_after(fence, line)
    return fence
