"""Finds text that repeats itself without end, while it is being written: a symbol, a word, a sentence, a block of code.

The text is looked at in steps of 64 code points, at places that do not depend on how it is cut into chunks. The last
occurrence of a step's text gives a candidate period; from there on each step is compared with the text one period
before. Both are single calls on strings, so that a code point costs a fraction of a microsecond. Only the newest 8,192
to 12,288 code points are kept; longer periods than 8,000 are not seen.

How often something occurs does not tell a loop from a table, a ruler or a chorus. The length of the repeating text
does, with a limit for each kind of it. What may have an end by its form (code, tables, JSON, markup) gets more room.
Known is the idea of looking for periods from vLLM's `repetition_detection` (PR 35451), which counts occurrences.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from operator import eq
from typing import Literal

__all__ = ["Detector", "Loop", "LoopKind", "kind_of", "longest_loop", "span_of"]

STEP = 64
FAULT_SPAN = 96  # the first step is as long: an answer of nothing but one of FAULTS ends early
RING = 8192  # code points that are kept, and at most this and SLACK
SLACK = 4096
MAX_PERIOD = RING - 3 * STEP
TRIES = 4  # candidates that are looked at in a step

# fault: the answer is one symbol from its start, as a broken kernel or speculation writes it. symbol: one code point,
# perhaps with spaces between, or one special token. ruler: a code point of which people draw lines. grid: few letters,
# as in matrices and drawings. short: up to 8 code points. line: up to 128. block: more.
LoopKind = Literal["fault", "symbol", "ruler", "grid", "short", "line", "block"]

FAULTS = frozenset("!\0\ufffd")  # argmax of NaN is token 0, which is `!` in many vocabularies
SPECIAL = frozenset(("<unk>", "<pad>", "<s>", "</s>", "<|endoftext|>", "[UNK]", "[PAD]", "<0x00>"))
RULERS = frozenset("=-_*#.~+^:|/\\<>\u00b7\u2022\u2026\u30fb\u3002\uff0e")
WHITESPACE = frozenset(" \n\r\t")
LITERALS = re.compile(r"(?i)\b(?:true|false|null|none|nil|nan|inf|0x[0-9a-f]*)\b")
NO_WORD = re.compile(r"\W")
MARKUP = re.compile(r"</?\w[^<>]*>")
FENCE = "```"

SPANS: dict[LoopKind, int] = {
    "fault": FAULT_SPAN,
    "symbol": 512,
    "ruler": 2048,
    "grid": 4096,
    "short": 768,
    "line": 1024,
    "block": 2048,
}
SHORT_GRID_SPAN = 2048
COPIES: dict[LoopKind, int] = {"grid": 4, "line": 8, "block": 4}  # and no fewer
SUSPECT_SPAN = 2 * min(SPANS["symbol"], SPANS["short"]) // 3  # no kind is suspected earlier


@dataclass(frozen=True, kw_only=True, slots=True)
class Loop:
    """Text that repeats itself: `unit` over and over, `span` code points in all, the last of them the `position`-th."""

    kind: LoopKind
    unit: str
    span: int
    position: int

    @property
    def is_symbol(self) -> bool:
        """Whether it is one symbol, which points to a fault of the engine rather than to the model's habits."""
        return self.kind in ("fault", "symbol")

    def __str__(self) -> str:
        """Say how long it is. The text itself stays out: it belongs to the client."""
        return f"{self.span} characters that repeat every {len(self.unit)} ({self.kind})"


def kind_of(unit: str) -> LoopKind:
    """Return the kind of a loop that repeats `unit`, wherever in the unit it begins."""
    period = len(unit)
    if period == 1 and is_ruler(unit):
        return "ruler"
    if period <= 8 and len(symbols := set(unit) - WHITESPACE) == 1 and not is_ruler(*symbols):
        return "symbol"  # with spaces or line ends between: ` !` is a token, too
    if any(len(token) == period and token in unit + unit for token in SPECIAL):
        return "symbol"
    if 4 * num_letters(unit) <= period:
        return "grid"
    return "short" if period <= 8 else "line" if period <= 128 else "block"


def num_letters(unit: str) -> int:
    """Return how many letters `unit` over and over has in each copy, those of LITERALS left out."""
    if (gap := NO_WORD.search(unit)) is not None:  # begin there, so that no word is cut
        unit = LITERALS.sub("", unit[gap.start() :] + unit[: gap.start()])
    return sum(map(str.isalpha, unit))


def is_ruler(symbol: str) -> bool:
    """Return whether people write long rows of `symbol`: lines, boxes and bars, white space, digits."""
    return symbol in RULERS or symbol.isspace() or symbol.isdigit() or "\u2500" <= symbol <= "\u25ff"


def span_of(unit: str) -> int:
    """Return the span in code points from which `unit` over and over is a loop, outside of code fences."""
    kind, period = kind_of(unit), len(unit)
    span = SHORT_GRID_SPAN if kind == "grid" and period <= 8 else SPANS[kind]
    return max(span, COPIES.get(kind, 1) * period) * (2 if is_structured(unit) else 1)


def is_structured(unit: str) -> bool:
    """Return whether `unit` is part of a table, of JSON (plain, or escaped inside a string) or of markup."""
    if len(unit) <= 8:
        return "|" in unit and len(unit) > 1
    twice = unit + unit  # wherever it begins
    is_row = unit.count("|") > 1 or unit.count("\t") > 1
    return is_row or '":' in twice or '\\"' in twice or "\\n" in twice or MARKUP.search(twice) is not None


