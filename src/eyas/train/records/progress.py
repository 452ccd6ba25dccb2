"""Progress of a run for people: one line that is renewed on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import TextIO

from eyas.base.units import readable
from eyas.train.steps.report import StepReport

__all__ = ["Progress", "duration"]

WINDOW = 20  # steps over which speeds are averaged
MIN_WIDTH = 79  # where a terminal does not say its width


class Progress:
    """Shows every step on a terminal, in a line of its width that each step renews, and every `every`-th one for good.

    The most useful figures stand first, so that a narrow terminal cuts off the others.
    """

    def __init__(self, *, every: int, out: TextIO | None = None, silent: bool = False) -> None:
        self._silent = silent
        self._every = every
        self._out = sys.stderr if out is None else out
        self._is_terminal = self._out.isatty()
        self._recent: list[StepReport] = []

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._is_terminal:
            self._print("", end="")  # an error message begins on an empty line

    def step(self, report: StepReport, num_steps: int) -> None:
        """Show a step of `num_steps`."""
        self._recent = [*self._recent, report][-WINDOW:]
        text = self._line(report, num_steps)
        if report.step % self._every == 0 or report.step == num_steps:
            self._print(text)
        elif self._is_terminal:
            self._print(text[: _width(self._out)], end="")

    def say(self, text: str) -> None:
        """Show a line that stays."""
        self._print(text)

    def _print(self, text: str, end: str = "\n") -> None:
        if self._silent:
            return
        with suppress(OSError):  # the terminal is gone; the training goes on
            print(f"\r{text}\033[K" if self._is_terminal else text, end=end, file=self._out, flush=True)

    def _line(self, report: StepReport, num_steps: int) -> str:
        seconds = sum(r.seconds for r in self._recent)
        tokens, taught = sum(r.num_tokens for r in self._recent), sum(r.num_taught for r in self._recent)
        target = sum(r.target_seconds for r in self._recent) / seconds
        left = seconds / len(self._recent) * (num_steps - report.step)
        return (
            f"step {report.step}/{num_steps}  left {duration(left)}  loss {report.loss:.3f}  "
            f"hits {_shown([100 * hit for hit in report.hits_by_depth], '.0f')} %  {tokens / seconds:,.0f} tok/s "
            f"({taught / seconds:,.0f} taught)  target {100 * target:.0f} %  memory {readable(report.peak_bytes)}  "
            f"loss by depth {_shown(report.loss_by_depth, '.2f')}"
        )


def _width(out: TextIO) -> int:
    """Return the columns of a terminal, less the last one: some terminals wrap once it is written."""
    try:
        return os.get_terminal_size(out.fileno()).columns - 1 or MIN_WIDTH
    except OSError:
        return MIN_WIDTH


def _shown(values: Sequence[float], form: str) -> str:
    return " ".join(format(value, form) for value in values)


def duration(seconds: float) -> str:
    """Format a duration: 42 s, 12 min, 3.5 h, 2.1 days."""
    for unit, size, form in (("days", 86400.0, ".1f"), ("h", 3600.0, ".1f"), ("min", 60.0, ".0f")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:{form}} {unit}"
    return f"{seconds:.0f} s"
