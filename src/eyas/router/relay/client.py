"""The client's side of a request: the head of its answer, comments while it waits, and errors in its dialect."""

from __future__ import annotations

import asyncio
import logging
import math

import msgspec
from starlette.exceptions import HTTPException
from starlette.types import Scope, Send

from eyas.base.errors import EyasError
from eyas.base.serving.waiting import Waiting, waiting_comment
from eyas.gateway.http.errors import BUSY_RETRY_S, INTERNAL, Failure, error_body, error_event, error_head, failure_of
from eyas.gateway.http.stream import PROBE, SEND_BODY, named_sse
from eyas.router.manager.visit import NoBackend
from eyas.router.upstream.headers import Headers

__all__ = ["EVENT_STREAM", "Client", "failure_for"]

log = logging.getLogger(__name__)

EVENT_STREAM = (b"content-type", b"text/event-stream; charset=utf-8")
FIRST_COMMENT_S = 1.0  # until then an error still has its HTTP status
COMMENT_EVERY_S = 5.0
NOTHING = b":\n\n"  # a comment
STREAM_HEADERS: Headers = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]  # nginx would buffer chunks


class Client:
    """Writes one answer. `shown` are headers that every answer has from when they are known."""

    def __init__(self, scope: Scope, send: Send, loop: asyncio.AbstractEventLoop) -> None:
        self._scope, self._send, self._loop = scope, send, loop
        self._send_body: Send = scope["state"].get(SEND_BODY, send)
        self._timer: asyncio.TimerHandle | None = None
        self._comment: asyncio.Task[None] | None = None
        self._waits = False
        self._waiting = Waiting(state="reading")
        self.shown: Headers = []
        self.is_started = False
        self.status: int | None = None  # of the answer, once it has one

    # -- while it waits ------------------------------------------------------------------------------------------------

    def waits(self, since: float) -> None:
        """Begin to send comments, the first of them FIRST_COMMENT_S after `since`; once."""
        if self._waits:
            return
        self._waits = True
        self._timer = self._loop.call_at(since + FIRST_COMMENT_S, self._tell)

    def hears(self, waiting: Waiting) -> None:
        """Take note why it waits; a change is sent at once, if a comment has been sent."""
        old, self._waiting = self._waiting, waiting
        is_news = (old.state, old.position, old.backend) != (waiting.state, waiting.position, waiting.backend)
        if is_news and self.is_started and self._timer is not None:
            self._timer.cancel()
            self._tell()

    def _tell(self) -> None:
        self._timer = self._loop.call_later(COMMENT_EVERY_S, self._tell)
        if self._comment is None or self._comment.done():  # a client that reads nothing gets no more of them
            self._comment = self._loop.create_task(self._send_comment())

    async def _send_comment(self) -> None:
        await self._start_stream([EVENT_STREAM])
        await self.write(waiting_comment(self._waiting))

    async def quiet(self) -> None:
        """Send no more comments."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._comment is not None:
            comment, self._comment = self._comment, None
            await comment

    def close(self) -> None:
        """Send nothing more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._comment is not None:
            self._comment.cancel()

    # -- its answer ----------------------------------------------------------------------------------------------------

    async def begin(self, headers: Headers) -> None:
        """Start a stream, if comments have not. The head that went with them stays as it is."""
        await self.quiet()
        await self._start_stream(headers)

    async def write(self, data: bytes) -> None:
        """Send a piece of a stream. It returns when the client reads as fast as the backend writes."""
        await self._send_body({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes = b"") -> None:
        """Send the last piece of a stream."""
        self._scope["state"].pop(PROBE, None)
        await self._send_body({"type": "http.response.body", "body": data})

    async def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a whole answer."""
        await self.quiet()
        self.is_started, self.status = True, status
        head = [*headers, (b"content-length", str(len(body)).encode()), *self.shown]
        await self._send({"type": "http.response.start", "status": status, "headers": head})
        await self._send({"type": "http.response.body", "body": body})

    async def fail(self, failure: Failure, *, retry_after_s: float | None = None, number: int = 0) -> None:
        """Send an error: as the answer with its status, or as the last event of a stream, the `number`-th there."""
        await self.quiet()
        self.status = failure.status
        if self.is_started:
            await self.end(self._event(failure, number))
            return
        status, more = error_head(self._scope, failure)
        headers = [(b"content-type", b"application/json")]
        if retry_after_s is not None:
            headers.append((b"retry-after", str(math.ceil(max(1.0, retry_after_s))).encode()))
        headers += [(name.lower().encode(), value.encode()) for name, value in more.items()]
        await self.answer(status, headers, error_body(self._scope, failure))
        self.status = failure.status

    def _event(self, failure: Failure, number: int) -> bytes:
        if self._scope["path"] != "/v1/responses":
            return error_event(self._scope, failure)
        said = {"type": "error", "code": failure.code or "server_error", "message": failure.message, "param": None}
        return named_sse("error", msgspec.json.encode({**said, "sequence_number": number}))

    async def _start_stream(self, headers: Headers) -> None:
        if not self.is_started:
            self.is_started, self.status = True, 200
            self._scope["state"][PROBE] = NOTHING
            head = [*headers, *STREAM_HEADERS, *self.shown]
            await self._send({"type": "http.response.start", "status": 200, "headers": head})


def failure_for(error: Exception) -> tuple[Failure, float | None]:
    """Return what a client gets for an error, and the seconds after which it may try again; a bug is logged."""
    if isinstance(error, NoBackend):
        return Failure(status=error.status, message=str(error), code=error.code), error.retry_after_s
    if isinstance(error, EyasError):
        failure = failure_of(error)
        return failure, BUSY_RETRY_S if failure.status == 429 else None
    if isinstance(error, HTTPException):
        return Failure(status=error.status_code, message=error.detail), None
    log.error("a request failed", exc_info=error)
    return Failure(status=500, message=INTERNAL), None
