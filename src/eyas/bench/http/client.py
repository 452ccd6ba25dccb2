"""A lean client for measuring servers: one connection that sends requests and times the events that come back.

It parses as little as it can, so that the server is the slower side: events are counted by what each of them has once,
tokens are taken from `usage`, never from the number of events.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from eyas.base.errors import UserError

__all__ = ["APIS", "Answer", "Api", "Connection", "Target"]

PROMPT_MS = re.compile(rb'"prompt_ms": ?([\d.]+)')
LAST_CHUNK = b"\r\n0\r\n\r\n"  # a head may end with 0 and an empty line, too
TAIL_BYTES = 8192  # the last events: usage and timings


@dataclass(frozen=True, kw_only=True, slots=True)
class Api:
    """Differences between APIs: where one is asked, and how its chunks of text and its counts of tokens look."""

    path: str
    headers: tuple[str, ...]
    options: Mapping[str, Any]  # of a streaming request
    mark: bytes  # stands in each chunk once
    num_others: int  # marks that are no chunks
    text: re.Pattern[bytes]
    tokens: re.Pattern[bytes]
    prompt: re.Pattern[bytes]  # each of its matches counts tokens of the prompt


APIS = {
    "chat": Api(
        path="/v1/chat/completions",
        headers=(),
        options={"stream_options": {"include_usage": True}},
        mark=b"\n\n",  # JSON has no raw newlines
        num_others=2,  # usage and [DONE]
        text=re.compile(rb'"(?:content|reasoning_content|reasoning|text)": ?"[^"]'),
        tokens=re.compile(rb'"completion_tokens": ?(\d+)'),
        prompt=re.compile(rb'"prompt_tokens": ?(\d+)'),
    ),
    "messages": Api(
        path="/v1/messages",
        headers=("anthropic-version: 2023-06-01",),
        options={},
        mark=b"event: content_block_delta\n",
        num_others=0,
        text=re.compile(rb'"(?:text|thinking)": ?"[^"]'),
        tokens=re.compile(rb'"output_tokens": ?(\d+)'),
        prompt=re.compile(rb'"(?:cache_read_|cache_creation_)?input_tokens": ?(\d+)'),
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """A server and model to ask, by a URL that may end in `/v1` or the path of `api`."""

    host: str
    port: int
    path: str
    model: str
    key: str | None = None
    api: Api = APIS["chat"]

    @classmethod
    def parse(cls, url: str, *, model: str, key: str | None = None, api: Api = APIS["chat"]) -> Target:
        """Parse the address of a server. Raises UserError."""
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise UserError(f"'{url}' is no address such as http://127.0.0.1:8000; https is not measured")
        base = parts.path.rstrip("/").removesuffix(api.path).removesuffix("/v1")
        return cls(host=parts.hostname, port=parts.port or 80, path=base + api.path, model=model, key=key, api=api)

    def request(self, *contents: str, max_tokens: int) -> bytes:
        """Return the bytes of one streaming request; the messages are by user and assistant in turns."""
        roles = ("user", "assistant")
        body: Mapping[str, Any] = {
            "model": self.model,
            "messages": [{"role": roles[i % 2], "content": content} for i, content in enumerate(contents)],
            "max_tokens": max_tokens,
            "stream": True,
            **self.api.options,
        }
        data = json.dumps(body).encode()
        host = f"[{self.host}]" if ":" in self.host else self.host
        head = [f"POST {self.path} HTTP/1.1", f"Host: {host}:{self.port}", "Content-Type: application/json"]
        head += [*self.api.headers, *([f"Authorization: Bearer {self.key}"] if self.key else [])]
        return "\r\n".join([*head, f"Content-Length: {len(data)}", "", ""]).encode() + data


@dataclass(slots=True)
class Answer:
    """Times and counts of one answer: times by `time.perf_counter`; `num_events` counts chunks of text."""

    sent: float
    first: float | None = None  # the first event with text
    last: float = 0.0
    num_events: int = 0
    num_tokens: int = 0
    num_prompt: int = 0  # tokens, cached ones included
    prompt_ms: float | None = None  # what the server says that its engine took to the first token
    events: list[tuple[float, int]] = field(default_factory=list)  # when, and how many came at once


class Connection(asyncio.Protocol):
    """A keep-alive connection, for one request at a time."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._transport: asyncio.Transport | None = None
        self._done: asyncio.Future[None] | None = None
        self._answer = Answer(0.0)
        self._tail = b""

    @classmethod
    @asynccontextmanager
    async def open(cls, target: Target) -> AsyncGenerator[Connection, None]:
        """Open a connection. Raises UserError."""
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(lambda: cls(target.api), target.host, target.port)
        except OSError as error:
            where = f"{target.host}:{target.port}"
            raise UserError(f"no server answers at {where} ({error.strerror}); is it running?") from error
        try:
            yield connection
        finally:
            connection._close()

    async def ask(self, request: bytes) -> Answer:
        """Send a request and wait for the end of its answer. Raises UserError for anything but a stream."""
        assert self._transport is not None, "open"
        self._done = asyncio.get_running_loop().create_future()
        self._tail = b""
        self._answer = answer = Answer(time.perf_counter())
        self._transport.write(request)
        await self._done
        answer.num_events -= self._api.num_others
        if (tokens := self._api.tokens.findall(self._tail)) and answer.first is not None:
            answer.num_tokens = int(tokens[-1])
            answer.num_prompt = sum(map(int, self._api.prompt.findall(self._tail.rpartition(b'"usage"')[2])))
        else:
            raise UserError(f"no stream with usage came back, but: {self._tail[:300]!r}")
        if prompt_ms := PROMPT_MS.findall(self._tail):
            answer.prompt_ms = float(prompt_ms[-1])
        return answer

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # -- asyncio.Protocol ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        now, answer = time.perf_counter(), self._answer
        mark = self._api.mark
        if answer.first is None and self._api.text.search(data):
            answer.first = now
        count = (self._tail[1 - len(mark) :] + data).count(mark)  # a mark may come in two parts
        if count:
            answer.last = now
            answer.num_events += count
            answer.events.append((now, count))
        self._tail = (self._tail + data)[-TAIL_BYTES:]
        is_refusal = answer.first is None and b"text/event-stream" not in self._tail and data.endswith(b"}")
        if self._done is not None and not self._done.done() and (self._tail.endswith(LAST_CHUNK) or is_refusal):
            self._done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(None)
