"""Prints answers in a terminal: dimmed reasoning, coloured drafts; plain marks where there are no colours."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TextIO

from eyas.base.harmony.parser import ParserEvent, TextDelta
from eyas.base.tokens.tokenizer import TextCodec
from eyas.base.types import TokenEvent

__all__ = ["DRAFT_MARKS", "AnswerPrinter", "DraftPrinter", "has_colour"]

RESET = "\033[0m"
DIM = "\033[2m"
DRAFT_COLOURS = {"accepted": ("\033[32m", RESET), "rejected": ("\033[31;9m", RESET), "own": ("\033[1m", RESET)}
DRAFT_MARKS = {"accepted": ("[", "]"), "rejected": ("{-", "-}"), "own": ("", "")}


def has_colour(out: TextIO) -> bool:
    """Whether `out` is a terminal and the person has not asked for no colours (no-color.org)."""
    return out.isatty() and not os.environ.get("NO_COLOR")


class AnswerPrinter:
    """Prints what the parser reads: reasoning dimmed and on its own, then the answer."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._colour = has_colour(out)
        self._index: int | None = None

    def show(self, events: list[ParserEvent]) -> None:
        for event in events:
            if isinstance(event, TextDelta):
                self._begin(event)
                dim = self._colour and event.channel == "analysis"
                self._out.write(f"{DIM}{event.text}{RESET}" if dim else event.text)
        self._out.flush()

    def end(self) -> None:
        self._out.write("\n" if self._index is not None else "")
        self._out.flush()

    def _begin(self, delta: TextDelta) -> None:
        if delta.index == self._index:
            return
        self._out.write("\n" if self._index is not None else "")
        if not self._colour and delta.channel == "analysis":
            self._out.write("(thinking) ")
        self._index = delta.index


class DraftPrinter:
    """Prints every token of an answer, Harmony's own too, marked as drafted or not, and the rejected drafts."""

    def __init__(self, out: TextIO, codec: TextCodec) -> None:
        self._out = out
        self._codec = codec
        self._marks: Mapping[str, tuple[str, str]] = DRAFT_COLOURS if has_colour(out) else DRAFT_MARKS

    def legend(self) -> None:
        kinds = (
            ("accepted", "drafted and accepted"),
            ("rejected", "drafted and rejected"),
            ("own", "the target's own"),
        )
        self._out.write("  ".join(self._mark(kind, text) for kind, text in kinds) + "\n\n")

    def show(self, event: TokenEvent) -> None:
        """Print one round: the accepted drafts, the rejected ones, and the target's own token in their place."""
        drafts = event.round.draft_ids if event.round else ()
        num_accepted = event.round.num_accepted if event.round else 0
        self._out.write(self._mark("accepted", self._text(event.token_ids[:num_accepted])))
        self._out.write(self._mark("rejected", self._text(drafts[num_accepted:])))
        self._out.write(self._mark("own", self._text(event.token_ids[num_accepted:])))
        self._out.flush()

    def end(self) -> None:
        self._out.write("\n")
        self._out.flush()

    def _mark(self, kind: str, text: str) -> str:
        before, after = self._marks[kind]
        return f"{before}{text}{after}" if text else ""

    def _text(self, ids: tuple[int, ...]) -> str:
        return b"".join(map(self._codec.token_bytes, ids)).decode(errors="replace")
