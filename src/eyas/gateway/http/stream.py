"""Server-sent events, and detection of clients that disconnect. Independent of dialect and engine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from itertools import chain, repeat
from typing import Any, TypeVar

from starlette.types import Receive, Scope, Send

from eyas.base.errors import EyasError
from eyas.gateway.http.errors import INTERNAL, EngineFailed, error_event, failure_of

__all__ = ["KEEP_ALIVE", "PROBE", "SEND_BODY", "ClientGone", "EventStream", "named_sse", "sse", "until_disconnect"]

T = TypeVar("T")

KEEP_ALIVE = b": waiting\n\n"  # a comment, which clients skip
FIRST_KEEP_ALIVE_S = 5.0  # until then an error still has its HTTP status
KEEP_ALIVE_EVERY_S = 10.0  # clients and proxies give up on silent connections, some after 20 s
PROBE = "probe"  # in a scope's state: a comment that may stand between two writes, to see if a silent client has left
SEND_BODY = "send_body"  # in a scope's state: the server's own `send`, past what only looks at the start of answers
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would buffer chunks
]

log = logging.getLogger("eyas.gateway")


class ClientGone(Exception):
    """The client closed the connection before its answer was complete."""


def sse(data: bytes) -> bytes:
    """Return one event; JSON holds no raw newline, so a single data line is enough."""
    return b"data: " + data + b"\n\n"


def named_sse(name: str, data: bytes) -> bytes:
    """Return one event with an `event:` line."""
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Await `work`, but cancel it and raise ClientGone as soon as the client disconnects."""
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        task.cancel()
        watcher.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream:
    """ASGI response that sends each item of `events` at once; `on_close` is always called when the response ends.

    The headers are sent with the first item, or after FIRST_KEEP_ALIVE_S without one: an error before that is raised,
    to become an HTTP error. A later one becomes the last event instead of `last`, by `on_error` or else in the dialect
    of the path. While there is no item, `keep_alive` is sent: a comment, or an event of the dialect without effect.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        *,
        on_close: Callable[[], None],
        on_error: Callable[[EyasError], bytes] | None = None,
        last: bytes = b"",
        keep_alive: bytes = KEEP_ALIVE,
    ) -> None:
        self._events = events
        self._on_close = on_close
        self._on_error = on_error
        self._last = last
        self._keep_alive = keep_alive
        self._is_started = False
        self._is_silent = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope = scope
        self._send = send
        self._send_body = scope.get("state", {}).get(SEND_BODY, send)
        signs = asyncio.ensure_future(self._give_signs())
        try:
            await until_disconnect(receive, self._send_all())
        except ClientGone:
            pass
        finally:
            signs.cancel()
            self._on_close()

    async def _send_all(self) -> None:
        try:
            async with aclosing(self._events) as events:
                async for chunk in events:
                    await self._write(chunk)
        except Exception as error:
            if not self._is_started:
                raise
            if not isinstance(error, EyasError):
                log.exception("streaming the response failed")
                error = EngineFailed(INTERNAL)
            if self._on_error is not None:
                self._last = self._on_error(error)
            else:
                self._last = error_event(self._scope, failure_of(error))
        await self._start()
        await self._send({"type": "http.response.body", "body": self._last})

    async def _write(self, chunk: bytes) -> None:
        self._is_silent = False
        await self._start()
        await self._send_body({"type": "http.response.body", "body": chunk, "more_body": True})

    async def _start(self) -> None:
        if not self._is_started:
            self._is_started = True
            await self._send({"type": "http.response.start", "status": 200, "headers": HEADERS})

    async def _give_signs(self) -> None:
        for pause in chain((FIRST_KEEP_ALIVE_S,), repeat(KEEP_ALIVE_EVERY_S)):
            self._is_silent = True
            await asyncio.sleep(pause)
            if self._is_silent:
                await self._write(self._keep_alive)
