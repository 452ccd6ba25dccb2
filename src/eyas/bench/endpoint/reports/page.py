"""A run as one HTML file that needs nothing else: pictures, all figures, the stamp, and the run itself as JSON.

The page may not load anything, and its policy lets no script or style run but its own two, which it knows by their
hashes: should a name ever become markup, it still does nothing.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import partial
from importlib.resources import files

from eyas.bench.endpoint.figures import DEFINITIONS
from eyas.bench.endpoint.journal import Run
from eyas.bench.endpoint.records import Load
from eyas.bench.endpoint.reports.markdown import markdown, stamp_lines
from eyas.bench.endpoint.reports.plots import acceptance, by_category, latency, speed
from eyas.bench.endpoint.reports.plots.elements import Child, Element, element, serialized
from eyas.bench.endpoint.reports.plots.frame import RIGHT, WIDTH, Figure, legend, series_class
from eyas.bench.endpoint.reports.run_file import run_json
from eyas.bench.endpoint.reports.summary import Summary
from eyas.bench.endpoint.reports.table import FURTHER_DEFINITIONS, METHOD, Shown, figures_json, notes, table
from eyas.bench.endpoint.verdict import Verdict

__all__ = ["page"]

# A name at the beginning of a line, two spaces or more, then its meaning, whose further lines are indented.
DEFINITION = re.compile(r"^(\S.*?)  +(.+(?:\n .+)*)", re.MULTILINE)


def page(run: Run, summary: Summary, lossless: Sequence[str] = ()) -> str:
    """Return the HTML; `lossless` are the lines of a comparison of answers."""
    folder = files("eyas.bench.endpoint.reports")
    style, script = ((folder / name).read_text("utf-8") for name in ("page.css", "page.js"))
    simulated = bool(summary.stamp.simulated)
    title = ("SIMULATED: " if simulated else "") + "Does speculation pay here?"
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'; form-action 'none'"
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", style),
    )
    # No string of a run may end the script that holds it: "<" appears in JSON within strings alone.
    data = run_json(run, figures_json(summary)).decode("utf-8").replace("<", "\\u003c")
    body = element(
        "body",
        element(
            "main",
            *_top(summary),
            *_same(lossless),
            *_pictures(summary),
            *_figures(summary),
            *_origin(summary, lossless),
        ),
        _verbatim("script", data, type="application/json", id="run"),
        _verbatim("script", script),
    )
    return "<!doctype html>\n" + serialized(element("html", head, body, lang="en")) + "\n"


def _verbatim(tag: str, text: str, **attributes: str) -> Element:
    made = element(tag, **attributes)
    made.text = text
    return made


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _top(summary: Summary) -> list[Child]:
    stamp = summary.stamp
    facts = [stamp.hardware, stamp.date, f"eyas {stamp.eyas}, commit {stamp.commit or 'unknown'}"]
    said = [_verdict(summary.arms.index(one.arm), one) for one in summary.verdicts]
    banner = None
    if stamp.simulated:
        words = stamp.simulated.removeprefix("SIMULATED").lstrip(": ") or "figures are not real"
        banner = element("div", f"SIMULATED: {words}", class_="simulated", role="note")
    return [
        banner,
        element("h1", "Does speculation pay here?"),
        element("p", element("bdi", " \u00b7 ".join(fact for fact in facts if fact)), class_="muted"),
        element("ul", *said, class_="verdicts") if said else element("p", "Nothing to compare: one arm, or none."),
    ]


def _verdict(index: int, one: Verdict) -> Element:
    """Return what is shown of an arm, its name, which the sentence begins with, set apart."""
    sentence = element("p", element("bdi", element("strong", one.arm)), one.sentence.removeprefix(one.arm))
    together = element("p", one.together, class_="note") if one.together else None
    return element("li", sentence, together, class_=series_class(index))


def _same(lossless: Sequence[str]) -> list[Child]:
    if not lossless:
        return []
    lines = element("ul", *(element("li", element("bdi", line.strip())) for line in lossless), class_="lines")
    return [element("h2", "Are the answers the same?"), element("div", lines, class_="panel")]


def _pictures(summary: Summary) -> list[Child]:
    shown = list(dict.fromkeys((*summary.loads[:1], *summary.loads[-1:])))
    rest = [load for load in summary.loads if load not in shown]
    plots = [
        speed.pareto(summary),
        speed.speed_up(summary),
        acceptance.by_position(summary),
        acceptance.histogram(summary),
        *_cumulative(summary, shown),
        by_category.acceptance(summary),
        by_category.speed_up(summary),
    ]
    shown_figure = partial(_figure, is_simulated=bool(summary.stamp.simulated))
    grid = element("div", *map(shown_figure, plots), class_="figures")
    if not rest:
        return [grid]
    more = element("div", *map(shown_figure, _cumulative(summary, rest)), class_="figures")
    words = f"Times under {len(rest)} other loads" if len(rest) > 1 else "Times under the other load"
    return [grid, element("details", element("summary", words), more, class_="on-screen")]


def _cumulative(summary: Summary, loads: Sequence[Load]) -> list[Figure]:
    return [latency.cumulative(summary, sample, load) for load in loads for sample in latency.SAMPLES]


def _figure(figure: Figure, *, is_simulated: bool) -> Element:
    if figure.svg is None:
        body: list[Child] = [element("p", figure.note, class_="empty")]
    else:
        body = [legend(figure.series), figure.svg, element("p", figure.note, class_="note")]
        if is_simulated:  # in the picture itself, which is cut out and shown elsewhere
            figure.svg.append(element("text", "SIMULATED", x=WIDTH - RIGHT, y=12, class_="simulated-mark"))
    return element("figure", element("figcaption", element("h3", figure.title)), *body, data_plot=figure.name)


def _figures(summary: Summary) -> list[Child]:
    heads, rows = table(summary)
    made = element(
        "table",
        element("thead", element("tr", *(element("th", head, scope="col") for head in heads))),
        element("tbody", *(element("tr", *_cells(row)) for row in rows)),
    )
    return [
        element(
            "section",
            element(
                "h2", "All figures", element("span", " SIMULATED", class_="alarm") if summary.stamp.simulated else None
            ),
            element("div", element("div", made, class_="scroll", tabindex="0"), class_="panel"),
            element("p", METHOD, class_="note"),
            *(element("p", element("bdi", line), class_="left-out") for line in notes(summary)),
            class_="wide",
        )
    ]


def _cells(row: Sequence[Shown]) -> list[Element]:
    arm = row[0].value
    cells = [element("td", value, element("small", spread) if spread else None) for value, spread in row[1:]]
    return [element("th", element("bdi", arm), scope="row", title=arm), *cells]


def _origin(summary: Summary, lossless: Sequence[str]) -> list[Child]:
    stamp: list[Child] = []
    for name, value in stamp_lines(summary.stamp):
        stamp += [element("dt", element("bdi", name)), element("dd", element("bdi", value))]
    words: list[Child] = []
    for name, value in DEFINITION.findall(f"{DEFINITIONS}\n{FURTHER_DEFINITIONS}"):
        words += [element("dt", name), element("dd", " ".join(value.split()))]
    buttons = element(
        "p",
        element("button", "Save the run as JSON", id="save", type="button"),
        element("button", "Copy as Markdown", id="copy", type="button"),
        id="actions",
        hidden="",
        class_="on-screen",
    )
    return [
        element("h2", "Where this comes from"),
        element("div", element("dl", *stamp, class_="stamp"), class_="panel"),
        element("h2", "What the figures mean"),
        element("div", element("dl", *words, class_="stamp"), class_="panel"),
        element("h2", "To take away", class_="on-screen"),
        buttons,
        element(
            "details",
            element("summary", "The report as Markdown"),
            element("div", element("pre", markdown(summary, lossless), id="pasteable"), class_="panel"),
            class_="on-screen",
        ),
    ]