class Detector:
    """Reads one text, and tells of a loop in it once the loop is as long as its kind must be.

    `patience` is asked once for each suspect, at two thirds of its limit, and returns a factor for the limit; it gets
    the unit. Inside a code fence the limit is twice as high.
    """

    __slots__ = (
        "_due",
        "_in_fence",
        "_is_over",
        "_limit",
        "_matched",
        "_need",
        "_patience",
        "_pending",
        "_period",
        "_read",
        "_text",
    )

    def __init__(self, patience: Callable[[str], int] | None = None) -> None:
        self._patience = patience
        self._pending = ""
        self._need = FAULT_SPAN  # code points that the next step takes
        self._text = ""
        self._read = 0
        self._is_over = False
        self._in_fence = False
        self._period = 0  # 0: no candidate
        self._matched = 0  # code points at the end that equal those one period before
        self._due = 0  # the span at which the candidate is looked at again
        self._limit = 0  # the span from which the suspect is a loop; 0: no suspect yet

    def feed(self, text: str) -> Loop | None:
        """Read more text. Returns the first loop, once; after it nothing is looked at any more."""
        pending = self._pending + text
        need = self._need
        size = len(pending)
        if size < need:
            self._pending = pending
            return None
        start = 0
        while size - start >= need and not self._is_over:
            loop = self._step(pending[start : start + need])
            start += need
            self._need = need = STEP
            if loop is not None:
                self._is_over = True
                return loop
        self._pending = "" if self._is_over else pending[start:]
        return None

    def _step(self, block: str) -> Loop | None:
        """Take the next `block` of the text."""
        text = self._text + block
        if len(text) > RING + SLACK:
            text = text[-RING:]
        self._text = text
        self._read += len(block)
        if FENCE in text[-len(block) - 2 :]:
            self._look_for_fences(text, len(text) - len(block) - 2)
        if len(text) == FAULT_SPAN:
            return self._fault(text)
        period = self._period
        if period and text[-STEP - period : -period] == block:
            self._matched += STEP
        elif not self._search(text, block):
            return None
        return self._judge(text) if self._matched + self._period >= self._due else None

    def _look_for_fences(self, text: str, start: int) -> None:
        at = text.find(FENCE, max(start, 0))
        while at >= 0:
            if not text[text.rfind("\n", 0, at) + 1 : at].strip(" \t>"):
                self._in_fence = not self._in_fence
            at = text.find(FENCE, at + len(FENCE))

    def _fault(self, text: str) -> Loop | None:
        """Tell of an answer that is one symbol from its start."""
        unit = text[0]
        if unit not in FAULTS or text.count(unit) != len(text) or self._factor(unit) > 1:
            return None
        return Loop(kind="fault", unit=unit, span=len(text), position=self._read)

    def _search(self, text: str, block: str) -> bool:
        """Take the candidate that most of the text's end repeats, if there is one, and return whether there is.

        Those with whole copies come first: an earlier row of a symbol would else hide the loop that it now is.
        """
        last = len(text) - STEP
        lowest = max(0, last - MAX_PERIOD)
        end = len(text) - 1
        best = (False, 0)
        self._period = 0
        for _ in range(TRIES):
            at = text.rfind(block, lowest, end)
            if at < 0:
                break
            period = last - at
            matched = STEP + common_suffix(text, last, at)
            if (matched >= period, matched) > best:
                best = (matched >= period, matched)
                self._period, self._matched = period, matched
            end = at + STEP - (matched - STEP) - 1  # what begins later lies inside the repeating text found here
        self._due = SUSPECT_SPAN
        self._limit = 0
        return self._period > 0

    def _judge(self, text: str) -> Loop | None:
        """Make the candidate a suspect, and the suspect a loop, once they are long enough."""
        span = self._matched + self._period
        unit = text[-self._period :]
        if not self._limit:
            limit = span_of(unit)
            if 3 * span < 2 * limit:
                self._due = (2 * limit + 2) // 3
                return None
            self._limit = limit * self._factor(unit)
        if span < self._limit:
            self._due = self._limit
            return None
        return Loop(kind=kind_of(unit), unit=unit, span=span, position=self._read)

    def _factor(self, unit: str) -> int:
        factor = 2 if self._in_fence and FENCE not in unit else 1
        if self._patience is not None:
            factor *= self._patience(unit)
        return factor


def common_suffix(text: str, one: int, other: int) -> int:
    """Return how many code points before `one` equal those before `other`, which is less."""

    def is_same(size: int, more: int) -> bool:
        low = other - size - more
        return low >= 0 and text[low : other - size] == text[one - size - more : one - size]

    size, more = 0, STEP
    while is_same(size, more):
        size += more
        more *= 2
    while more := more // 2:
        if is_same(size, more):
            size += more
    return size


def longest_loop(text: str, *, max_period: int, min_copies: int) -> Loop | None:
    """Return the longest part of a whole text that is at least `min_copies` of a unit of at most `max_period`.

    It looks at every code point `max_period` times: for short texts, and units too short for a `Detector`.
    """
    found = None
    longest = 0
    for period in range(1, max_period + 1):
        same = bytes(map(eq, text[period:], text))
        run = max(same.split(b"\0"), key=len)
        span = len(run) + period
        if span > longest and span >= min_copies * period:
            longest = span
            start = same.index(run)
            unit = text[start : start + period]
            found = Loop(kind=kind_of(unit), unit=unit, span=span, position=start + span)
    return found
