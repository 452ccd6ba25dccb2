"""Changes between two runs: ratios of their figures with 95 % intervals, and what was not alike. Pure.

Windows of two runs are no pairs, so the interval is Welch's (The generalization of Student's problem, 1947) over the
logarithms of windows' figures, with its degrees of freedom rounded down.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import mean, variance
from typing import Any

from eyas.base.errors import UserError
from eyas.bench.endpoint.journal import Run
from eyas.bench.endpoint.records import Load
from eyas.bench.endpoint.reports.summary import Summary
from eyas.bench.stats import Interval, Spread, student_t

__all__ = ["FIGURES", "Change", "Difference", "changes", "differences", "ratio"]

MIN_WINDOWS = 3  # of each run, for an interval
# Name, heading, and whether more of it is better.
FIGURES = (
    ("total_tok_s", "tok/s", True),
    ("user_tok_s", "tok/s user", True),
    ("first_text_p50_s", "TTFT p50, ms", False),
    ("first_text_p99_s", "TTFT p99, ms", False),
    ("gap_p50_s", "gap p50, ms", False),
    ("gap_p99_s", "gap p99, ms", False),
    ("acceptance_length", "AL", True),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One figure of an arm under a load in both runs. `ratio` is after over before."""

    arm: str
    load: Load
    figure: str
    is_more_better: bool
    before: Spread
    after: Spread
    ratio: Interval | None

    @property
    def says(self) -> str:
        """`better`, `worse`, `not shown` where the interval holds 1, or `too few windows` for an interval."""
        if self.ratio is None:
            return "too few windows"
        if self.ratio.low <= 1 <= self.ratio.high:
            return "not shown"
        return "better" if (self.ratio.low > 1) == self.is_more_better else "worse"


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """One thing of which the runs say different things. Under other conditions figures are not comparable."""

    name: str
    before: str
    after: str
    is_condition: bool


def changes(before: Summary, after: Summary) -> list[Change]:
    """Return the figures that both runs have. Raises UserError where they share no arm and load.

    Arms are the same by name; two runs of one arm each are compared whatever its name is.
    """
    renamed = {before.arms[0]: after.arms[0]} if len(before.arms) == len(after.arms) == 1 else {}
    found = []
    for (arm, load), cell in before.cells.items():
        other = after.cells.get((renamed.get(arm, arm), load))
        if other is None:
            continue
        for name, _, is_more_better in FIGURES:
            ours, theirs = cell.figures.get(name), other.figures.get(name)
            if ours is not None and theirs is not None:
                found.append(
                    Change(
                        arm=arm,
                        load=load,
                        figure=name,
                        is_more_better=is_more_better,
                        before=ours,
                        after=theirs,
                        ratio=ratio(theirs.values, ours.values),
                    )
                )
    if not found:
        raise UserError(
            f"the runs share no arm under the same load: {_has(before)}; {_has(after)}; measure the same loads in both"
        )
    return found


def differences(before: Run, after: Run) -> list[Difference]:
    """Return what is not alike: first conditions, then what a comparison may be about, such as versions."""
    return [
        Difference(name=name, before=ours or "not known", after=theirs or "not known", is_condition=is_condition)
        for (name, ours, is_condition), (_, theirs, _) in zip(_facts(before), _facts(after), strict=True)
        if ours != theirs or (is_condition and not ours)
    ]


def ratio(above: Sequence[float], below: Sequence[float]) -> Interval | None:
    """Return the ratio of geometric means with its 95 % interval; None below three values a side, or with a zero."""
    if min(len(above), len(below)) < MIN_WINDOWS or min(*above, *below) <= 0:
        return None
    logs = [[math.log(value) for value in values] for values in (above, below)]
    middle = mean(logs[0]) - mean(logs[1])
    errors = [variance(one) / len(one) for one in logs]
    error = math.sqrt(sum(errors))
    if error == 0:
        return Interval(math.exp(middle), math.exp(middle), math.exp(middle))
    degrees = sum(errors) ** 2 / sum(e * e / (len(one) - 1) for e, one in zip(errors, logs, strict=True))
    half = student_t(0.975, int(degrees)) * error
    return Interval(*(math.exp(value) for value in (middle, middle - half, middle + half)))


def _facts(run: Run) -> Iterator[tuple[str, str, bool]]:
    """Yield name, value, and whether it is a condition, in the same order for every run."""
    stamp, settings = run.header.stamp, run.header.settings
    yield "hardware", stamp.hardware, True
    yield "simulated", stamp.simulated or "no", True
    yield "measured by", stamp.client, True
    yield "mode", _listed(_modes(window.load for window in run.windows)), True
    yield "prompts", _listed(_prompts(settings)), True
    yield (
        "sets of prompts",
        _listed({r.prompt.rpartition("/")[0] for w in run.windows for r in w.records}),
        True,
    )
    yield "arms", _listed(set(stamp.endpoint)), False
    yield "endpoints", "; ".join(f"{arm}: {words}" for arm, words in sorted(stamp.endpoint.items())), False
    yield "eyas", f"{stamp.eyas}, commit {stamp.commit or 'unknown'}", False
    yield "command", stamp.command, False


def _prompts(settings: dict[str, Any]) -> set[str]:
    named = settings.get("prompts", ())
    return {str(one) for one in named} if isinstance(named, list | tuple) else {str(named)}


def _listed(words: set[str]) -> str:
    return ", ".join(sorted(words))


def _has(run: Summary) -> str:
    return f"{', '.join(run.arms)} at {', '.join(load.text() for load in run.loads)} ({_listed(_modes(run.loads))})"


def _modes(loads: Iterable[Load]) -> set[str]:
    return {f"{load.mode}, {load.max_tokens} tokens" for load in loads}
