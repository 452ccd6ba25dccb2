"""Progress of a run for people: one line that is renewed on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TextIO

from eyas.base.units import readable

__all__ = ["Progress", "StepReport", "duration"]

WINDOW = 20  # steps over which speeds are averaged


@dataclass(frozen=True, kw_only=True, slots=True)
class StepReport:
    """Figures of one step, over all processes. Losses and hits are means over the taught cells of a depth."""

    step: int  # steps done
    loss: float  # weighted by depth
    loss_by_depth: tuple[float, ...]
    hits_by_depth: tuple[float, ...]
    acceptance_by_depth: tuple[float, ...]  # sum of min(p, q)
    grad_norm: float
    lr: float
    num_tokens: int
    num_taught: int  # cells of depth 0
    seconds: float
    target_seconds: float  # of these, for the target's hidden states
    peak_bytes: int

    def row(self) -> dict[str, object]:
        """Return the fields of metrics.jsonl."""
        return {
            "loss": self.loss,
            "loss_by_depth": list(self.loss_by_depth),
            "hits_by_depth": list(self.hits_by_depth),
            "acceptance_by_depth": list(self.acceptance_by_depth),
            "grad_norm": self.grad_norm,
            "lr": self.lr,
            "tokens": self.num_tokens,
            "taught": self.num_taught,
            "tokens_per_s": self.num_tokens / self.seconds,
            "taught_per_s": self.num_taught / self.seconds,
            "target_share": self.target_seconds / self.seconds,
            "peak_bytes": self.peak_bytes,
        }


class Progress:
    """Shows every step on a terminal, and every `every`-th one elsewhere."""

    def __init__(self, num_steps: int, *, every: int, out: TextIO | None = None, silent: bool = False) -> None:
        self.num_steps = num_steps
        self._silent = silent
        self._every = every
        self._out = sys.stderr if out is None else out
        self._is_terminal = self._out.isatty()
        self._recent: list[StepReport] = []
        self._began = time.monotonic()

    def step(self, report: StepReport) -> None:
        self._recent = [*self._recent, report][-WINDOW:]
        is_logged = report.step % self._every == 0 or report.step == self.num_steps
        if self._silent or (not self._is_terminal and not is_logged):
            return
        text = self._line(report)
        with suppress(OSError):  # the terminal is gone; the training goes on
            if not self._is_terminal:
                print(text, file=self._out, flush=True)
            else:
                print(f"\r{text}\033[K", end="\n" if is_logged else "", file=self._out, flush=True)

    def say(self, text: str) -> None:
        """Show a line that stays."""
        if self._silent:
            return
        with suppress(OSError):
            print(f"\r{text}\033[K" if self._is_terminal else text, file=self._out, flush=True)

    def _line(self, report: StepReport) -> str:
        seconds = sum(r.seconds for r in self._recent)
        tokens, taught = sum(r.num_tokens for r in self._recent), sum(r.num_taught for r in self._recent)
        target = sum(r.target_seconds for r in self._recent) / seconds
        left = seconds / len(self._recent) * (self.num_steps - report.step)
        return (
            f"step {report.step}/{self.num_steps}  loss {report.loss:.3f} ({_shown(report.loss_by_depth, '.2f')})  "
            f"hits {_shown([100 * hit for hit in report.hits_by_depth], '.0f')} %  "
            f"{tokens / seconds:,.0f} tok/s, {taught / seconds:,.0f} taught  target {100 * target:.0f} %  "
            f"memory {readable(report.peak_bytes)}  left {duration(left)}"
        )


def _shown(values: Sequence[float], form: str) -> str:
    return " ".join(format(value, form) for value in values)


def duration(seconds: float) -> str:
    """Format a duration: 42 s, 12 min, 3.5 h, 2.1 days."""
    for unit, size, form in (("days", 86400.0, ".1f"), ("h", 3600.0, ".1f"), ("min", 60.0, ".0f")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:{form}} {unit}"
    return f"{seconds:.0f} s"
