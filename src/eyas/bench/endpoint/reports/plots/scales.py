"""Axes: from values to positions in a picture, with ticks at round numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Axis", "around_1", "levels", "linear", "logarithmic", "number"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """`low` and `high` are its ends in units of the data (of their decimal logarithm if `is_log`).

    `ticks` are pairs of a value and its text; `title` has the unit.
    """

    title: str
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    is_log: bool = False

    def share(self, value: float) -> float:
        """Return where a value lies: 0 at the low end, 1 at the high end; values beyond lie at the end."""
        where = math.log10(max(value, 10**self.low)) if self.is_log else value
        return min(1.0, max(0.0, (where - self.low) / (self.high - self.low)))


def linear(title: str, values: Sequence[float], *, include: Sequence[float] = (0.0,), num_ticks: int = 5) -> Axis:
    """Return an axis over `values` and `include`, whose ends are ticks."""
    low, high = min(*values, *include), max(*values, *include)
    if low == high:
        low, high = (0.0, 2 * high) if high > 0 else (low - 1, high + 1)
    step = _round_step((high - low) / num_ticks)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    ticks = tuple((at * step, f"{at * step:,.{digits}f}") for at in range(first, last + 1))
    return Axis(title=title, low=first * step, high=last * step, ticks=ticks)


def around_1(title: str, values: Sequence[float], ends: Sequence[float]) -> Axis:
    """Return an axis over 1, ratios and the ends of their intervals: of those as far as twice or half the ratios go."""
    low, high = min(*values, 0.9) / 2, max(*values, 1.1) * 2
    return linear(title, [*values, *(min(high, max(low, end)) for end in ends)], include=(0.9, 1.1), num_ticks=7)


def logarithmic(title: str, low: float, high: float) -> Axis:
    """Return a logarithmic axis that holds `low` to `high`, both above 0: ticks at 1, 2, 5, or at powers of ten."""
    steps = (1, 2, 5) if high / low < 300 else (1,)
    marks = [step * 10.0**power for power in range(-9, 13) for step in steps]
    below = max((mark for mark in marks if mark <= low * (1 + 1e-9)), default=marks[0])
    above = min((mark for mark in marks if mark >= high * (1 - 1e-9)), default=marks[-1])
    if below == above:
        above = marks[marks.index(below) + 1]
    ticks = tuple((mark, number(mark)) for mark in marks if below <= mark <= above)
    return Axis(title=title, low=math.log10(below), high=math.log10(above), ticks=ticks, is_log=True)


def levels(title: str, texts: Sequence[str]) -> Axis:
    """Return an axis of named levels at 0, 1, 2, ..., equally far apart, with half a step of room at both ends."""
    return Axis(title=title, low=-0.5, high=len(texts) - 0.5, ticks=tuple(enumerate(map(str, texts))))


def number(value: float) -> str:
    """Format for people, with about three digits: 1,234, 56.7, 0.125."""
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value)) + 1e-9))
    text = f"{value:,.{min(digits, 9)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _round_step(step: float) -> float:
    """Return the smallest of 1, 2 and 5 times a power of ten that is not below `step`."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= step * (1 - 1e-9))
