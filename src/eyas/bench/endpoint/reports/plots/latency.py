"""Cumulative shares of times: until the first text, and between chunks."""

from __future__ import annotations

from collections.abc import Sequence

from eyas.bench.endpoint.records import Load
from eyas.bench.endpoint.reports.plots.frame import Figure, Plot, Point, series_class
from eyas.bench.endpoint.reports.plots.scales import linear, logarithmic, number
from eyas.bench.endpoint.reports.summary import Summary

__all__ = ["SAMPLES", "cumulative"]

MIN_MS = 0.1  # two chunks that were read together have no time between them; shorter times are drawn here
MAX_STEPS = 200
MARKED = (50, 99)
SAMPLES = {
    "first_text_s": ("Time to the first text", "after the request was due, ms"),
    "gap_s": ("Time between chunks", "since the chunk before, ms"),
}


def cumulative(summary: Summary, sample: str, load: Load) -> Figure:
    """Draw for each arm which share of times is at most so long, under one load."""
    title, x_title = SAMPLES[sample]
    title, name = f"{title}, {load.text()}", sample.removesuffix("_s").replace("_", "-")
    arms = {}
    for index, arm in enumerate(summary.arms):
        cell = summary.cells.get((arm, load))
        if cell is not None and cell.samples[sample]:
            arms[index] = steps([max(MIN_MS, 1000 * value) for value in cell.samples[sample]])
    if not arms:
        return Figure(name=name, title=title, svg=None, note="No request has brought text.")
    low = min(line[0][0] for line in arms.values())
    high = max(line[-1][0] for line in arms.values())
    plot = Plot(title, logarithmic(x_title, low, high), linear("share of all, %", [100.0]))
    for index, line in arms.items():
        plot.line(index, [(line[0][0], 0.0), *line, (10**plot.x_axis.high, 100.0)], is_stepped=True)
    for index, line in arms.items():
        arm, marks = summary.arms[index], []
        for percent in MARKED:
            value, share = next((value, share) for value, share in line if share >= percent)
            marks.append(Point(x=value, y=share, text=f"{arm}: {percent} % within {number(value)} ms"))
        plot.points(index, marks)
        plot.label(marks[0].x, marks[0].y, arm, classes=series_class(index))
    num_times = sum(len(cell.samples[sample]) for (_, at), cell in summary.cells.items() if at == load)
    note = f"Marks: median and 99th percentile. {num_times:,} times."
    series = tuple((index, summary.arms[index]) for index in arms)
    return Figure(name=name, title=title, svg=plot.svg(), note=note, series=series)


def steps(values: Sequence[float]) -> list[tuple[float, float]]:
    """Return values in order with the percentage at or below each: all, or 200, the marked and the last."""
    size = len(values)
    every = max(1, -(-size // MAX_STEPS))
    ranks = sorted({*range(every, size + 1, every), *(-(-percent * size // 100) for percent in MARKED), size})
    return [(values[rank - 1], 100 * rank / size) for rank in ranks]
