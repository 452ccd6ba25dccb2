"""A run as Markdown to paste: what was measured where, the verdict, and a table with the spread of each figure.

Names come from strangers: they are escaped, so that none ends a cell, starts a link or becomes HTML.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from eyas.bench.endpoint.figures import DEFINITIONS
from eyas.bench.endpoint.records import Stamp
from eyas.bench.endpoint.reports.plots.elements import clean
from eyas.bench.endpoint.reports.summary import Summary
from eyas.bench.endpoint.reports.table import FURTHER_DEFINITIONS, METHOD, Shown, notes, table

__all__ = ["escaped", "markdown", "markdown_table", "stamp_lines"]

SPECIAL = re.compile(r"([\\`*_{}\[\]<>#!|~$&])")


def markdown(summary: Summary, lossless: Sequence[str] = ()) -> str:
    """Return the whole report; `lossless` are the lines of a comparison of answers."""
    lines = ["### Does speculation pay here?", ""]
    if summary.stamp.simulated:
        lines += [f"**{escaped(_loud(summary.stamp.simulated))}**", ""]
    lines += [f"* {escaped(words)}" for one in summary.verdicts for words in (one.sentence, one.together) if words]
    lines += ["", *markdown_table(*table(summary, is_short=True)), "", METHOD, ""]
    if lossless:
        lines += ["#### Are the answers the same?", "", *(f"* {escaped(line)}" for line in lossless), ""]
    lines += [f"{escaped(name)}: {escaped(value)}  " for name, value in stamp_lines(summary.stamp)]
    lines += [
        *(f"{escaped(line)}  " for line in notes(summary)),
        "",
        "```text",
        DEFINITIONS,
        FURTHER_DEFINITIONS,
        "```",
    ]
    return "\n".join(lines).rstrip() + "\n"


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[Shown]]) -> list[str]:
    """Format a table whose first column is aligned left, all others right."""
    rule = ["---", *["---:"] * (len(heads) - 1)]
    texts = [[escaped(value) + (f" ({spread})" if spread else "") for value, spread in row] for row in rows]
    return [f"| {' | '.join(row)} |" for row in (heads, rule, *texts)]


def stamp_lines(stamp: Stamp) -> Iterator[tuple[str, str]]:
    """Yield all that a stamp says, with names for people."""
    yield "hardware", stamp.hardware or "the server's hardware is not known"
    for arm, words in stamp.endpoint.items():
        yield f"arm {arm}", words
    yield "measured by", stamp.client
    yield "date", stamp.date
    yield "eyas", f"{stamp.eyas}, commit {stamp.commit or 'unknown'}"
    yield "command", stamp.command


def escaped(text: str) -> str:
    """Return text that Markdown shows as it is, on one line; an address becomes no link, and a name no mention."""
    text = SPECIAL.sub(r"\\\1", " ".join(clean(text).split()))
    return text.replace("://", "&#58;//").replace("@", "@&#8203;")


def _loud(text: str) -> str:
    return text if text.startswith("SIMULATED") else f"SIMULATED: {text}"
