"""Acceptance length and speed-up of each category of prompts, as rows."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from eyas.bench.endpoint.reports.categories import category_counts, category_speed_up
from eyas.bench.endpoint.reports.plots.elements import ELLIPSIS, element
from eyas.bench.endpoint.reports.plots.frame import Figure, Plot, Point
from eyas.bench.endpoint.reports.plots.scales import Axis, around_1, levels, linear
from eyas.bench.endpoint.reports.summary import Summary
from eyas.bench.stats import Interval

__all__ = ["acceptance", "speed_up"]

ROW = 16.0  # height of one arm's row
NAME_CHARS = 14
MAX_CATEGORIES = 40


def acceptance(summary: Summary) -> Figure:
    """Draw the acceptance length of each category and arm as bars."""
    name, title = "category-acceptance", "Acceptance length by category"
    categories, arms = summary.categories[:MAX_CATEGORIES], list(enumerate(summary.arms))
    found = {
        (index, row): counts
        for index, arm in arms
        for row, category in enumerate(categories)
        if (counts := category_counts(summary, arm, category)) is not None and counts.length
    }
    if not found:
        return Figure(
            name="category-acceptance", title=title, svg=None, note="The servers say nothing of single requests."
        )
    shown = [(index, arm) for index, arm in arms if any(key[0] == index for key in found)]
    values = [counts.length or 0.0 for counts in found.values()]
    plot = _rows(title, categories, len(shown), linear("tokens committed by a round", values))
    for order, (index, arm) in enumerate(shown):
        for row, category in enumerate(categories):
            if (counts := found.get((index, row))) is None:
                continue
            length, y = counts.length or 0.0, plot.y(row) + ROW * (order - (len(shown) - 1) / 2)
            text = f"{arm}, {category}: {length:.2f} tokens a round, {counts.rounds:,} rounds"
            end = plot.x(length)
            plot.bar(index, text, x=plot.left, y=y - ROW / 2 + 1.5, width=end - plot.left, height=ROW - 3)
            plot.add(element("text", f"{length:.2f}", x=end - 5, y=y + 4, class_="in-bar"))
    note = "All rounds of a category count alike."
    return Figure(name=name, title=title, svg=plot.svg(), note=note, series=tuple(shown))


def speed_up(summary: Summary) -> Figure:
    """Draw the speed-up of each category and arm with its interval, and a line at 1."""
    title = f"Speed-up over {summary.base}, by category" if summary.base else "Speed-up by category"
    categories, arms = summary.categories[:MAX_CATEGORIES], list(enumerate(summary.arms))[1:]
    found = {
        (index, row): interval
        for index, arm in arms
        for row, category in enumerate(categories)
        if (interval := category_speed_up(summary, arm, category)) is not None
    }
    if not found:
        note = "A speed-up needs two pairs of windows of two arms under the same load."
        return Figure(name="category-speed-up", title=title, svg=None, note=note)
    shown = [(index, arm) for index, arm in arms if any(key[0] == index for key in found)]
    ends = [end for interval in found.values() for end in (interval.low, interval.high)]
    plot = _rows(title, categories, len(shown), around_1("speed-up", [one.value for one in found.values()], ends))
    plot.rule(x=1.0)
    for order, (index, arm) in enumerate(shown):
        for row, category in enumerate(categories):
            if (interval := found.get((index, row))) is not None:
                _row_point(plot, index, row, ROW * (order - (len(shown) - 1) / 2), f"{arm}, {category}", interval)
    note = "Geometric mean over all loads; lines are 95 % intervals over turns. Hollow: the interval holds 1."
    return Figure(name="category-speed-up", title=title, svg=plot.svg(), note=note, series=tuple(shown))


def _row_point(plot: Plot, index: int, row: int, drop: float, name: str, interval: Interval) -> None:
    is_hollow = interval.low <= 1 <= interval.high
    point = Point(
        x=interval.value,
        y=row,
        text=f"{name}: {interval.text(2)}",
        x_range=(interval.low, interval.high),
        is_hollow=is_hollow,
    )
    plot.points(index, [point], drop=drop)


def _rows(title: str, categories: Sequence[str], num_arms: int, x: Axis) -> Plot:
    """Return a picture with a row a category, the first one on top, as high as its rows."""
    names = [
        "\n".join(textwrap.wrap(category, NAME_CHARS, max_lines=2, placeholder=ELLIPSIS)) for category in categories
    ]
    y = levels("", names)
    upside_down = Axis(title="", low=y.high, high=y.low, ticks=y.ticks)
    return Plot(title, x, upside_down, height=len(names) * (max(num_arms, 2) * ROW + 10) + 50)
