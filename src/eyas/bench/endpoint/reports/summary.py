"""Contents of a report: figures of each arm under each load, speed-ups, acceptance. Pure.

A void window counts in none of them, and is listed with its reason. The first arm of a run is what others are compared
with, unless another is named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from eyas.base.errors import UserError, nearest
from eyas.bench.endpoint.figures import Figures, Slo, figures_of
from eyas.bench.endpoint.journal import Run
from eyas.bench.endpoint.records import Counts, Load, Record, Stamp, Window
from eyas.bench.endpoint.verdict import Finding, Verdict, conversation_speed, joules_per_token, verdicts_of
from eyas.bench.stats import Spread, percentile
from eyas.client.endpoint.acceptance.counts import mean_length, total

__all__ = ["Cell", "Summary", "summary"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One arm under one load. A figure has a value a turn; it is missing from `turns` where nothing was measured.

    Samples are those of all its windows, in seconds. `counts` are the server's counters, or else what its requests say.
    """

    arm: str
    load: Load
    num_windows: int
    num_requests: int
    num_failed: int
    num_short: int  # of fixed length, but ended before
    is_exact: bool  # the server says how many tokens the first chunk had
    turns: Mapping[str, Mapping[int, float]]
    samples: Mapping[str, tuple[float, ...]]
    counts: Counts | None
    request_length: float | None

    @property
    def figures(self) -> dict[str, Spread]:
        """The figures with their spread over turns."""
        return {name: Spread(tuple(values.values())) for name, values in self.turns.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """`cells` are in order of arms, then loads; `verdicts` are of all arms but the base, in order.

    `void` are the arms, loads and reasons of windows that do not count; `windows` are the others.
    """

    stamp: Stamp
    base: str
    arms: tuple[str, ...]
    loads: tuple[Load, ...]
    cells: Mapping[tuple[str, Load], Cell]
    verdicts: tuple[Verdict, ...]
    void: tuple[tuple[str, Load, str], ...]
    errors: Mapping[str, int]
    windows: tuple[Window, ...] = field(repr=False)

    def finding(self, arm: str, load: Load) -> Finding | None:
        """Return what is shown of an arm under a load, against the base."""
        found = (one for made in self.verdicts if made.arm == arm for one in made.findings)
        return next((one for one in found if one.load == load), None)

    @property
    def categories(self) -> tuple[str, ...]:
        return tuple(sorted({r.category for w in self.windows for r in w.records}))


@dataclass(frozen=True, slots=True)
class _Measured:
    """A window with its figures and the requests that they count."""

    window: Window
    figures: Figures
    records: tuple[Record, ...]


FIGURES: dict[str, Callable[[_Measured], float | None]] = {
    "total_tok_s": lambda one: one.figures.tokens_per_s,
    "user_tok_s": lambda one: conversation_speed(one.window),
    "first_text_p50_s": lambda one: _percentile(one.figures.first_text_s, 50),
    "first_text_p99_s": lambda one: _percentile(one.figures.first_text_s, 99),
    "first_final_p50_s": lambda one: _percentile(one.figures.first_final_s, 50),
    "gap_p50_s": lambda one: _percentile(one.figures.gaps_s, 50),
    "gap_p99_s": lambda one: _percentile(one.figures.gaps_s, 99),
    "acceptance_length": lambda one: counts.length if (counts := _counts([one])) is not None else None,
    "tokens_per_chunk": lambda one: one.figures.tokens_per_chunk,
    "good_per_s": lambda one: one.figures.good_per_s,
    "cached_share": lambda one: one.figures.cached_share,
    "joules_per_token": lambda one: joules_per_token(one.window),
    "memory_bytes": lambda one: None if one.window.memory is None else one.window.memory.used_bytes,
    "client_lag_s": lambda one: max(one.window.lag.loop_p99_s, one.window.lag.send_p99_s),
}


def summary(run: Run, *, base: str | None = None, slo: Slo | None = None) -> Summary:
    """Compute what reports show. Raises UserError for a base that is no arm, or a run without a usable window."""
    windows = tuple(w for w in run.windows if not w.void)
    arms = tuple(dict.fromkeys(w.arm for w in run.windows))
    if base is not None and base not in arms:
        raise UserError(f"there is no arm '{base}'{nearest(base, arms)}; arms are {', '.join(arms) or 'none'}")
    if base is not None:
        arms = (base, *(arm for arm in arms if arm != base))
    loads = tuple(sorted({w.load for w in run.windows}, key=_order))
    groups: dict[tuple[str, Load], list[_Measured]] = {(arm, load): [] for arm in arms for load in loads}
    for window in windows:
        groups[window.arm, window.load].append(_measured(window, slo))
    cells = {key: _cell(*key, group) for key, group in groups.items() if group}
    errors = Counter(r.error for w in windows for r in w.records if r.error is not None)
    return Summary(
        stamp=run.header.stamp,
        base=arms[0] if arms else "",
        arms=arms,
        loads=loads,
        cells=cells,
        verdicts=_verdicts(run.windows, arms),
        void=tuple((w.arm, w.load, w.void) for w in run.windows if w.void),
        errors=dict(errors.most_common()),
        windows=windows,
    )


def _order(load: Load) -> tuple[str, int, float, float]:
    return load.mode, load.max_tokens, load.concurrency or 0, load.rate or 0


def _verdicts(windows: Sequence[Window], arms: Sequence[str]) -> tuple[Verdict, ...]:
    try:
        return tuple(verdicts_of(windows, arms))
    except OverflowError as error:
        raise UserError(
            "the speeds of arms differ by more than numbers hold; is this a run that was measured?"
        ) from error


def _measured(window: Window, slo: Slo | None) -> _Measured:
    records = tuple(r for r in window.records if r.is_measured and r.error is None)
    return _Measured(window, figures_of(window, slo), records)


def _cell(arm: str, load: Load, windows: list[_Measured]) -> Cell:
    turns = {
        name: {one.window.turn: value for one in windows if (value := figure(one)) is not None}
        for name, figure in FIGURES.items()
    }
    records = [record for one in windows for record in one.records]
    return Cell(
        arm=arm,
        load=load,
        num_windows=len(windows),
        num_requests=sum(one.figures.num_measured for one in windows),
        num_failed=sum(one.figures.num_failed for one in windows),
        num_short=sum(one.figures.num_short for one in windows),
        is_exact=all(one.figures.is_exact for one in windows if one.figures.tpot_s),
        turns={name: values for name, values in turns.items() if values},
        samples={
            "first_text_s": tuple(sorted(value for one in windows for value in one.figures.first_text_s)),
            "gap_s": tuple(sorted(value for one in windows for value in one.figures.gaps_s)),
        },
        counts=_counts(windows),
        request_length=mean_length(r.counts for r in records if r.counts is not None),
    )


def _counts(windows: Sequence[_Measured]) -> Counts | None:
    """Sum the server's counters; those of requests where they saw no round: a request counts there when it is over."""
    counters = total(one.window.counts for one in windows if one.window.counts is not None)
    return counters or total(r.counts for one in windows for r in one.records if r.counts is not None)


def _percentile(values: Sequence[float], percent: float) -> float | None:
    return percentile(values, percent) if values else None
