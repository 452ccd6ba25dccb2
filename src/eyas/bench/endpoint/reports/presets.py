"""Tables of published forms that a run can fill: which windows each needs, and the table made of them. Pure.

`s3` is that of the EAGLE-3 head wenliang1990/gpt-oss-120b-eagle3-aimo3: throughput without and with it, by concurrency
from 8 down to 1. `s0` is that of guides for a DGX Spark: decoding alone and ten at once, the time to the first token of
a long prompt, memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from eyas.base.errors import UserError
from eyas.bench.endpoint.figures import first_text_s
from eyas.bench.endpoint.reports.markdown import escaped, markdown_table, stamp_lines
from eyas.bench.endpoint.reports.summary import Cell, Summary
from eyas.bench.endpoint.reports.table import Shown
from eyas.bench.endpoint.verdict import Finding, Verdict, total_speed, verdict
from eyas.bench.stats import Spread

__all__ = ["PRESETS", "Preset", "preset_markdown"]

LONG_PROMPT_TOKENS = 8192
LONG_PROMPT_TOLERANCE = 0.1
MAX_CACHED_SHARE = 0.05  # of a prompt whose first token is timed; with more it was not read
MISSING = Shown("-")


@dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """A table: the loads that it needs, and lengths of prompts in tokens that some requests must have."""

    title: str
    concurrencies: tuple[int, ...]
    prompt_tokens: tuple[int, ...]
    rows: Callable[[Summary, str], tuple[list[str], list[list[Shown]]]]

    def needs(self) -> str:
        """Say which windows the table needs."""
        text = f"two arms at {', '.join(map(str, self.concurrencies))} at once"
        lengths = " and ".join(f"{tokens:,} tokens" for tokens in self.prompt_tokens)
        return text + (f", with prompts of {lengths} among those of 1 at once" if lengths else "")


def preset_markdown(found: Summary, name: str) -> str:
    """Return a preset's table for each arm that is compared. Raises UserError where a run has none of its windows."""
    preset = PRESETS[name]
    lines = [f"### {preset.title}", ""]
    if found.stamp.simulated:
        lines += [f"**SIMULATED: {escaped(found.stamp.simulated.removeprefix('SIMULATED').lstrip(': '))}**", ""]
    tables = [preset.rows(found, arm) for arm in found.arms[1:]]
    is_whole = [MISSING not in row for _, rows in tables for row in rows]
    if not any(is_whole):
        raise UserError(f"the table {name} needs {preset.needs()}; this run has none of it")
    for heads, rows in tables:
        lines += [*markdown_table(heads, rows), ""]
    if not all(is_whole):
        lines += [f"A `-` was not measured: the table needs {preset.needs()}.", ""]
    lines += ["Median over windows (smallest..largest); of a speed-up its 95 % interval over pairs of windows.", ""]
    lines += [f"{escaped(key)}: {escaped(value)}  " for key, value in stamp_lines(found.stamp)]
    return "\n".join(lines) + "\n"


def _by_concurrency(found: Summary, arm: str) -> tuple[list[str], list[list[Shown]]]:
    heads = [f"throughput ({found.base}), tok/s", f"throughput ({arm}), tok/s", "speedup", "concurrency"]
    in_all, rows = _in_all(found, arm), []
    for concurrency in S3.concurrencies:
        base, cell = _cell(found, found.base, concurrency), _cell(found, arm, concurrency)
        faster = _percent(in_all, cell)
        rows.append([_figure(base, "total_tok_s"), _figure(cell, "total_tok_s"), faster, Shown(str(concurrency))])
    return list(map(escaped, heads)), rows


