"""Acceptance and speed-up of each category of prompts. Pure.

Speed-ups of a category differ by load, as they do for all prompts together: here they are the geometric mean over loads
in each turn, and the interval is over turns.
"""

from __future__ import annotations

from math import exp, log
from statistics import mean, median

from eyas.bench.endpoint.figures import tpot_s
from eyas.bench.endpoint.records import Counts, Window
from eyas.bench.endpoint.reports.summary import Summary
from eyas.bench.stats import Interval, geometric_mean
from eyas.client.endpoint.acceptance.counts import total

__all__ = ["category_counts", "category_speed_up"]


def category_counts(summary: Summary, arm: str, category: str) -> Counts | None:
    """Return what the server says of the requests of a category; None where it says nothing of single requests."""
    records = [r for w in summary.windows if w.arm == arm for r in w.records if r.is_measured and r.error is None]
    return total(r.counts for r in records if r.category == category and r.counts is not None)


def category_speed_up(summary: Summary, arm: str, category: str) -> Interval | None:
    """Return the speed-up over the base with its 95 % interval; None below two turns of both with the category."""
    speeds = {(w.arm, w.load, w.turn): speed for w in summary.windows if (speed := _speed(w, category))}
    logs: dict[int, list[float]] = {}
    for (name, load, turn), speed in speeds.items():
        if name == arm and (base := speeds.get((summary.base, load, turn))):
            logs.setdefault(turn, []).append(log(speed / base))
    ratios = [exp(mean(turn)) for turn in logs.values()]
    return geometric_mean(ratios) if len(ratios) > 1 else None


def _speed(window: Window, category: str) -> float | None:
    """Return 1 / median TPOT of the requests of a category."""
    records = [r for r in window.records if r.is_measured and r.error is None and r.category == category]
    times = [time for r in records if (time := tpot_s(r))]
    return 1 / median(times) if times else None
