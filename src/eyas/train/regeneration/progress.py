"""Shows how far a regeneration is: one live line on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TextIO

from eyas.train.regeneration.results import Counts

__all__ = ["Progress"]

LIVE_S, PLAIN_S = 0.1, 30.0


class Progress:
    """`total` chats are wanted; `before` are the counts of earlier runs of the same command."""

    def __init__(self, stream: TextIO, *, total: int, before: Counts) -> None:
        self.failed = 0
        self._stream, self._total, self._before = stream, total, replace(before)
        self._is_live = stream.isatty()
        self._began = time.monotonic()
        self._shown = self._began if not self._is_live else float("-inf")
        self._width = 0

    def show(self, counts: Counts) -> None:
        """Show the line unless it was shown a moment ago."""
        now = time.monotonic()
        if now - self._shown < (LIVE_S if self._is_live else PLAIN_S):
            return
        self._shown = now
        line = self.line(counts)
        if self._is_live:
            print(f"\r{line:<{self._width}}", end="", file=self._stream, flush=True)
            self._width = len(line)
        else:
            print(line, file=self._stream, flush=True)

    def note(self, text: str) -> None:
        """Print a line of its own, above the live one."""
        start = "\r" if self._width else ""
        print(f"{start}{text:<{self._width}}", file=self._stream, flush=True)
        self._width = 0

    def close(self) -> None:
        """End the live line."""
        if self._width:
            print(file=self._stream, flush=True)
        self._width = 0

    def line(self, counts: Counts) -> str:
        """Return all counts in one line; the speed is that of this run, the rest of all runs."""
        seconds = max(time.monotonic() - self._began, 1e-3)
        speed = (counts.tokens - self._before.tokens) / seconds
        parts = [
            f"{counts.chats} of {self._total} chats",
            f"{counts.answers} answers",
            f"{counts.prompt_tokens:,} tokens of prompts",
            f"{counts.tokens:,} of answers",
            f"{speed:,.0f} tok/s",
            f"ended at a call: {counts.ended_at_call}",
            f"cut: {counts.cut}",
            f"failed: {self.failed + counts.refused}",
        ]
        earlier = self._before.chats
        return ", ".join(parts) + (f" ({earlier} chats from earlier runs)" if earlier else "")
