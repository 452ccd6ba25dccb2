"""Asks one endpoint for one answer and notes when what came: a Record. Streams are read by the client's parser.

No second try, no fallback and no breaker: what fails has failed. Times are taken when an event is read; how late the
event loop is stands next to the figures (`lag.py`).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import Any

import aiohttp

from eyas.base.errors import UserError
from eyas.base.serving.budgets import Budgets
from eyas.base.serving.engines import EngineName
from eyas.bench.endpoint.load.pace import Ticket
from eyas.bench.endpoint.prompts.prompt import Prompt
from eyas.bench.endpoint.records import Chunk, Counts, Load, Record
from eyas.bench.endpoint.target import Arm, Endpoint
from eyas.client.chunks import ChunkReader
from eyas.client.clock import Clock
from eyas.client.errors import Broken, ClientError, Refused
from eyas.client.pieces import Piece
from eyas.client.question import encoded
from eyas.client.refusals import error_in_whole, hidden
from eyas.client.server import Server
from eyas.client.stream import Stream

__all__ = ["Asker", "CountsOf", "TimedReader"]

JSON = "application/json"
HOPELESS = (401, 403, 404)  # statuses that no other request will change
TRIAL_TOKENS = 8
STALE_S = 0.1  # in which a connection ends that was closed before
MAX_STALE = 3
MAX_ERROR = 300  # characters of an error that are kept
# Usage is asked for in each chunk, else at the end, else not at all: what the endpoint takes.
USAGE_OPTIONS: tuple[dict[str, Any], ...] = (
    {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    {"stream_options": {"include_usage": True}},
    {},
)
# llama-server counts along in its timings, where it is asked to.
PREDICTED = re.compile(rb'"predicted_n": ?(\d+)')
COUNTING: dict[EngineName, dict[str, Any]] = {"llama.cpp": {"timings_per_token": True}}
IS_ABOUT_USAGE = re.compile("stream_options|include_usage|continuous_usage")

# Reads what a server says of one request's drafts from its last events, that with the finish reason first.
CountsOf = Callable[[Sequence[bytes]], Counts | None]


class TimedReader(ChunkReader):
    """Reads a stream and notes each chunk with text as it comes. `tail` are the events from the finish reason on."""

    __slots__ = ("_now", "_on_chunk", "chunks", "tail")

    def __init__(self, endpoint: str, key: str | None, now: Callable[[], float], on_chunk: Callable[[], None]) -> None:
        super().__init__(endpoint, key)
        self._now = now
        self._on_chunk = on_chunk
        self.chunks: list[Chunk] = []
        self.tail: list[bytes] = []

    def read(self, data: bytes, pieces: list[Piece]) -> None:
        usage, num_chars = self.usage, self.num_chars
        super().read(data, pieces)
        if self.kind is not None:
            usage = None if self.usage is usage else self.usage
            tokens = _told(data) if usage is None else usage.completion_tokens
            self.chunks.append(Chunk(self._now(), self.kind, self.num_chars - num_chars, tokens))
            self._on_chunk()
        if self.finish_reason is not None:
            self.tail.append(data)


class Asker:
    """Asks the endpoint of an arm, inside one event loop, until it is closed. `now` returns the time of the run.

    `counts_of` reads counts of drafts from the last events; `server` stands for the connections to the endpoint. `now`
    is not the loop's own clock: uvloop's stands still during a turn of the loop, and has whole milliseconds.
    """

    def __init__(
        self,
        arm: Arm,
        endpoint: Endpoint,
        *,
        now: Callable[[], float],
        timeout_s: float,
        counts_of: CountsOf | None = None,
        keeps_text: bool = False,
        server: Server | None = None,
    ) -> None:
        self._arm, self._endpoint = arm, endpoint
        self._server = server or Server(f"{endpoint.root}/v1", key=arm.key, name=arm.name, breaker=None)
        self.now, self._counts_of, self._keeps_text = now, counts_of, keeps_text
        self._budgets = Budgets(queue_s=None, prefill_s=None, stall_s=None, total_s=timeout_s)
        self._usage: dict[str, Any] = {}

    async def close(self) -> None:
        """Close all connections, and end what is being answered."""
        await self._server.close()

    async def try_out(self, prompt: Prompt, load: Load) -> Record:
        """Ask for a few tokens and find out how usage may be asked for. Raises UserError where no answer comes."""
        load = Load(concurrency=1, mode=load.mode, max_tokens=min(load.max_tokens, TRIAL_TOKENS))
        for options in USAGE_OPTIONS:
            self._usage = options
            try:
                record = await self._ask(prompt, load, Ticket(number=0, scheduled_s=self.now(), is_measured=False))
            except ClientError as error:
                about_usage = isinstance(error, Refused) and IS_ABOUT_USAGE.search(error.message) is not None
                if options and about_usage:
                    continue
                raise UserError(_line(error)) from None
            return record
        raise AssertionError("without options nothing is refused for them")

    async def ask(
        self, prompt: Prompt, load: Load, ticket: Ticket, on_chunk: Callable[[], None] = lambda: None
    ) -> tuple[Record, str]:
        """Return the record of an answer, of whatever length; and why no further one will come, else ""."""
        reader = self._reader(on_chunk)
        sent_s = self.now()
        try:
            return await self._ask(prompt, load, ticket, reader), ""
        except ClientError as error:
            is_gone = isinstance(error, Broken) and error.kind == "refused"
            is_hopeless = is_gone or (isinstance(error, Refused) and error.status in HOPELESS)
            record = self._record(prompt, ticket, reader, sent_s=sent_s, error=_line(error))
            return record, _line(error) if is_hopeless else ""

    async def _ask(self, prompt: Prompt, load: Load, ticket: Ticket, reader: TimedReader | None = None) -> Record:
        reader = self._reader(lambda: None) if reader is None else reader
        path, body = self._body(prompt, load)
        loop, server = asyncio.get_running_loop(), self._server
        began, sent_s = loop.time(), self.now()
        clock = Clock(self._budgets, began, began=began)
        clock.sent(began)
        try:
            response = await self._send(path, body, until=clock.due)
            if response.content_type == JSON:
                said = await server.rest(response, until=clock.due)
                raise error_in_whole(hidden(said, server.key), server.name)
        except TimeoutError as error:
            raise error if isinstance(error, ClientError) else clock.error(loop.time(), server.name) from None
        stream: Stream | None = None
        try:
            stream = Stream(server, response, clock, reader)
            while not stream.is_complete:
                await stream.batch()
            record = self._record(prompt, ticket, reader, sent_s=sent_s)
            await stream.drain()
            return record
        finally:
            stream.close() if stream is not None else response.close()

    async def _send(self, path: str, body: bytes, *, until: float) -> aiohttp.ClientResponse:
        """Send a request; once more where a connection that was kept open turns out to be closed by the server.

        llama-server closes some after an answer, and says so only to the next request.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        for _ in range(MAX_STALE):
            try:
                return await self._server.send("POST", path, body, until=until)
            except Broken as error:
                if error.kind != "broken" or loop.time() - began > STALE_S:
                    raise
        return await self._server.send("POST", path, body, until=until)

    def _reader(self, on_chunk: Callable[[], None]) -> TimedReader:
        return TimedReader(self._server.name, self._server.key, self.now, on_chunk)

    def _body(self, prompt: Prompt, load: Load) -> tuple[str, bytes]:
        """Return path and body. Fields of the arm come last: they are what it differs in."""
        body: dict[str, Any] = {"model": self._endpoint.model, "max_tokens": load.max_tokens, "stream": True}
        if prompt.token_ids:
            body["prompt"] = prompt.token_ids
        else:
            body["messages"] = prompt.messages
        if prompt.tools:
            body["tools"] = prompt.tools
        if load.mode == "fixed":
            body["ignore_eos"] = True
        path = "/completions" if prompt.token_ids else "/chat/completions"
        counting = {} if self._endpoint.engine is None else COUNTING.get(self._endpoint.engine, {})
        return path, encoded({**body, **self._usage, **counting, **self._arm.fields})

    def _record(
        self, prompt: Prompt, ticket: Ticket, reader: TimedReader, *, sent_s: float, error: str | None = None
    ) -> Record:
        usage = reader.usage
        counts = self._counts_of(reader.tail) if self._counts_of is not None and reader.tail else None
        return Record(
            prompt=prompt.id,
            category=prompt.category,
            scheduled_s=ticket.scheduled_s,
            sent_s=sent_s,
            ended_s=self.now(),
            chunks=tuple(reader.chunks),
            prompt_tokens=None if usage is None else usage.prompt_tokens,
            cached_tokens=None if usage is None else usage.cached_tokens,
            output_tokens=None if usage is None else usage.completion_tokens,
            reasoning_tokens=None if usage is None else usage.reasoning_tokens,
            finish_reason=reader.finish_reason,
            error=error,
            counts=counts,
            is_measured=ticket.is_measured,
            text=reader.written() if self._keeps_text else "",
        )


def _told(data: bytes) -> int | None:
    found = PREDICTED.search(data) if b'"timings"' in data else None
    return None if found is None else int(found[1])


def _line(error: ClientError) -> str:
    return " ".join(str(error).split())[:MAX_ERROR]
