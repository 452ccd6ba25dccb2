"""One connection to a backend: HTTP/1.1, one request at a time, its answer as it comes.

This is the least that a relay needs, on the parser that uvicorn has. With aiohttp's client a request took some 180 us
of CPU more, and a chunk some 4 us (2 cores, 2026-11-25).
"""

from __future__ import annotations

import asyncio
from typing import cast

import httptools

from eyas.router.upstream.errors import UpstreamError

__all__ = ["Connection"]

MAX_HEAD = 64 << 10  # bytes of the head of an answer
MAX_BUFFERED = 256 << 10  # bytes of an answer that the relay has not taken: then the backend has to wait
ENDED = "the connection ended before the answer"


class Connection(asyncio.Protocol):
    """`ask` sends a request, `head` waits for the answer's head, `chunk` returns its body until it is empty.

    After `is_reusable` another request may follow.
    """

    __slots__ = (
        *("_buffered", "_chunks", "_error", "_has_length", "_is_answered", "_is_asked", "_is_paused", "_loop"),
        *("_num_head", "_parser", "_transport", "_waiter", "headers", "idle_since", "is_complete", "status"),
        "_keeps",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._is_asked = False
        self._is_paused = False
        self.idle_since = 0.0
        self._renew()

    def _renew(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._chunks: list[bytes] = []
        self._buffered = self._num_head = 0
        self._error: UpstreamError | None = None
        self._is_answered = self._has_length = self._keeps = False
        self.headers: list[tuple[bytes, bytes]] = []  # names in lower case
        self.status = 0
        self.is_complete = False

    # -- for its user --------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def is_reusable(self) -> bool:
        """Whether all of the answer has come, nothing else, and both sides keep the connection; it reads on."""
        sent = self._transport is not None and not self._transport.get_write_buffer_size()
        is_whole = self.is_complete and not self._is_paused and self._error is None
        return is_whole and self._keeps and self.is_open and sent

    def ask(self, head: bytes, body: bytes | None) -> None:
        """Send a request."""
        self._renew()
        self._is_asked = True
        if self._transport is None:
            self._error = UpstreamError("broken", ENDED)
        elif body is None or len(body) <= MAX_HEAD:
            self._transport.write(head + body if body else head)
        else:
            self._transport.writelines((head, body))

    async def head(self) -> None:
        """Wait until `status` and `headers` are those of the answer. Raises UpstreamError."""
        while not self._is_answered:
            await self._news()

    async def chunk(self) -> bytes:
        """Return what has come of the body, or what comes next; nothing at its end. Raises UpstreamError."""
        while not self._chunks:
            if self.is_complete:
                return b""
            await self._news()
        chunks = self._chunks
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        chunks.clear()
        self._buffered = 0
        if self._is_paused and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()
        return data

    def fail(self, error: UpstreamError) -> None:
        """End the answer: what has come can be read, and then the error is raised."""
        if not self.is_complete and self._error is None:
            self._error = error
        self._wake()

    def rest(self) -> None:
        """Take note that nothing is expected from here: whatever comes now, closes the connection."""
        self._is_asked = False
        self.idle_since = self._loop.time()

    def abort(self) -> None:
        """Close the connection at once, and send nothing of what has not been sent."""
        if self._transport is not None:
            self._transport.abort()

    async def _news(self) -> None:
        if self._error is not None:
            raise self._error
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # -- for the event loop --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if not self._is_asked or self.is_complete:
            self._keeps = False
            self.abort()
            return
        if not self._is_answered:
            self._num_head += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            if not self.is_complete:
                self.fail(UpstreamError("malformed", "its answer is not HTTP"))
            self._keeps = False
            self.abort()
            return
        if not self._is_answered and self._num_head > MAX_HEAD:
            self.fail(UpstreamError("malformed", f"the head of its answer has more than {MAX_HEAD} bytes"))
            self.abort()
        elif self._buffered > MAX_BUFFERED and not self._is_paused and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._keeps = False
        if exc is None and self._is_answered and not self._has_length and not self.is_complete:
            self.is_complete = True  # an answer without a length ends with its connection
        elif not self.is_complete:
            self.fail(UpstreamError("broken", ENDED))
        self._wake()

    # -- for the parser ------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self.is_complete:  # another answer than was asked for
            raise ValueError

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_answered:  # a trailer
            return
        name = name.lower()
        if name in (b"content-length", b"transfer-encoding"):
            self._has_length = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200:
            self.status, self._is_answered = status, True
            if self._num_head > MAX_HEAD and sum(map(_size, self.headers)) > MAX_HEAD:
                raise ValueError
        else:  # 100 Continue and the like: the answer is still to come
            self.headers.clear()
            self._has_length = False

    def on_body(self, data: bytes) -> None:
        self._chunks.append(data)
        self._buffered += len(data)

    def on_message_complete(self) -> None:
        if self._is_answered:
            self.is_complete = True
            self._keeps = self._parser.should_keep_alive()


def _size(header: tuple[bytes, bytes]) -> int:
    return len(header[0]) + len(header[1])
