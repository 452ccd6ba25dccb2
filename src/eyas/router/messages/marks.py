"""Control tokens in what people and tools write: made harmless for a backend, and given back as they were.

Backends that render a chat template read `<|end|>` in a message as the token that ends it, and gpt-oss's own template
refuses messages with tags of channels. A word joiner behind `<|` (U+2060, which is not shown and breaks no line) makes
plain text of it. A model that repeats what it read, to edit a file, say, repeats the joiner: answers lose it again.
"""

from __future__ import annotations

import re

__all__ = ["Restorer", "disarmed"]

JOINER = "\u2060"
OPENING = "<|"
CONTROL = re.compile(rb"<\|(?=[A-Za-z0-9_]{1,64}\|>)")
DISARMED = (OPENING + JOINER).encode()
MARKS = (OPENING + JOINER, OPENING + "\\u2060")  # arguments of calls may have it escaped
RESTORED = re.compile(r"<\|(?:\u2060)+")
RESTORED_JSON = re.compile(r"<\|(?:\u2060|\\u2060)+")


def disarmed(body: bytes) -> bytes:
    """Return a JSON body without control tokens: they can be in its strings only."""
    return CONTROL.sub(DISARMED, body) if OPENING.encode() in body else body


class Restorer:
    """Restores a text that comes in pieces; holds back its end while that may be the beginning of a mark."""

    def __init__(self, *, is_json: bool = False) -> None:
        self._pattern = RESTORED_JSON if is_json else RESTORED
        self._marks = MARKS if is_json else MARKS[:1]
        self._longest = max(map(len, self._marks))
        self._held = ""

    def feed(self, text: str) -> str:
        """Return what can be shown by now."""
        if not self._held and "<" not in text:
            return text
        text = self._pattern.sub(OPENING, self._held + text)
        longest = min(self._longest - 1, len(text))
        keep = next((size for size in range(longest, 0, -1) if self._is_open(text[-size:])), 0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """Return what is held at the end."""
        held, self._held = self._held, ""
        return held

    def _is_open(self, end: str) -> bool:
        return any(mark.startswith(end) for mark in self._marks)
