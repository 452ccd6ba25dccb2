"""Advice from the windows of a sweep: which engine, how many drafts, at which load, each with its interval.

The verdict on drafts is that of `bench/endpoint`: at least five pairs, and an interval that does not hold 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import mean, median

from msgspec import Struct
from msgspec.structs import replace

from eyas.bench.endpoint.figures import figures_of
from eyas.bench.endpoint.records import Window
from eyas.bench.endpoint.verdict import MIN_PAIRS, Finding, total_speed, verdict
from eyas.bench.stats import Interval, geometric_mean, holm
from eyas.client.endpoint.acceptance.counts import total
from eyas.recipes.plan import Measured, Range
from eyas.tune.arms import Candidate, expected
from eyas.tune.schedule import PLAN_WINDOWS, TURNS, Cell
from eyas.tune.sweep import window_name

__all__ = ["Advice", "Recommendation", "advise", "lines", "rows"]


class Recommendation(Struct, frozen=True, kw_only=True):
    """The advice for one engine at one load. `finding` compares the arm with drafts that led with none.

    `drafts` is that arm if it pays, else the one without drafts.
    """

    cell: Cell
    base: Candidate
    drafts: Candidate
    led: Candidate | None
    finding: Finding | None
    speeds: tuple[float, ...]  # tokens per second of `drafts`, by window


class Advice(Struct, frozen=True, kw_only=True):
    """Choices by engine and load, and the findings between the best arms of two engines, by load."""

    choices: tuple[Recommendation, ...]
    duel: tuple[str, ...] = ()  # sentences


def advise(engines: Sequence[Sequence[Candidate]], cells: Sequence[Cell], windows: Sequence[Window]) -> Advice:
    """Return the advice of all that was measured. Of each engine the first candidate is the base."""
    choices = [
        choice
        for candidates in engines
        for cell in cells
        if (choice := _choice(candidates[0], candidates[1:], cell, windows)) is not None
    ]
    return Advice(choices=tuple(choices))


def lines(advice: Advice) -> Iterator[str]:
    """Yield the advice for people."""
    for choice in advice.choices:
        load = f"{choice.cell.concurrency} at once, prompts of {choice.cell.context} tokens"
        yield f"{load}: {choice.drafts.name}: {_per_second(choice.speeds)}"
        if choice.led is not None and choice.finding is not None:
            yield f"    {choice.led.name}: {_finding(choice.finding)}"
    yield from advice.duel


def rows(
    engines: Sequence[Sequence[Candidate]], cells: Sequence[Cell], windows: Sequence[Window], date: str
) -> tuple[Measured, ...]:
    """Return what plans read: every arm and load that has windows, next to what the model expected."""
    return tuple(
        row
        for candidates in engines
        for cell in cells
        for found in [_findings(candidates[0], candidates[1:], cell, windows)]
        for candidate in candidates
        if (row := _row(candidate, cell, windows, found.get(candidate.name), date)) is not None
    )


def _choice(
    base: Candidate, others: Sequence[Candidate], cell: Cell, windows: Sequence[Window]
) -> Recommendation | None:
    if not _of(windows, base.name, cell):
        return None
    found = _findings(base, others, cell, windows)
    compared = [(one, finding) for one in others if (finding := found.get(one.name)) is not None]
    # What is shown first: an arm that was left after one pair leads nothing.
    led, finding = max(compared, key=lambda pair: _rank(pair[1]), default=(None, None))
    chosen = led if led is not None and finding is not None and finding.says == "pays" else base
    return Recommendation(
        cell=cell, base=base, drafts=chosen, led=led, finding=finding, speeds=_speeds(_of(windows, chosen.name, cell))
    )


def _rank(finding: Finding) -> tuple[bool, float]:
    assert finding.speed_up is not None
    return finding.says != "not shown", finding.speed_up.value


def _findings(
    base: Candidate, others: Sequence[Candidate], cell: Cell, windows: Sequence[Window]
) -> dict[str, Finding]:
    """Return the findings of all arms that have two pairs, by name.

    Of many arms one pays by chance more often than one alone does: what says so must hold for all together (Holm).
    """
    each = {one.name: _against(base, one, cell, windows) for one in others}
    found = {name: one for name, one in each.items() if one is not None and one.speed_up is not None}
    tested = [name for name, one in found.items() if len(one.ratios) >= MIN_PAIRS]
    for name, holds in zip(tested, holm([found[name].p for name in tested]), strict=True):
        if not holds and found[name].says != "not shown":
            why = f"by chance one of {len(tested)} arms is as far from 1 in more than 5 % of sweeps"
            found[name] = replace(found[name], says="not shown", why=why)
    return found


def _against(base: Candidate, one: Candidate, cell: Cell, windows: Sequence[Window]) -> Finding | None:
    names = [window_name(candidate.name, cell.context) for candidate in (base, one)]
    own = [window for window in windows if window.turn < TURNS]
    findings = verdict(own, base=names[0], arm=names[1], speed=total_speed).findings
    return next((one for one in findings if one.load.concurrency == cell.concurrency), None)


def _row(one: Candidate, cell: Cell, windows: Sequence[Window], finding: Finding | None, date: str) -> Measured | None:
    own = _of(windows, one.name, cell)
    speeds = _speeds(own)
    if not speeds:
        return None
    firsts = [value for window in own for value in figures_of(window).first_text_s]
    added = total(window.counts for window in own if window.counts is not None)
    gain = None if finding is None else finding.speed_up
    return Measured(
        engine=one.engine,
        version=one.plan.choice.version,
        head=one.plan.choice.head or "",
        draft_tokens=one.drafts,
        context=cell.context,
        concurrency=cell.concurrency,
        windows=len(speeds),
        tokens_per_second=round(mean(speeds), 2),
        interval=_range(geometric_mean(speeds)) if len(speeds) >= PLAN_WINDOWS else None,
        expected=expected(one, cell),
        speedup=None if gain is None or finding is None or len(finding.ratios) < PLAN_WINDOWS else _range(gain),
        finding="not shown" if finding is None else finding.says,
        first_token_s=median(firsts) if firsts else None,
        acceptance_length=None if added is None else added.length,
        date=date,
    )


def _of(windows: Sequence[Window], name: str, cell: Cell) -> list[Window]:
    wanted = window_name(name, cell.context)
    return [one for one in windows if one.arm == wanted and one.load.concurrency == cell.concurrency and not one.void]


def _speeds(windows: Sequence[Window]) -> tuple[float, ...]:
    return tuple(speed for window in windows if (speed := total_speed(window)))


def _range(interval: Interval) -> Range:
    return Range(low=round(interval.low, 4), high=round(interval.high, 4))


def _per_second(speeds: Sequence[float]) -> str:
    if len(speeds) < PLAN_WINDOWS:
        return f"{mean(speeds):,.0f} tok/s, {len(speeds)} window{'s' * (len(speeds) != 1)}"
    found = geometric_mean(speeds)
    return f"{found.value:,.0f} tok/s ({found.low:,.0f}..{found.high:,.0f})"


def _finding(finding: Finding) -> str:
    assert finding.speed_up is not None
    gain, num = f"x{finding.speed_up.value:.2f} of none", len(finding.ratios)
    if num >= PLAN_WINDOWS:
        gain += f" ({finding.speed_up.low:.2f}..{finding.speed_up.high:.2f})"
    why = f": {finding.why}" if finding.why else ""
    return f"{finding.says}{why}, {gain}, {num} pairs"
