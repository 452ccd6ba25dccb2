"""Formats what `eyas bench mixed` measured, as tables and JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from eyas.bench.engine.arms import Drafts
from eyas.bench.report import table
from eyas.bench.stats import Spread, paired_ratio, percentile

__all__ = ["Figures", "LoopRow", "burst_lines", "jitter_lines", "loop_lines"]

PERCENTILES = {"token": (95, 99), "gap": (50, 95, 99, 100), "first": (50, 95, 99)}  # columns of the closed loop


@dataclass(slots=True)
class Figures:
    """Figures by name, one value a repeat."""

    values: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, values: Sequence[float], percents: Sequence[float] = (50, 99)) -> None:
        """Add percentiles in ms of values in seconds; 100 is the largest."""
        for percent in percents:
            self.values.setdefault(f"{name}_ms_p{percent:g}", []).append(1e3 * percentile(values, percent))

    def of(self, name: str) -> Spread:
        return Spread(tuple(self.values[name]))

    def median(self, name: str) -> str:
        return f"{self.of(name).median:,.2f}"

    def spread(self, name: str) -> str:
        return self.of(name).text(2 if name.endswith("ms_p50") else 0)

    def json(self) -> dict[str, Any]:
        return {name: Spread(tuple(values)).json() for name, values in self.values.items()}


@dataclass(slots=True)
class LoopRow:
    """A closed loop of one number of clients, one chunk size and one draft length."""

    clients: int
    answers: int
    chunk: int
    drafts: Drafts
    acceptance: str | None
    experts: float | None
    figures: Figures = field(default_factory=Figures)

    @property
    def name(self) -> str:
        return f"chunks of {self.chunk}, drafts {self.drafts}"

    def json(self) -> dict[str, Any]:
        fixed = {name: getattr(self, name) for name in ("clients", "answers", "chunk", "drafts")}
        simulated = {} if self.acceptance is None else {"simulated_acceptance": self.acceptance}
        return {**fixed, **simulated, "experts_per_layer_and_round": self.experts, **self.figures.json()}


def loop_lines(rows: Sequence[LoopRow]) -> list[str]:
    """Return the table of rows of one number of clients, and what `auto` came to beside the fixed lengths."""
    columns = [(kind, percent) for kind, percents in PERCENTILES.items() for percent in percents]
    names = [f"{kind}_ms_p{percent}" for kind, percent in columns]
    compares = len({row.drafts for row in rows}) > 1
    head = ["clients", "chunk", *(["drafts"] if compares else []), "token p50"]
    head += [f"{kind} max" if percent == 100 else f"{kind} p{percent}" for kind, percent in columns]
    head += ["tok/s", *(["of none", "token p95"] if compares else []), "experts"]
    cells = []
    for row in rows:
        figures = row.figures
        line = [str(row.clients), str(row.chunk), *([str(row.drafts)] if compares else [])]
        line += [figures.spread("token_ms_p50"), *(figures.median(name) for name in names), figures.spread("tok_s")]
        if compares:
            none = _row(rows, row.chunk, 0).figures
            line += [f"{_ratio_of(figures, none, name):.3f}" for name in ("tok_s", "token_ms_p95")]
        cells.append([*line, "-" if row.experts is None else f"{row.experts:.1f}"])
    title = [] if rows[0].acceptance is None else [f"acceptance {rows[0].acceptance} (SIMULATED)"]
    verdicts = [_verdict(rows, row) for row in rows if compares and row.drafts == "auto"]
    return [*title, *table(head, cells), *verdicts]


def _ratio_of(figures: Figures, base: Figures, name: str) -> float:
    """Return the median of the repeats' ratios of a figure."""
    return paired_ratio(figures.of(name), base.of(name)).median


def _row(rows: Sequence[LoopRow], chunk: int, drafts: Drafts) -> LoopRow:
    return next(row for row in rows if (row.chunk, row.drafts) == (chunk, drafts))


def _verdict(rows: Sequence[LoopRow], auto: LoopRow) -> str:
    fixed = [row for row in rows if row.chunk == auto.chunk and row.drafts != "auto"]
    best = max(fixed, key=lambda row: row.figures.of("tok_s").median)
    speed = _ratio_of(auto.figures, best.figures, "tok_s")
    latency = _ratio_of(auto.figures, _row(rows, auto.chunk, 0).figures, "token_ms_p95")
    return (
        f"auto, {auto.clients} clients: {speed:.3f} of the best fixed number ({best.drafts}) in tok/s, token p95 "
        f"{latency:.3f} of none"
    )


def jitter_lines(jitter: Mapping[int, Figures], tokens: int, running: int) -> list[str]:
    """Return the table of gaps beside a long prompt, by chunk size."""
    head = ["chunk", "gap p50", "p99", "max", "without p50", "p99", "max", "first", "alone"]
    names = [f"{kind}_ms_p{percent}" for kind in ("mixed", "quiet") for percent in (50, 99, 100)]
    names += ["first_mixed_ms_p50", "first_alone_ms_p50"]
    rows = [[str(chunk), *(figures.median(name) for name in names)] for chunk, figures in jitter.items()]
    title = f"{running} answers during the prefill of {tokens} tokens, and without; its first token then, and alone"
    return [title, *table(head, rows)]


def burst_lines(bursts: Mapping[int, Figures], num_tokens: int) -> list[str]:
    """Return the table of the last first token of prompts that come at once, by their number."""
    rows = [[str(count), figures.spread("last_first_ms_p50")] for count, figures in bursts.items()]
    return [f"prompts of {num_tokens} tokens at once", "", *table(["prompts", "last first token"], rows)]