def _expected(found: Summary, arm: str) -> tuple[list[str], list[list[Shown]]]:
    heads = ["Metric", f"Without ({found.base})", f"With ({arm})", "Change"]
    in_all = _in_all(found, arm)
    each = next(made for made in found.verdicts if made.arm == arm)
    one, ten = ([_cell(found, name, number) for name in (found.base, arm)] for number in (1, 10))
    memory = [_most_memory(found, name) for name in (found.base, arm)]
    first = [_long_first_text(found, name) for name in (found.base, arm)]
    return list(map(escaped, heads)), [
        [Shown("Decode (single), tok/s"), *(_figure(c, "user_tok_s") for c in one), _percent(each, one[1])],
        [
            Shown("Decode (10 concurrent), tok/s"),
            *(_figure(c, "total_tok_s") for c in ten),
            _percent(in_all, ten[1]),
        ],
        [Shown("TTFT (8K context), s"), *(_spread(values, 2) for values in first), _change(*first)],
        [Shown("Memory usage, GiB"), *(_spread(values, 1) for values in memory), _change(*memory)],
    ]


def _cell(found: Summary, arm: str, concurrency: int) -> Cell | None:
    """Return the cell of a concurrency, in natural mode where the run has both."""
    loads = sorted(
        (load for load in found.loads if load.concurrency == concurrency), key=lambda load: load.mode != "natural"
    )
    return next((cell for load in loads if (cell := found.cells.get((arm, load))) is not None), None)


def _long_first_text(found: Summary, arm: str) -> list[float]:
    """Return for each window of one conversation the median time to the first text of long prompts that were read."""
    low, high = (LONG_PROMPT_TOKENS * (1 + sign * LONG_PROMPT_TOLERANCE) for sign in (-1, 1))
    medians = []
    for window in found.windows:
        if window.arm != arm or window.load.concurrency != 1:
            continue
        times = [
            time
            for r in window.records
            if r.is_measured and r.error is None and r.prompt_tokens is not None and low <= r.prompt_tokens <= high
            if (r.cached_tokens or 0) <= MAX_CACHED_SHARE * r.prompt_tokens and (time := first_text_s(r)) is not None
        ]
        medians += [median(times)] if times else []
    return medians


def _most_memory(found: Summary, arm: str) -> list[float]:
    """Return the most memory of each window, in GiB: all that is used on the machine."""
    return [w.memory.used_bytes / 2**30 for w in found.windows if w.arm == arm and w.memory is not None]


def _figure(cell: Cell | None, name: str) -> Shown:
    spread = None if cell is None else cell.figures.get(name)
    return MISSING if spread is None else _spread(spread.values, 1)


def _spread(values: Sequence[float], digits: int) -> Shown:
    if not values:
        return MISSING
    low, high = (f"{end:,.{digits}f}" for end in (min(values), max(values)))
    return Shown(f"{Spread(tuple(values)).median:,.{digits}f}", f"{low}..{high}" if low != high else "")


def _in_all(found: Summary, arm: str) -> Verdict:
    """Compare the speed of all conversations together."""
    return verdict(found.windows, base=found.base, arm=arm, speed=total_speed)


def _percent(made: Verdict, cell: Cell | None) -> Shown:
    one: Finding | None = next((one for one in made.findings if cell is not None and one.load == cell.load), None)
    if one is None or not one.ratios:
        return MISSING
    found = one.speed_up
    if found is None:
        return Shown(f"{one.ratios[0] - 1:+.1%}", "one pair, no interval")
    return Shown(f"{found.value - 1:+.1%}", f"{found.low - 1:+.1%}..{found.high - 1:+.1%}")


def _change(before: Sequence[float], after: Sequence[float]) -> Shown:
    return Shown(f"{median(after) / median(before) - 1:+.1%}") if before and after and median(before) else MISSING


S3 = Preset(
    title="Throughput with and without speculation, by concurrency",
    concurrencies=(8, 7, 6, 5, 4, 3, 2, 1),
    prompt_tokens=(),
    rows=_by_concurrency,
)
S0 = Preset(
    title="Expected performance",
    concurrencies=(1, 10),
    prompt_tokens=(LONG_PROMPT_TOKENS,),
    rows=_expected,
)
PRESETS = {"s3": S3, "s0": S0}
