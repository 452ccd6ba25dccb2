"""Answers with a whole body or with a stream, and cancels the work when the client disconnects."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, TypeVar

from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import ASGIApp

from eyas.gateway.http.body import raw_response
from eyas.gateway.http.stream import KEEP_ALIVE, EventStream, until_disconnect

__all__ = ["answer", "answer_whole"]

T = TypeVar("T")


async def answer(
    http: HttpRequest,
    deltas: AsyncGenerator[T, None],
    *,
    close: Callable[[], None],
    whole: Callable[[list[T]], bytes],
    chunks: Callable[[AsyncGenerator[T, None]], AsyncGenerator[bytes, None]] | None,
    last: bytes = b"",
    keep_alive: bytes = KEEP_ALIVE,
) -> ASGIApp:
    """Answer with one body, or with a stream of `chunks` and the event `last`.

    `keep_alive` is what a silent stream sends. `close` is always called at the end.
    """
    if chunks is not None:
        return EventStream(chunks(deltas), on_close=close, last=last, keep_alive=keep_alive)

    async def work() -> bytes:
        return whole([delta async for delta in deltas])

    return await answer_whole(http, work(), close=close)


async def answer_whole(http: HttpRequest, work: Coroutine[Any, Any, bytes], *, close: Callable[[], None]) -> Response:
    """Answer with the JSON that `work` returns; `close` is always called at the end.

    Raises ClientGone if the client disconnects before that.
    """
    try:
        return raw_response(await until_disconnect(http.receive, work))
    finally:
        close()
