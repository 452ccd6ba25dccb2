"""Total speed against the speed of one conversation, and speed-up against load."""

from __future__ import annotations

from collections.abc import Sequence

from eyas.bench.endpoint.records import Load
from eyas.bench.endpoint.reports.plots.elements import element
from eyas.bench.endpoint.reports.plots.frame import ABOVE, BELOW, Figure, Plot, Point, series_class
from eyas.bench.endpoint.reports.plots.scales import around_1, levels, linear, number
from eyas.bench.endpoint.reports.summary import Summary
from eyas.bench.endpoint.verdict import Finding

__all__ = ["pareto", "speed_up"]

DODGE = 14.0  # between the marks of two arms at one load


def pareto(summary: Summary) -> Figure:
    """Draw one line an arm, each point a load; up and to the right is better."""
    title = "Total speed against the speed of one conversation"
    points: dict[int, list[tuple[Load, Point]]] = {}
    for index, arm in enumerate(summary.arms):
        for load in summary.loads:
            cell = summary.cells.get((arm, load))
            if cell is None or not {"user_tok_s", "total_tok_s"} <= set(cell.figures):
                continue
            user, total = cell.figures["user_tok_s"], cell.figures["total_tok_s"]
            text = f"{arm}, {load.text()}: {number(user.median)} tok/s each, {number(total.median)} tok/s in all"
            point = Point(
                x=user.median,
                y=total.median,
                text=text,
                x_range=(min(user.values), max(user.values)),
                y_range=(min(total.values), max(total.values)),
            )
            points.setdefault(index, []).append((load, point))
    if not points:
        return Figure(name="pareto", title=title, svg=None, note="No window has both speeds.")
    every = [point for line in points.values() for _, point in line]
    plot = Plot(
        title,
        linear("one conversation, tok/s", [high for p in every if p.x_range for high in p.x_range]),
        linear("all together, tok/s", [high for p in every if p.y_range for high in p.y_range]),
    )
    for index, line in points.items():
        plot.line(index, [(point.x, point.y) for _, point in line])
    for index, line in points.items():
        plot.points(index, [point for _, point in line])
    for index, line in points.items():
        last_load, last = line[-1]
        for load, point in ((last_load, last), *line[:-1]):
            plot.label(point.x, point.y, _short_load(load), classes=series_class(index))
    note = "A number beside a point is its load: conversations at once. Up and right is better. "
    note += "Median over windows; thin lines reach from the smallest to the largest."
    series = tuple((index, summary.arms[index]) for index in points)
    return Figure(name="pareto", title=title, svg=plot.svg(), note=note, series=series)


def speed_up(summary: Summary) -> Figure:
    """Draw how much faster a conversation is than with the base, by load, with intervals and a line at 1."""
    name, title = "speed-up", f"Speed-up over {summary.base}, by load" if summary.base else "Speed-up by load"
    arms = {summary.arms.index(one.arm): [f for f in one.findings if f.ratios] for one in summary.verdicts}
    arms = {index: findings for index, findings in arms.items() if findings}
    if not arms:
        return Figure(name=name, title=title, svg=None, note="A speed-up needs two arms under the same load.")
    loads = [load for load in summary.loads if any(one.load == load for found in arms.values() for one in found)]
    plot = _levels_around_1(title, loads, [_range(one) for found in arms.values() for one in found])
    for order, (index, findings) in enumerate(arms.items()):
        step = min(DODGE, 0.7 * (plot.right - plot.left) / len(loads) / len(arms))
        shift = (order - (len(arms) - 1) / 2) * step
        points = [_point(summary.arms[index], one, loads.index(one.load)) for one in findings]
        plot.line(index, [(point.x, point.y) for point in points], style="faint", shift=shift)
        plot.points(index, points, shift=shift)
        for point, one in zip(points, findings, strict=True):
            middle, ends = plot.y(point.y), [plot.y(value) for value in _range(one)]
            beyond = [(0, min(ends) - middle + ABOVE[1]), (0, max(ends) - middle + BELOW[1]), (7, 4), (-7, 4)]
            plot.label(point.x, point.y, f"{point.y:.2f}", shift=shift, classes=series_class(index), offsets=beyond)
    note = (
        "Above the line at 1 speculation pays. Lines are 95 % intervals over pairs of windows; where a mark is hollow, "
    )
    note += "nothing is shown: too few pairs, or they do not agree."
    series = tuple((index, summary.arms[index]) for index in arms)
    return Figure(name=name, title=title, svg=plot.svg(), note=note, series=series)


def _levels_around_1(title: str, loads: Sequence[Load], ranges: Sequence[Sequence[float]]) -> Plot:
    """Return a picture with loads as levels, and shades for faster and slower."""
    x_title = "conversations at once" if all(load.concurrency for load in loads) else "load"
    y = around_1("speed-up", [one[0] for one in ranges], [end for one in ranges for end in one])
    plot = Plot(title, levels(x_title, [_short_load(load) for load in loads]), y)
    top, at_1, width = plot.y(y.high), plot.y(1.0), plot.right - plot.left
    plot.add(
        element("rect", x=plot.left, y=top, width=width, height=at_1 - top, class_="faster"),
        element("rect", x=plot.left, y=at_1, width=width, height=plot.bottom - at_1, class_="slower"),
    )
    plot.rule(y=1.0)
    return plot


def _point(arm: str, one: Finding, x: float) -> Point:
    found = one.speed_up
    says = one.says + (f" ({one.why})" if one.why else "")
    words = found.text(2) if found is not None else f"{one.ratios[0]:.2f}, no interval"
    return Point(
        x=x,
        y=_range(one)[0],
        text=f"{arm}, {one.load.text()}: {words}, {len(one.ratios)} pairs: {says}",
        is_hollow=one.says == "not shown",
        y_range=(found.low, found.high) if found is not None else None,
    )


def _range(one: Finding) -> tuple[float, ...]:
    """Return the value and the ends of its interval, where it has one."""
    found = one.speed_up
    return one.ratios[:1] if found is None else (found.value, found.low, found.high)


def _short_load(load: Load) -> str:
    return str(load.concurrency) if load.concurrency is not None else f"{load.rate:g}/s"
