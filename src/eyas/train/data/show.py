"""Shows documents with their supervised tokens marked, and counts of a file of chats, for `eyas train inspect`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

import numpy as np

from eyas.base.tokens.tokenizer import TextCodec
from eyas.train.data.documents import Tally
from eyas.train.data.summary import Summary
from eyas.train.types import Document, Rule, Segment

__all__ = ["legend", "marked", "summary_lines"]

RESET = "\033[0m"
COLOURS = {
    Segment.HEADER: "\033[36m",
    Segment.REASONING: "\033[33m",
    Segment.FINAL: "\033[32m",
    Segment.CALL: "\033[35m",
    Segment.CODE: "\033[34m",
}
MARKS = ("[[", "]]")
# Control characters would reach the terminal: a chat may hold any. Direction marks could reorder what is shown.
HIDDEN = [*range(0x20), 0x7F, *range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
SHOWN = {code: f"\\u{code:04x}" for code in HIDDEN if chr(code) not in "\n\t"}


def legend(*, colour: bool) -> str:
    """Return a line that says what the marks mean."""
    if not colour:
        return f"supervised tokens stand between {MARKS[0]} and {MARKS[1]}"
    return "supervised: " + "  ".join(f"{COLOURS[s]}{s.name.lower()}{RESET}" for s in COLOURS)


def marked(document: Document, codec: TextCodec, *, colour: bool) -> Iterator[str]:
    """Yield the text of a document in pieces: coloured by segment, or each supervised run between marks."""
    keys = document.segments_T.astype(np.int64) if colour else document.runs_T.astype(np.int64)
    edges = [0, *(np.flatnonzero(np.diff(keys)) + 1).tolist(), len(document)]
    for begin, end in pairwise(edges):
        ids = document.ids_T[begin:end].tolist()
        text = b"".join(map(codec.token_bytes, ids)).decode(errors="replace").translate(SHOWN)
        if document.runs_T[begin] < 0:
            yield text
        elif colour:
            yield f"{COLOURS[Segment(int(document.segments_T[begin]))]}{text}{RESET}"
        else:
            yield f"{MARKS[0]}{text}{MARKS[1]}"


def summary_lines(
    summary: Summary, tally: Tally, rule: Rule, coverage: Mapping[Segment | None, float] | None = None
) -> Iterator[str]:
    """Yield lines for people: counts, tokens by segment, cells by depth; `coverage` of a draft vocabulary, if given."""
    yield f"chats         {tally.num_chats:,}{_but(tally)}"
    yield f"documents     {summary.num_documents:,}, one a turn"
    share = summary.num_supervised / max(summary.num_tokens, 1)
    yield f"tokens        {summary.num_tokens:,}, {summary.num_supervised:,} supervised ({share:.1%})"
    yield f"runs          {summary.num_runs:,}"
    for segment in COLOURS:
        count = summary.by_segment[segment]
        part = count / max(summary.num_supervised, 1)
        yield f"  {segment.name.lower():<12}{count:,} ({part:.1%}){_covered(coverage, segment)}"
    if coverage is not None:
        yield f"  {'all':<12}{summary.num_supervised:,}{_covered(coverage, None)}"
    cells = summary.cells.get(rule, [])
    yield f"cells         {rule}: " + ", ".join(f"{count:,}" for count in cells) + " at depths 0, 1, ..."


def _covered(coverage: Mapping[Segment | None, float] | None, segment: Segment | None) -> str:
    if coverage is None or segment not in coverage:
        return ""
    return f", {coverage[segment]:.2%} of them in the draft vocabulary"


def _but(tally: Tally) -> str:
    found = (
        (tally.num_without_turns, "chats without an answer"),
        (tally.num_skipped, "turns left out: longer than the context"),
        (tally.num_truncated, "turns cut to the context"),
    )
    return "".join(f"; {count:,} {text}" for count, text in found if count)
