"""The table of all figures, as texts for people and as values for scripts. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from eyas.bench.endpoint.records import Load
from eyas.bench.endpoint.reports.summary import Cell, Summary
from eyas.bench.endpoint.verdict import Finding
from eyas.bench.stats import Interval

if TYPE_CHECKING:
    from eyas.bench.endpoint.lossless.summary import Result

__all__ = ["FURTHER_DEFINITIONS", "METHOD", "Shown", "figures_json", "lossless_lines", "notes", "table"]

COLUMNS: tuple[tuple[str, str, float, int], ...] = (  # heading, figure, factor, digits
    ("tok/s", "total_tok_s", 1, 1),
    ("tok/s user", "user_tok_s", 1, 1),
    ("TTFT p50, ms", "first_text_p50_s", 1000, 1),
    ("TTFT p99, ms", "first_text_p99_s", 1000, 1),
    ("TTFT final p50, ms", "first_final_p50_s", 1000, 1),
    ("gap p50, ms", "gap_p50_s", 1000, 2),
    ("gap p99, ms", "gap_p99_s", 1000, 2),
    ("tok/chunk", "tokens_per_chunk", 1, 2),
    ("goodput, 1/s", "good_per_s", 1, 2),
    ("cached, %", "cached_share", 100, 0),
    ("memory, GiB", "memory_bytes", 2**-30, 1),
    ("J/token", "joules_per_token", 1, 3),
    ("client lag, ms", "client_lag_s", 1000, 2),
)
SHORT = ("total_tok_s", "user_tok_s", "first_text_p50_s", "gap_p99_s")
METHOD = "Median over windows (smallest..largest); of a speed-up the geometric mean over pairs with its 95 % interval."
FURTHER_DEFINITIONS = """\
speed-up    tok/s user of an arm over that of the first one, of windows of the same load and turn
AL          acceptance length: tokens that a pass of the model commits, its own included, (accepted + passes) / passes;
            over all passes, or, by request, the mean of the requests' own
