"""One streamed answer of one server: its events as they come, ended at once when a budget of time is spent."""

from __future__ import annotations

import asyncio
import math
from functools import partial

import aiohttp

from eyas.base.serving.connections import DRAIN_S
from eyas.base.serving.sse import EventSplitter, EventTooLong, data_of
from eyas.base.serving.waiting import waiting_of
from eyas.client.chunks import ChunkReader
from eyas.client.clock import Clock
from eyas.client.errors import Broken, ClientError
from eyas.client.pieces import Piece
from eyas.client.server import ENDED, Server

__all__ = ["Stream"]

EVENT_STREAM = "text/event-stream"
DONE = b"[DONE]"
COMMENT = b":"
GRACE_S = 0.01  # after a budget, for bytes that have come while the program kept the loop busy
SLOW_S = 0.1  # between two calls of `batch`: a caller that takes longer spends no budget of the server's


class Stream:
    """An answer whose head has come. `batch` returns what is next until `is_complete`; `close` ends it at any time.

    `reader` reads the data of each event. Raises ClientError for what is no stream of events.
    """

    __slots__ = (
        *("_clock", "_content", "_error", "_is_waiting", "_left_at", "_loop", "_response", "_server"),
        *("_splitter", "_timer", "_timer_at", "backend", "is_complete", "reader"),
    )

    def __init__(
        self, server: Server, response: aiohttp.ClientResponse, clock: Clock, reader: ChunkReader | None = None
    ) -> None:
        self._server, self._response, self._clock = server, response, clock
        self._content = response.content
        self._loop = asyncio.get_running_loop()
        self._splitter = EventSplitter()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._error: ClientError | None = None  # for the next call of `batch`
        self._is_waiting = False
        self._left_at = self._loop.time()
        self.reader = ChunkReader(server.name, server.key) if reader is None else reader
        self.backend: str | None = response.headers.get("x-eyas-backend")
        self.is_complete = False
        if response.content_type != EVENT_STREAM:
            what = f"its answer to a stream is of the type '{response.content_type[:80]}'"
            raise Broken(what, kind="malformed", endpoint=server.name)

    async def batch(self) -> list[Piece]:
        """Return the pieces of the bytes that come next, maybe none. Raises ClientError, after the pieces before it."""
        if self._error is not None:
            raise self._error
        data = await self._next()
        pieces: list[Piece] = []
        error: ClientError | None = None
        try:
            self._take(data, pieces)
        except ClientError as found:
            error = found
        reader, clock = self.reader, self._clock
        self._left_at = now = self._loop.time()
        if reader.has_progress:
            reader.has_progress = False
            clock.shows(now)
        elif error is None and now >= clock.due and not self.is_complete:
            self.is_complete = reader.finish_reason is not None
            error = None if self.is_complete else clock.error(now, self._server.name)
        if self.is_complete:
            reader.give_calls(pieces)
        if error is not None:
            if not pieces:
                raise error
            self._error = error
        return pieces

    def _take(self, data: bytes, pieces: list[Piece]) -> None:
        """Read the events that `data` completes; none is the end of the connection."""
        try:
            events = self._splitter.feed(data)
        except EventTooLong as error:
            raise Broken(str(error), kind="malformed", endpoint=self._server.name) from None
        for event in events:
            if event.startswith(COMMENT):
                self._hear(event, pieces)
            if not (said := data_of(event)):
                continue
            if said.startswith(DONE):
                self.is_complete = True
                return
            self.reader.read(said, pieces)
        if not data:
            self._end(pieces)

    async def drain(self) -> None:
        """Read what comes after the last event, usually the end, so that the connection can be used again."""
        try:
            async with asyncio.timeout(DRAIN_S):
                while await self._content.readany():
                    pass
        except (TimeoutError, aiohttp.ClientError, OSError):
            pass

    def close(self) -> None:
        """Close the connection, unless all of the answer has come."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._response.close()

    async def _next(self) -> bytes:
        """Return the bytes that come next, none at the end. Time in which the caller is busy is not counted."""
        if (idle_s := self._loop.time() - self._left_at) > SLOW_S:
            self._clock.idled(idle_s)
        self._is_waiting = True
        if self._clock.due < self._timer_at:
            self._start(self._clock.due)
        try:
            return await self._content.readany()
        except (aiohttp.ClientError, OSError) as error:
            if data := self._content._read_nowait(-1):  # aiohttp's `readany` raises before it gives what came ahead
                return data
            if self.reader.finish_reason is not None:  # the answer is whole, only its end is missing
                return b""
            if isinstance(error, ClientError):
                raise
            raise Broken(ENDED, kind="broken", endpoint=self._server.name) from None
        finally:
            self._is_waiting = False

    def _end(self, pieces: list[Piece]) -> None:
        """Take the end of the connection for that of the answer if it may be; a last event may lack its empty line."""
        said = data_of(self._splitter.rest + b"\n")
        if said is not None and said.startswith(DONE):
            self.is_complete = True
        elif said is not None:
            try:
                self.reader.read(said, pieces)
            except Broken as error:
                if error.kind != "malformed":  # that is half of an event
                    raise
        if not self.is_complete and self.reader.finish_reason is None:
            raise Broken(ENDED, kind="broken", endpoint=self._server.name)
        self.is_complete = True

    def _start(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = self._loop.call_at(due, self._look), due

    def _look(self, *, is_late: bool = False) -> None:
        """End the waiting if a budget is spent, else look again when it will be.

        Spent is what two looks find: if the loop was busy until now, it reads between them what has come meanwhile.
        """
        self._timer, self._timer_at = None, math.inf
        now, due = self._loop.time(), self._clock.due
        if not self._is_waiting or due == math.inf:
            return
        if now < due:
            self._start(due)
        elif not is_late:
            self._timer_at = now + GRACE_S
            self._timer = self._loop.call_at(self._timer_at, partial(self._look, is_late=True))
        else:
            self._content.set_exception(self._clock.error(now, self._server.name))

    def _hear(self, event: bytes, pieces: list[Piece]) -> None:
        for line in event.splitlines():
            if (waiting := waiting_of(line)) is not None:
                self.backend = waiting.backend or self.backend
                self._clock.hears(waiting, self._loop.time())
                pieces.append(waiting)
