"""Drawing of a picture: its frame, axes and grid, then lines, points and bars at values of the data.

Colours are classes `s0` to `s7`, one an arm, whose values for light, dark and paper stand in the page's style. Each arm
has a shape of its own as well, since a picture must be legible in grey and to the colour-blind.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from eyas.bench.endpoint.reports.plots.elements import Child, Element, element, shortened, text_width
from eyas.bench.endpoint.reports.plots.scales import Axis

__all__ = ["ABOVE", "BELOW", "FONT", "RIGHT", "WIDTH", "Figure", "Plot", "Point", "legend", "marker", "series_class"]

WIDTH, HEIGHT = 340.0, 240.0  # of a picture, in its own units: a phone shows it one to one
FONT, LINE = 11.0, 13.0
BOLD = 1.2  # how much wider than other text labels are
TOP, BOTTOM, RIGHT = 26.0, 36.0, 14.0
NUM_COLOURS = 8
SHAPES = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
    "M-3.6-3.6h7.2v7.2h-7.2z",
    "M0-4.8L4.6 3.4h-9.2z",
    "M0-5L5 0L0 5L-5 0z",
    "M0 4.8L4.6-3.4h-9.2z",
    "M-1.6-4.6h3.2v3h3v3.2h-3v3h-3.2v-3h-3v-3.2h3z",
    "M-4.6-1.6L0-5L4.6-1.6L2.9 4h-5.8z",
    "M-4.4-2.2L-2.2-4.4L0-2.2L2.2-4.4L4.4-2.2L2.2 0L4.4 2.2L2.2 4.4L0 2.2L-2.2 4.4L-4.4 2.2L-2.2 0z",
)
# Where a label may stand: to the right or left of its value, or, with 0, over or under it; down is positive.
AROUND = ((7, -6), (7, 12), (-7, -6), (-7, 12), (0, -9), (0, 17))
ABOVE, BELOW = (0, -7), (0, 15)
STRIDE = 6.0  # between the places of a line that labels keep off


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """A picture with its heading. `svg` is None where there is nothing to draw; `note` then says why."""

    name: str
    title: str
    svg: Element | None
    note: str
    series: tuple[tuple[int, str], ...] = ()  # number and name of the arms in it


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """A value with what hovering says; `x_range` and `y_range` are drawn as whiskers."""

    x: float
    y: float
    text: str
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None
    is_hollow: bool = False


def series_class(index: int) -> str:
    """Return the classes of an arm's colour, and of its dashes once colours repeat."""
    return f"s{index % NUM_COLOURS}" + (" again" if index >= NUM_COLOURS else "")


def marker(index: int, *children: Child, is_hollow: bool = False, **attributes: str | float) -> Element:
    """Draw the shape of an arm around the origin."""
    classes = f"point {series_class(index)}{' hollow' if is_hollow else ''}"
    return element("g", *children, element("path", d=SHAPES[index % len(SHAPES)]), class_=classes, **attributes)


def legend(series: Sequence[tuple[int, str]]) -> Element:
    """List arms with their marks."""
    items = [
        element(
            "li",
            element("svg", marker(index), viewBox="-6 -6 12 12", width=15, height=15, aria_hidden="true"),
            element("bdi", name),
        )
        for index, name in series
    ]
    return element("ul", *items, class_="legend")


