"""One answer of a client over a scripted server: its pieces, its error, how long it took, what was left behind."""

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tests.router.support.rawserver import RawServer, chunked, stream_head

from eyas.client import AsyncClient
from eyas.client.errors import ClientError
from eyas.client.pieces import Asked, Content, End, Piece, Waiting

__all__ = ["Got", "ask", "chunk", "event", "raw_stream", "run"]

T = TypeVar("T")


@dataclass
class Got:
    """What came of a request."""

    pieces: list[Piece] = field(default_factory=list)
    error: ClientError | None = None
    seconds: float = 0.0
    first_at: float | None = None  # of the first text, on the loop's clock, which all processes share

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces if isinstance(piece, Content))

    @property
    def end(self) -> End | None:
        return next((piece for piece in self.pieces if isinstance(piece, End)), None)

    @property
    def waits(self) -> list[Waiting]:
        return [piece for piece in self.pieces if isinstance(piece, Waiting)]

    @property
    def endpoints(self) -> list[str]:
        return [piece.endpoint for piece in self.pieces if isinstance(piece, Asked)]


async def ask(client: AsyncClient, script: Any = "Hi", **fields: Any) -> Got:
    """Ask with a script as the text, or with a text; an answer ends with its End, or with an error."""
    loop, got = asyncio.get_running_loop(), Got()
    began = loop.time()
    try:
        async for piece in client.stream(script if isinstance(script, str) else json.dumps(script), **fields):
            got.pieces.append(piece)
            if got.first_at is None and isinstance(piece, Content):
                got.first_at = loop.time()
    except ClientError as error:
        got.error = error
    got.seconds = loop.time() - began
    assert (got.error is None) == (bool(got.pieces) and isinstance(got.pieces[-1], End))
    assert sum(isinstance(piece, End) for piece in got.pieces) == (got.error is None)
    return got


def run(main: Coroutine[Any, Any, T], limit_s: float = 60.0) -> T:
    """Run a test's coroutine; it may leave no task behind."""

    async def watched() -> T:
        async with asyncio.timeout(limit_s):
            result = await main
        await asyncio.sleep(0.01)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return result

    return asyncio.run(watched())


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def chunk(finish: str | None = None, **delta: Any) -> bytes:
    """A chunk of a chat completion."""
    return event({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


@asynccontextmanager
async def raw_stream(
    *parts: bytes, ends: bool = True, pause_s: float = 0.0, resets: bool = False
) -> AsyncIterator[RawServer]:
    """Serve a stream of these bytes, each part a write of its own."""
    pieces = [stream_head("Connection: close"), *(chunked(part) for part in parts), *([b"0\r\n\r\n"] if ends else [])]
    async with RawServer(pieces, pause_s=pause_s, resets=resets).serving() as server:
        yield server