break-even  the acceptance length at which the arm would be as fast as the first one
memory      the most that is used on all of the machine, by the GPU's driver or by MemAvailable
J/token     energy of the GPUs over tokens, in the steady part
client lag  p99 of how late timers and requests of the measuring process were"""
APPROXIMATE = "~"  # before a speed whose first chunk may hold more tokens than one


class Shown(NamedTuple):
    """A figure as text, and its spread or interval, "" where there is none."""

    value: str
    spread: str = ""


MISSING = Shown("-")


def table(summary: Summary, *, is_short: bool = False) -> tuple[list[str], list[list[Shown]]]:
    """Return a heading and a row for each arm and load. Figures that no row has are left out."""
    has = {name for cell in summary.cells.values() for name in cell.figures}
    columns = [c for c in COLUMNS if c[1] in has and (not is_short or c[1] in SHORT)]
    has_speed_ups = any(one.ratios for made in summary.verdicts for one in made.findings)
    has_counts = any(_length(cell) for cell in summary.cells.values())
    middle = [*(["speed-up"] if has_speed_ups else []), *(["AL", "break-even AL"] if has_counts else [])]
    names = [head for head, *_ in columns]
    heads = ["arm", "load", *names[:2], *middle, *names[2:], "windows", "requests", "failed"]
    rows = []
    for arm in summary.arms:
        for load in summary.loads:
            if (cell := summary.cells.get((arm, load))) is None:
                continue
            texts = [_text(cell, name, factor, digits) for _, name, factor, digits in columns]
            finding = summary.finding(arm, load)
            speed = [_speed_up(finding)] if has_speed_ups else []
            length = [_length(cell) or MISSING, _break_even(finding)] if has_counts else []
            counts = [cell.num_windows, cell.num_requests, cell.num_failed]
            first = [Shown(arm), Shown(_full_load(summary, load))]
            rows.append([*first, *texts[:2], *speed, *length, *texts[2:], *(Shown(f"{count:,}") for count in counts)])
    return heads, rows


def notes(summary: Summary) -> Iterator[str]:
    """Yield what has to be known before the table is believed: what counts in no figure, and what may be wrong."""
    for arm, load, reason in summary.void:
        yield f"void, in no figure: {arm}, {load.text()}: {reason}"
    for error, count in summary.errors.items():
        yield f"failed: {count} \u00d7 {error}"
    if num_none := sum(not window.is_warm and not window.warm_up_s for window in summary.windows):
        yield f"no warm-up before {num_none} of {len(summary.windows)} windows: what begins slowly is in the figures"
    if num_cold := sum(not window.is_warm and window.warm_up_s > 0 for window in summary.windows):
        yield f"{num_cold} of {len(summary.windows)} windows began before their speed was steady; give more --warm-up"
    if num_short := sum(cell.num_short for cell in summary.cells.values()):
        yield f"{num_short} answers ended before their fixed length; the endpoint heeds no ignore_eos"
    if any(not cell.is_exact and "user_tok_s" in cell.figures for cell in summary.cells.values()):
        yield f"{APPROXIMATE}: the server does not count tokens along, so the first chunk is taken to hold one"


def lossless_lines(found: Result) -> list[str]:
    """Return the words on whether answers are the same, and where that was compared."""
    stamp = found.stamp
    where = "; ".join(f"{arm}: {words}" for arm, words in stamp.endpoint.items())
    lines = [*found.lossless.lines(), f"compared {stamp.date}, eyas commit {stamp.commit or 'unknown'}; {where}"]
    return [*([stamp.simulated] if stamp.simulated else []), *lines]


def figures_json(summary: Summary) -> dict[str, Any]:
    """Return all figures with the spread of each, for scripts."""
    cells = [
        {
            "arm": cell.arm,
            **_load_json(cell.load),
            "windows": cell.num_windows,
            "requests": cell.num_requests,
            "failed": cell.num_failed,
            **{name: spread.json() for name, spread in cell.figures.items()},
            "acceptance_length_by_token": cell.counts.length if cell.counts is not None else None,
            "acceptance_length_by_request": cell.request_length,
        }
        for cell in summary.cells.values()
    ]
    return {"base": summary.base, "cells": cells, "verdicts": [one.json() for one in summary.verdicts]}


def _load_json(load: Load) -> dict[str, Any]:
    return {"concurrency": load.concurrency, "rate": load.rate, "mode": load.mode, "max_tokens": load.max_tokens}


def _full_load(summary: Summary, load: Load) -> str:
    """Return the load in words, with its mode where the run has several."""
    has_modes = len({(one.mode, one.max_tokens) for one in summary.loads}) > 1
    return load.text() + (f", {load.mode}, {load.max_tokens} tokens" if has_modes else "")


def _text(cell: Cell, name: str, factor: float, digits: int) -> Shown:
    spread = cell.figures.get(name)
    if spread is None:
        return MISSING
    low, high = (f"{factor * end:,.{digits}f}" for end in (min(spread.values), max(spread.values)))
    mark = APPROXIMATE if name == "user_tok_s" and not cell.is_exact else ""
    return Shown(f"{mark}{factor * spread.median:,.{digits}f}", f"{low}..{high}" if low != high else "")


def _speed_up(one: Finding | None) -> Shown:
    if one is None or not one.ratios:
        return MISSING
    return Shown(f"{one.ratios[0]:.2f}") if one.speed_up is None else _interval(one.speed_up)


def _break_even(one: Finding | None) -> Shown:
    return MISSING if one is None or one.break_even is None else _interval(one.break_even)


def _interval(one: Interval) -> Shown:
    return Shown(f"{one.value:.2f}", f"{one.low:.2f}..{one.high:.2f}")


def _length(cell: Cell) -> Shown | None:
    length = cell.counts.length if cell.counts is not None else None
    if length is None or length == 1:
        return None
    return Shown(f"{length:.2f}", f"{cell.request_length:.2f} by request" if cell.request_length else "")
