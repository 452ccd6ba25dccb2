"""Reads pictures of a report as a person does: a mark's place against the ticks gives its value.

Knows nothing of how they were drawn but the classes of marks; HTML is parsed by the standard library.
"""

import math
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "link", "br", "img", "input", "hr"}


@dataclass
class Node:
    tag: str
    attributes: dict
    children: list = field(default_factory=list)

    @property
    def classes(self):
        return (self.attributes.get("class") or "").split()

    def all(self, tag=None, *classes):
        for child in self.children:
            if isinstance(child, Node):
                if (tag is None or child.tag == tag) and set(classes) <= set(child.classes):
                    yield child
                yield from child.all(tag, *classes)

    def text(self):
        return "".join(child if isinstance(child, str) else child.text() for child in self.children)

    def number(self, name):
        return float(self.attributes[name])


class _Builder(HTMLParser):
    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.root = Node("", {})
        self.open = [self.root]

    def handle_starttag(self, tag, attrs):
        node = Node(tag, dict(attrs))
        self.open[-1].children.append(node)
        if tag not in VOID:
            self.open.append(node)

    def handle_startendtag(self, tag, attrs):  # <br />
        assert tag in VOID
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag):
        assert self.open[-1].tag == tag, f"</{tag}> closes <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data):
        self.open[-1].children.append(data)


def parse(html):
    """The tree of a page; every element must be closed."""
    builder = _Builder()
    builder.feed(html)
    builder.close()
    assert builder.open == [builder.root]
    return builder.root


class Picture:
    """One figure of a page. Axes are found from the texts and places of ticks, linear or logarithmic as they are."""

    def __init__(self, figure):
        self.figure = figure
        (self.svg,) = figure.all("svg", "picture")
        self.x = _axis([(t.text(), t.number("x")) for t in self.svg.all("text", "tick", "x")])
        self.y = _axis([(t.text(), t.number("y") - 4) for t in self.svg.all("text", "tick", "y")])

    def points(self, series, *, is_hollow=None):
        """Values of the marks of an arm, by its number, with what hovering says."""
        found = []
        for mark in self.svg.all("g", "point", f"s{series}"):
            x, y = map(float, re.fullmatch(r"translate\((\S+) (\S+)\)", mark.attributes["transform"]).groups())
            if is_hollow is None or ("hollow" in mark.classes) == is_hollow:
                found.append((self.x(x), self.y(y), next(mark.all("title")).text()))
        return found

    def bars(self, series):
        return list(self.svg.all("rect", "bar", f"s{series}"))

    def whiskers(self, series):
        """Both ends of each whisker, as values."""
        return [
            ((self.x(w.number("x1")), self.y(w.number("y1"))), (self.x(w.number("x2")), self.y(w.number("y2"))))
            for w in self.svg.all("line", "whisker", f"s{series}")
        ]

    def corners(self, series):
        """The corners of an arm's line, as values."""
        (line,) = [p for p in self.svg.all("path", "line", f"s{series}") if "dashed" not in p.classes]
        x = y = None
        found = []
        for command, text in re.findall(r"([MLHV])([^MLHV]+)", line.attributes["d"]):
            numbers = [float(part) for part in text.split()]
            x = numbers[0] if command in "MLH" else x
            y = numbers[-1] if command in "MLV" else y
            found.append((self.x(x), self.y(y)))
        return found


def pictures(html):
    """All figures with a picture, in order, by name: those of several loads have one name."""
    found = {}
    for figure in parse(html).all("figure"):
        if any(figure.all("svg", "picture")):
            found.setdefault(figure.attributes["data-plot"], []).append(Picture(figure))
    return found


def _axis(ticks):
    """From places to values; to the text of the nearest tick where ticks are levels, neither linear nor logarithmic."""
    texts = [text.replace(",", "") for text, _ in ticks]
    if all(re.fullmatch(r"-?[\d.]+", text) for text in texts):
        pairs = sorted((place, float(text)) for text, (_, place) in zip(texts, ticks, strict=True))
        for forward, back in ((float, float), (lambda v: math.log10(v) if v > 0 else math.nan, lambda v: 10**v)):
            (first, low), (last, high) = [(place, forward(value)) for place, value in (pairs[0], pairs[-1])]
            slope = (high - low) / (last - first) if last > first else 0.0
            if all(abs(low + slope * (at - first) - forward(value)) <= 0.004 * abs(high - low) for at, value in pairs):
                return lambda at, back=back, low=low, slope=slope, first=first: back(low + slope * (at - first))
    return lambda at: min((abs(at - place), text) for text, place in ticks)[1]
