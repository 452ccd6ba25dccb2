"""Chooses where a piece of Markdown is cut: paragraphs before lines before words, and as late as it goes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from eyas.discord.text.fences import Fence, fence_after, may_be_fence
from eyas.discord.text.wholes import is_between_characters, wholes

__all__ = ["Seam", "Window", "best_seam"]

TABLE_RULE = re.compile(r"[ \t>]*\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-*:?[ \t]*)+")
BLOCK_SIGNS = "#>*+-|="  # at the start of a piece they would mean something else than within a line


@dataclass(frozen=True, slots=True)
class Seam:
    """A place where a piece may end, and the fence that is open there."""

    place: int
    fence: Fence | None


@dataclass(frozen=True)
class Window:
    """Text that a decision may depend on: its last character has no room. The first of its lines starts with it."""

    text: str
    lines: tuple[Seam, ...]
    is_within_line: bool  # the text starts within a line

    @cached_property
    def spans(self) -> list[tuple[int, int]]:
        """Parts that are not cut, outside of code."""
        ends = [seam.place for seam in self.lines[1:]] + [len(self.text)]
        prose = "".join(
            "\n" * (end - line.place) if line.fence is not None else self.text[line.place : end]
            for line, end in zip(self.lines, ends, strict=True)
        )
        return list(wholes(prose))

    @cached_property
    def num_blanks(self) -> int:
        """The length of the blank text at the start."""
        return len(self.text) - len(self.text.lstrip())

    def is_within_whole(self, place: int) -> bool:
        return any(start < place < end for start, end in self.spans)

    def line(self, number: int) -> str:
        """Return a line without its end; the last one as far as it is there."""
        end = len(self.text) if self.is_last(number) else self.lines[number + 1].place - 1
        return self.text[self.lines[number].place : end]

    def is_last(self, number: int) -> bool:
        return number == len(self.lines) - 1


def best_seam(window: Window) -> Seam | None:
    """Return where to cut, None if every place would spoil something.

    Places behind the first third come first, so that pieces are not short without need. Within code, lines stay whole
    if any can. What is longer than a piece, as a link may be, is cut in the end.
    """
    least = (len(window.text) - 1) / 3
    paragraphs, lines, code_lines, poor_lines = _line_seams(window)
    for seams in (paragraphs, lines, code_lines):
        if seams and seams[-1].place >= least:
            return seams[-1]
    line_seams = sorted((*paragraphs, *lines, *code_lines), key=lambda seam: seam.place)
    if window.lines[-1].fence is not None and line_seams:
        return line_seams[-1]
    words = next(_places(window, _is_word_start), None)
    if words is not None and (words.place >= least or not line_seams):
        return words
    if line_seams:
        return line_seams[-1]
    return (
        next(_places(window, _is_clean), None)
        or next(reversed(poor_lines), None)
        or next(_places(window, _is_character), None)
    )


def _line_seams(window: Window) -> tuple[list[Seam], list[Seam], list[Seam], list[Seam]]:
    """Return starts of lines: of paragraphs, of others, of code, and those where a cut leaves an empty block."""
    paragraphs: list[Seam] = []
    lines: list[Seam] = []
    code_lines: list[Seam] = []
    poor_lines: list[Seam] = []
    for number, seam in enumerate(window.lines[1:], start=1):
        before, line = window.line(number - 1), window.line(number)
        if seam.place <= window.num_blanks or window.is_within_whole(seam.place):
            continue
        if seam.fence is not None:
            if not seam.fence.has(line):
                continue
            closes = may_be_fence(line) if window.is_last(number) else seam.fence.is_closed_by(line)
            is_poor = closes or window.lines[number - 1].fence is None
            (poor_lines if is_poor else code_lines).append(seam)
        elif TABLE_RULE.fullmatch(before) or TABLE_RULE.fullmatch(line):
            poor_lines.append(seam)
        else:
            (lines if before.strip(" \t>\r") else paragraphs).append(seam)
    return paragraphs, lines, code_lines, poor_lines


def _places(window: Window, is_good: Callable[[Window, int], bool]) -> Iterator[Seam]:
    """Yield places within lines, the last one first, where the rest of the line is no fence."""
    for number in range(len(window.lines) - 1, -1, -1):
        seam, line = window.lines[number], window.line(number)
        is_plain = number == 0 and window.is_within_line
        if may_be_fence(line) and not is_plain:
            continue
        for place in range(seam.place + len(line) - window.is_last(number), max(seam.place, window.num_blanks), -1):
            before, rest = line[: place - seam.place], line[place - seam.place :]
            if not rest or not is_good(window, place) or may_be_fence(rest):
                continue
            is_in_quote = is_plain or seam.fence is None or seam.fence.has(before)
            yield Seam(place, seam.fence if is_in_quote else fence_after(seam.fence, before))


def _is_word_start(window: Window, place: int) -> bool:
    before, after = window.text[place - 1], window.text[place]
    return before in " \t" and not after.isspace() and after not in BLOCK_SIGNS and _is_clean(window, place)


def _is_clean(window: Window, place: int) -> bool:
    return is_between_characters(window.text, place) and not window.is_within_whole(place)


def _is_character(window: Window, place: int) -> bool:
    return not "\udc00" <= window.text[place] <= "\udfff"
