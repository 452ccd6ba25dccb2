"""Shows a run at its end: a table for people and the fields of the JSON line, a row for each arm and load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from eyas.bench.endpoint.figures import Figures, Slo, figures_of, percentiles
from eyas.bench.endpoint.records import Load, Window
from eyas.bench.report import table
from eyas.bench.stats import Spread, percentile

__all__ = ["rows_json", "summary_lines"]

HEAD = (
    *("", "requests", "failed", "TTFT ms p50", "p99", "final p50", "TPOT ms p50", "p99", "tok/s user", "tok/s"),
    *("gap ms p50", "p99", "tok/chunk", "cached"),
)
MIB = 1 << 20


def summary_lines(windows: Sequence[Window], slo: Slo | None = None) -> list[str]:
    """Format what was measured; void windows are counted, and in no figure."""
    groups = _groups(windows)
    head = [*HEAD, *(["good/s"] if slo is not None else [])]
    rows = [_row(arm, load, [figures_of(window, slo) for window in group]) for (arm, load), group in groups.items()]
    return [*(table(head, rows) if rows else ["nothing was measured"]), *_notes(windows)]


def rows_json(windows: Sequence[Window], slo: Slo | None = None) -> list[dict[str, Any]]:
    """Return the figures of each arm and load: percentiles over all requests, spreads over windows."""
    return [_json(arm, load, group, slo) for (arm, load), group in _groups(windows).items()]


def _groups(windows: Sequence[Window]) -> dict[tuple[str, Load], list[Window]]:
    """Return the windows that count, of each load in the order of arms."""
    found: dict[tuple[str, Load], list[Window]] = {}
    for window in windows:
        if not window.void:
            found.setdefault((window.arm, window.load), []).append(window)
    return found


def _row(arm: str, load: Load, figures: Sequence[Figures]) -> list[str]:
    firsts, finals, tpots, gaps = _pooled(figures)
    rates = [one.tokens_per_s for one in figures if one.tokens_per_s is not None]
    approx = "" if all(one.is_exact for one in figures if one.tpot_s) else "~"
    cells = [
        f"{arm}, {load.text()}",
        str(sum(one.num_measured for one in figures)),
        str(sum(one.num_failed for one in figures)),
        _ms(firsts, 50, 1),
        _ms(firsts, 99, 1),
        _ms(finals, 50, 1),
        approx + _ms(tpots, 50, 2) if tpots else "-",
        _ms(tpots, 99, 2),
        f"{1 / percentile(tpots, 50):,.1f}" if tpots else "-",
        Spread(tuple(rates)).text(1) if rates else "-",
        _ms(gaps, 50, 1),
        _ms(gaps, 99, 1),
        _mean([one.tokens_per_chunk for one in figures], ".2f"),
        _mean([one.cached_share for one in figures], ".0%"),
    ]
    goods = [one.good_per_s for one in figures if one.good_per_s is not None]
    return cells + ([f"{sum(goods) / len(goods):.2f}"] if goods else [])


def _notes(windows: Sequence[Window]) -> list[str]:
    """Say what a reader has to know before believing the table."""
    lines = []
    if voids := [window for window in windows if window.void]:
        lines.append(f"{len(voids)} of {len(windows)} windows are void and in no figure:")
        lines += [f"  {one.arm}, {one.load.text()}, turn {one.turn + 1}: {one.void}" for one in voids]
    if num_none := sum(not window.is_warm and not window.warm_up_s for window in windows):
        lines.append(
            f"no warm-up before {num_none} of {len(windows)} windows (--warm-up 0): a slow beginning is in the figures"
        )
    if num_cold := sum(not window.is_warm and window.warm_up_s > 0 for window in windows):
        lines.append(
            f"the warm-up did not settle before {num_cold} of {len(windows)} windows: give --warm-up more time"
        )
    figures = [figures_of(window) for window in windows if not window.void]
    if num_short := sum(one.num_short for one in figures):
        total = sum(one.num_measured for one in figures)
        lines.append(
            f"{num_short} of {total} answers ended before their fixed length: the endpoint heeds no ignore_eos"
        )
    if figures and all(one.tokens_per_s is None for one in figures):
        lines.append("the endpoint sends no usage: tokens are not measured")
    errors = {record.error for window in windows for record in window.records if record.error}
    lines += [f"failed: {error}" for error in sorted(errors)[:5]]
    if windows:
        late_s = max(max(window.lag.loop_p99_s, window.lag.send_p99_s) for window in windows)
        share = max(window.lag.cpu_share for window in windows)
        lines.append(f"client  at most {1e3 * late_s:.1f} ms late (p99), {share:.0%} of a core")
    lines += _memory(windows)
    return ["", *lines] if lines else []


def _memory(windows: Sequence[Window]) -> list[str]:
    """Return a line an arm: the most memory of any window."""
    lines = []
    for arm in dict.fromkeys(window.arm for window in windows):
        found = [window.memory for window in windows if window.arm == arm and window.memory is not None]
        most = max(found, key=lambda memory: memory.used_bytes, default=None)
        text = (
            "not measurable from outside"
            if most is None
            else f"{most.used_bytes / MIB:,.0f} MiB in use at most, on all of the machine ({most.source})"
        )
        lines.append(f"memory  {arm}: {text}")
    return lines


def _json(arm: str, load: Load, windows: Sequence[Window], slo: Slo | None) -> dict[str, Any]:
    figures = [figures_of(window, slo) for window in windows]
    firsts, finals, tpots, gaps = _pooled(figures)
    rates = tuple(one.tokens_per_s for one in figures if one.tokens_per_s is not None)
    return {
        "arm": arm,
        "load": msgspec.to_builtins(load),
        "windows": len(windows),
        "requests": sum(one.num_measured for one in figures),
        "failed": sum(one.num_failed for one in figures),
        "first_text_s": percentiles(firsts),
        "first_final_s": percentiles(finals),
        "tpot_s": percentiles(tpots),
        "tpot_is_exact": all(one.is_exact for one in figures if one.tpot_s),
        "gap_s": percentiles(gaps),
        "end_to_end_s": percentiles([value for one in figures for value in one.end_to_end_s]),
        "tokens_per_s": Spread(rates).json() if rates else None,
        "tokens_per_chunk": _average([one.tokens_per_chunk for one in figures]),
        "good_per_s": _average([one.good_per_s for one in figures]),
        "cached_share": _average([one.cached_share for one in figures]),
        "lag_p99_s": max(max(one.lag.loop_p99_s, one.lag.send_p99_s) for one in windows),
        "client_cpu_share": max(one.lag.cpu_share for one in windows),
    }


def _pooled(figures: Sequence[Figures]) -> tuple[list[float], list[float], list[float], list[float]]:
    """Return times to first text, to final text, for each token and between chunks, of all windows together."""
    return (
        [value for one in figures for value in one.first_text_s],
        [value for one in figures for value in one.first_final_s],
        [value for one in figures for value in one.tpot_s],
        [value for one in figures for value in one.gaps_s],
    )


def _ms(values: Sequence[float], percent: float, digits: int) -> str:
    return f"{1e3 * percentile(values, percent):,.{digits}f}" if values else "-"


def _average(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _mean(values: Sequence[float | None], form: str) -> str:
    average = _average(values)
    return "-" if average is None else format(average, form)
