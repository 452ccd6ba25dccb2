"""Splits a stream of server-sent events into whole events, byte by byte the same, and reads the data of one.

Lines end in `\\n`, `\\r\\n` or `\\r`, an event at an empty line
(https://html.spec.whatwg.org/multipage/server-sent-events.html).
"""

from __future__ import annotations

import re

from eyas.base.errors import EyasError

__all__ = ["MAX_EVENT", "EventSplitter", "EventTooLong", "data_of"]

MAX_EVENT = 16 << 20  # bytes of one event
# The end of a line and an empty line. A `\r` at the very end may be half of `\r\n`: what follows it decides.
END = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r(?=[^\n]))")
OVERLAP = 3  # bytes of an END that may have come before the chunk that completes it
LINE_END = re.compile(rb"\r\n|\n|\r")
DATA = b"data: "
BOM = b"\xef\xbb\xbf"  # may be ahead of the first event


class EventTooLong(EyasError):
    """An event of a stream is larger than is taken."""


class EventSplitter:
    """Joins and splits chunks so that each piece is one event, with the empty line that ends it.

    All pieces and `rest` together are the bytes that came, and the pieces are the same for any chunks.
    """

    __slots__ = ("_limit", "_parts", "_size", "_tail")

    def __init__(self, limit: int = MAX_EVENT) -> None:
        self._limit = limit
        self._parts: list[bytes] = []  # the beginning of an event that has not ended
        self._size = 0  # of them
        self._tail = b""  # the last bytes of them

    @property
    def rest(self) -> bytes:
        """The part of an event that has come so far."""
        return b"".join(self._parts)

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the events that `chunk` completes. Raises EventTooLong for one of more than `limit` bytes."""
        if self._size or not chunk.endswith(b"\n\n") or b"\r" in chunk or len(chunk) > self._limit:
            return self._split(chunk)
        if chunk.find(b"\n\n") == len(chunk) - 2:
            return [chunk]
        *events, rest = chunk.split(b"\n\n")
        return self._split(chunk) if rest else [event + b"\n\n" for event in events]

    def _split(self, chunk: bytes) -> list[bytes]:
        events, start, before = [], 0, len(self._tail)
        for match in END.finditer(self._tail + chunk):
            end = match.end() - before
            self._parts.append(chunk[start:end])
            self._check(self._size + end - start)
            events.append(b"".join(self._parts))
            self._parts, self._size, start = [], 0, end
            self._tail = b""
        if start < len(chunk):
            self._parts.append(chunk[start:])
            self._size += len(chunk) - start
            self._check(self._size)
            self._tail = (self._tail + self._parts[-1])[-OVERLAP:]
        return events

    def _check(self, size: int) -> None:
        if size > self._limit:
            raise EventTooLong(f"an event of its stream has more than {self._limit} bytes")


def data_of(event: bytes) -> bytes | None:
    """Return the data of an event, its lines joined by newlines; None if it has none, as a comment."""
    if event.startswith(DATA) and event.find(b"\n") == len(event) - 2 and b"\r" not in event:
        return event[6:-2]
    lines = []
    for line in LINE_END.split(event.removeprefix(BOM)):
        if line.startswith(b"data:"):
            lines.append(line[6:] if line.startswith(DATA) else line[5:])
    return b"\n".join(lines) if lines else None