class Plot:
    """A picture with two axes. What is drawn later lies above what was drawn before."""

    def __init__(self, title: str, x: Axis, y: Axis, *, left: float | None = None, height: float = HEIGHT) -> None:
        self.x_axis, self.y_axis, self._title, self._height = x, y, title, height
        widest = max(text_width(line, FONT) for _, text in y.ticks for line in text.split("\n"))
        self.left = left if left is not None else widest + 12
        self.right, self.top, self.bottom = WIDTH - RIGHT, TOP if y.title else TOP / 2, height - BOTTOM
        self._parts: list[Element] = []
        self._taken: list[tuple[float, float, float, float]] = []
        self._late: list[tuple[float, float, str, str, Sequence[tuple[float, float]]]] = []
        self._frame()

    def x(self, value: float) -> float:
        return self.left + self.x_axis.share(value) * (self.right - self.left)

    def y(self, value: float) -> float:
        return self.bottom - self.y_axis.share(value) * (self.bottom - self.top)

    def add(self, *parts: Element) -> None:
        self._parts += parts

    def line(
        self,
        index: int,
        points: Sequence[tuple[float, float]],
        *,
        style: str = "",
        is_stepped: bool = False,
        shift: float = 0.0,
    ) -> None:
        """Draw a line through values, moved to the right by `shift`; a stepped one goes right, then up."""
        if len(points) < 2:
            return
        places = [(self.x(x) + shift, self.y(y)) for x, y in points]
        path = [f"M{places[0][0]:.2f} {places[0][1]:.2f}"]
        path += [f"H{x:.2f}V{y:.2f}" if is_stepped else f"L{x:.2f} {y:.2f}" for x, y in places[1:]]
        self.add(element("path", d="".join(path), class_=f"line {series_class(index)} {style}".rstrip()))
        for start, end in pairwise(places):
            self._keep_off(start, end)

    def points(self, index: int, points: Sequence[Point], *, shift: float = 0.0, drop: float = 0.0) -> None:
        """Draw values as marks with whiskers, moved to the right by `shift` and down by `drop`."""
        for point in points:
            x, y = self.x(point.x) + shift, self.y(point.y) + drop
            if point.y_range is not None:
                self._whisker(index, (x, self.y(point.y_range[0])), (x, self.y(point.y_range[1])))
            if point.x_range is not None:
                self._whisker(index, (self.x(point.x_range[0]), y), (self.x(point.x_range[1]), y))
            place = f"translate({x:.2f} {y:.2f})"
            self.add(marker(index, element("title", point.text), is_hollow=point.is_hollow, transform=place))
            self._taken.append((x - 5, y - 5, x + 5, y + 5))

    def bar(self, index: int, text: str, *, x: float, y: float, width: float, height: float) -> None:
        """Draw a filled rectangle at a place in the picture; `text` is what hovering says."""
        classes = f"bar {series_class(index)}"
        title = element("title", text)
        self.add(element("rect", title, x=x, y=y, width=width, height=height, class_=classes))

    def label(
        self,
        x: float,
        y: float,
        text: str,
        *,
        shift: float = 0.0,
        classes: str = "",
        offsets: Sequence[tuple[float, float]] = AROUND,
    ) -> None:
        """Write beside a value once all is drawn, where nothing else is; where there is no room, leave it out."""
        self._late.append((self.x(x) + shift, self.y(y), text, classes, offsets))

    def rule(self, *, x: float | None = None, y: float | None = None, classes: str = "rule") -> None:
        """Draw a straight line across the picture."""
        x1, x2 = (self.left, self.right) if x is None else (self.x(x), self.x(x))
        y1, y2 = (self.top, self.bottom) if y is None else (self.y(y), self.y(y))
        self.add(element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=classes))
        self._keep_off((x1, y1), (x2, y2))

    def svg(self) -> Element:
        """Finish the picture: labels are placed last."""
        for x, y, text, classes, offsets in self._late:
            self._place(x, y, shortened(text, 24), classes, offsets)
        return element(
            "svg",
            element("title", self._title),
            *self._parts,
            viewBox=f"0 0 {WIDTH:g} {self._height:g}",
            role="img",
            class_="picture",
        )

    def _frame(self) -> None:
        for value, text in self.y_axis.ticks:
            y = self.y(value)
            self.add(element("line", x1=self.left, y1=y, x2=self.right, y2=y, class_="grid"))
            lines = text.split("\n")
            first = y + 4 - LINE * (len(lines) - 1) / 2
            for row, line in enumerate(lines):
                self.add(element("text", line, x=self.left - 6, y=first + LINE * row, class_="tick y"))
        last_end = -WIDTH
        for value, text in self.x_axis.ticks:
            x, width = self.x(value), text_width(text, FONT)
            self.add(element("line", x1=x, y1=self.bottom, x2=x, y2=self.bottom + 4, class_="axis"))
            if x - width / 2 > last_end + 4:
                self.add(element("text", text, x=x, y=self.bottom + 16, class_="tick x"))
                last_end = x + width / 2
        self.add(element("line", x1=self.left, y1=self.bottom, x2=self.right, y2=self.bottom, class_="axis"))
        if self.y_axis.title:
            self.add(element("text", self.y_axis.title, x=2, y=12, class_="title y"))
        self.add(element("text", self.x_axis.title, x=self.right, y=self._height - 4, class_="title x"))

    def _whisker(self, index: int, start: tuple[float, float], end: tuple[float, float]) -> None:
        (x1, y1), (x2, y2) = start, end
        self.add(element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=f"whisker {series_class(index)}"))
        self._keep_off(start, end)

    def _keep_off(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Let no label stand on a straight line."""
        (x1, y1), (x2, y2) = start, end
        num_places = int(math.hypot(x2 - x1, y2 - y1) / STRIDE) + 1
        for place in range(num_places + 1):
            x, y = (a + (b - a) * place / num_places for a, b in ((x1, x2), (y1, y2)))
            self._taken.append((x - 1, y - 1, x + 1, y + 1))

    def _place(self, x: float, y: float, text: str, classes: str, offsets: Sequence[tuple[float, float]]) -> None:
        width = text_width(text, BOLD * FONT)
        for right, down in offsets:
            start = x + right - (width if right < 0 else width / 2 if right == 0 else 0)
            box = (start, y + down - FONT, start + width, y + down + 2)
            inside = box[0] >= self.left and box[2] <= WIDTH and box[1] >= self.top - 12 and box[3] <= self.bottom
            if inside and not any(_overlap(box, other) for other in self._taken):
                self._taken.append(box)
                self.add(element("text", text, x=start, y=y + down, class_=f"label {classes}".rstrip()))
                return


def _overlap(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
