"""One request at one endpoint: asked again while nothing of an answer has come, then its pieces to the end."""

from __future__ import annotations

import asyncio
import re

import aiohttp

from eyas.client.clock import Clock
from eyas.client.errors import ClientError, Refused
from eyas.client.pieces import End, Piece, Timings
from eyas.client.question import Question
from eyas.client.refusals import error_in_whole, hidden
from eyas.client.server import Server
from eyas.client.stream import Stream
from eyas.client.tries import Tries
from eyas.client.whole import first_model

__all__ = ["Run"]

JSON = "application/json"
CHAT = "/chat/completions"
USAGE = re.compile("stream_options|include_usage")


class Run:
    """State of a request at `server`. `batch` returns its pieces until `is_over`; `close` ends it at any time.

    `began` is a time of the loop: that of the call. Raises CircuitOpen where the server is not to be asked.
    """

    def __init__(
        self, server: Server, question: Question, model: str | None, clock: Clock, *, began: float, max_tries: int
    ) -> None:
        self._server, self._question, self._model, self._clock = server, question, model, clock
        self._began = began
        self._loop = asyncio.get_running_loop()
        self._tries = Tries(server, clock, max_tries=max_tries)
        self._stream: Stream | None = None
        self._first_s: float | None = None
        self.is_over = False

    @property
    def has_begun(self) -> bool:
        """Whether something of an answer has come, so that it must not be asked for again."""
        return self._clock.has_begun

    async def batch(self) -> list[Piece]:
        """Return what comes next, maybe nothing. Raises ClientError when no other try will help."""
        try:
            if self._stream is None:
                await self._tries.begin()
                self._stream = await self._ask()
                return []
            pieces = await self._stream.batch()
        except (TimeoutError, ClientError) as found:
            error = self._tries.error_of(found)
            if self._stream is not None:
                self._stream.reader.keep_in(error)
                self._stream.close()
                self._stream = None
            return [self._tries.failed(error)]
        if self._first_s is None and self._clock.has_begun:
            self._first_s = self._loop.time() - self._began
        if self._stream.is_complete:
            self._tries.ended(None)
            self.is_over = True
            pieces.append(self._end(self._stream))
        return pieces

    async def finish(self) -> None:
        """Read what follows the last event, so that the connection can be used again."""
        if self._stream is not None:
            await self._stream.drain()

    def close(self) -> None:
        """Close the connection, if the answer is not complete: the caller leaves."""
        self._tries.ended(asyncio.CancelledError())
        if self._stream is not None:
            self._stream.close()

    async def _ask(self) -> Stream:
        response = await self._send()
        if response.content_type == JSON:
            body = await self._server.rest(response, until=self._clock.due)
            raise error_in_whole(hidden(body, self._server.key), self._server.name)
        try:
            return Stream(self._server, response, self._clock)
        except ClientError:
            response.close()
            raise

    async def _send(self) -> aiohttp.ClientResponse:
        """Send the request; once more without asking for usage, if that is what the server does not take."""
        server, until = self._server, self._clock.due
        if self._model is None:
            self._model = await first_model(server, until=until)
        with_usage = server.takes_usage
        try:
            body = self._question.body(self._model, with_usage=with_usage)
            return await server.send("POST", CHAT, body, until=until)
        except Refused as refused:
            if refused.status == 404:
                server.first_model = None  # another server may listen there by now
            if not with_usage or refused.status not in (400, 422) or not USAGE.search(refused.message):
                raise
        server.takes_usage = False
        return await server.send("POST", CHAT, self._question.body(self._model, with_usage=False), until=until)

    def _end(self, stream: Stream) -> End:
        reader, total_s = stream.reader, self._loop.time() - self._began
        rate = None
        if reader.usage is not None and self._first_s is not None and total_s > self._first_s:
            num_tokens = reader.usage.completion_tokens - 1
            rate = num_tokens / (total_s - self._first_s) if num_tokens > 0 else None
        return End(
            finish_reason=reader.finish_reason,
            usage=reader.usage,
            timings=Timings(first_token_s=self._first_s, total_s=total_s, tokens_per_s=rate),
            model=reader.model or self._model,
            backend=stream.backend,
            endpoint=self._server.name,
        )
