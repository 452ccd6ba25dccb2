"""Asks an endpoint, and keeps each request so that it can be repeated. Knows no check.

Whole answers and streams are read by the reader of `eyas.client`, which takes every engine's spelling of reasoning and
calls; what it does not keep (the order of events, `[DONE]`, log-probabilities) is kept here.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgspec

from eyas.base.serving.failures import message_of
from eyas.base.serving.sse import EventSplitter, EventTooLong, data_of
from eyas.bench.check.finding import Failed, Refused, Request
from eyas.client.call import Call
from eyas.client.chunks import ChunkReader
from eyas.client.errors import ClientError
from eyas.client.pieces import Content, Piece, Reasoning, Usage

__all__ = ["CHAT", "Answer", "Endpoint", "Messages", "Reply", "Streamed"]

CHAT = "/v1/chat/completions"
MODELS = "/v1/models"
BUDGETS = (256, 1024)  # tokens: a model may reason for as long before it writes
MAX_SHOWN = 160  # characters of a server's words
Messages = str | Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """A whole reply of any status; `value` is its JSON, None if it is none."""

    request: Request
    status: int
    content_type: str
    text: str
    value: Any

    @property
    def said(self) -> str:
        """Words of it about an error, in one short line."""
        return message_of(self.value) or " ".join(self.text.split())[:MAX_SHOWN]


@dataclass(kw_only=True, slots=True)
class Answer:
    """An answer of a chat. `logprobs` are the entries of `choices[0].logprobs.content` where it has them."""

    request: Request
    content: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    finish_reason: str | None = None
    usage: Usage | None = None
    logprobs: list[dict[str, Any]] | None = None
    message: dict[str, Any] = field(default_factory=dict)  # as it came; empty for a stream

    @property
    def text(self) -> str:
        """All that the model wrote: reasoning, content, calls."""
        return "\n".join((self.reasoning, self.content, *(f"{call.name} {call.arguments}" for call in self.calls)))


@dataclass(kw_only=True, slots=True)
class Streamed:
    """A streamed answer. `times_s` are those of its pieces of text, by the loop's clock.

    `ended`: by `[DONE]`, by the connection's end, or left by us.
    """

    request: Request
    sent_s: float
    answer: Answer
    times_s: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    ended: str = "left"


class Endpoint:
    """A server and a model of it. `http` has its base URL (without `/v1`) and key. `last` is the newest request."""

    def __init__(self, http: httpx.AsyncClient, model: str, *, context: int | None = None) -> None:
        self.http, self.model, self.context = http, model, context
        self.last: Request | None = None

    async def send(
        self, method: str, path: str, body: dict[str, Any] | str | None = None, *, limit_s: float | None = None
    ) -> Reply:
        """Send a request and return the reply, whatever its status. A body of text goes as it is. Raises Failed."""
        request = self.last = Request(method=method, path=path, body=body)
        content = None if body is None else (body if isinstance(body, str) else json.dumps(body)).encode()
        headers = {} if body is None else {"content-type": "application/json"}
        try:
            timeout = self.http.timeout if limit_s is None else limit_s
            reply = await self.http.request(method, path, content=content, headers=headers, timeout=timeout)
        except httpx.HTTPError as error:
            raise Failed(_why(error, limit_s or self.http.timeout.read), request) from None
        return _reply(request, reply)

    async def get(self, path: str) -> Reply:
        return await self.send("GET", path)

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        """Return the JSON of a reply of success. Raises Refused (4xx) and Failed."""
        return _good(await self.send("POST", path, body)).value

    def body(self, messages: Messages, **fields: Any) -> dict[str, Any]:
        """Make the body of a chat completion; text is one message of a user."""
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        return {"model": self.model, "messages": list(messages), **fields}

    async def chat(self, messages: Messages, *, limit_s: float | None = None, **fields: Any) -> Answer:
        """Return a whole answer; `limit_s` is in place of the client's limit. Raises Refused and Failed."""
        reply = _good(await self.send("POST", CHAT, self.body(messages, **fields), limit_s=limit_s))
        return answer_of(reply.value, reply.request)

    async def written(self, messages: Messages, **fields: Any) -> Answer:
        """Return an answer that has content or calls, if the largest of BUDGETS gets it; else the last one."""
        for budget in BUDGETS:
            answer = await self.chat(messages, max_tokens=budget, **fields)
            if answer.finish_reason != "length" or answer.content.strip() or answer.calls:
                break
        return answer

    async def stream(
        self, messages: Messages, *, until: Callable[[Streamed], bool] = lambda _: False, **fields: Any
    ) -> Streamed:
        """Return a streamed answer; `until` leaves it, and closes the connection. Raises Refused and Failed."""
        body = self.body(messages, stream=True, **fields)
        request = self.last = Request(method="POST", path=CHAT, body=body)
        now = asyncio.get_running_loop().time
        found = Streamed(request=request, sent_s=now(), answer=Answer(request=request))
        reader = ChunkReader("")
        async with self._opened(request, body) as response:
            async for data in _events(response, found):
                pieces: list[Piece] = []
                try:
                    reader.read(data, pieces)
                except ClientError as error:
                    raise Failed(str(error).removeprefix(": "), request) from None
                if reader.has_progress:
                    reader.has_progress = False
                    found.times_s.append(now())
                _add(found.answer, pieces)
                if until(found):
                    break
        answer = found.answer
        answer.calls, answer.finish_reason, answer.usage = reader.calls(), reader.finish_reason, reader.usage
        return found

    @asynccontextmanager
    async def _opened(self, request: Request, body: dict[str, Any]) -> AsyncIterator[httpx.Response]:
        try:
            async with self.http.stream("POST", CHAT, json=body) as response:
                if response.status_code != 200:
                    await response.aread()
                    _good(_reply(request, response))
                yield response
        except httpx.HTTPError as error:
            raise Failed(_why(error, self.http.timeout.read), request) from None


async def _events(response: httpx.Response, found: Streamed) -> AsyncIterator[bytes]:
    """Yield the data of events until `[DONE]`. Raises Failed for what is no stream of events."""
    kind = response.headers.get("content-type", "").partition(";")[0]
    if kind != "text/event-stream":
        raise Failed(f"a stream was asked for, and {kind or 'an answer without a type'} came", found.request)
    splitter = EventSplitter()
    try:
        async for part in response.aiter_bytes():
            for event in splitter.feed(part):
                said = data_of(event)
                if said == b"[DONE]":
                    found.ended = "[DONE]"
                    return
                if said:
                    yield said
    except EventTooLong as error:
        raise Failed(str(error), found.request) from None
    found.ended = "the connection's end"


def answer_of(value: Any, request: Request) -> Answer:
    """Read a whole chat completion. Raises Failed for what is none."""
    choice = _first_choice(value)
    if choice is None:
        raise Failed("no chat completion came back", request)
    reader = ChunkReader("")
    pieces: list[Piece] = []
    usage = value.get("usage")
    chunk = {"choices": [{"delta": choice["message"], "finish_reason": choice.get("finish_reason")}], "usage": usage}
    try:
        reader.read(msgspec.json.encode(chunk), pieces)
    except ClientError as error:
        raise Failed(f"no chat completion came back ({str(error).removeprefix(': ')})", request) from None
    answer = Answer(
        request=request,
        calls=reader.calls(),
        finish_reason=reader.finish_reason,
        usage=reader.usage,
        logprobs=_logprobs(choice),
        message=choice["message"],
    )
    _add(answer, pieces)
    return answer


def _first_choice(value: Any) -> dict[str, Any] | None:
    choices = value.get("choices") if isinstance(value, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    return choice if isinstance(choice, dict) and isinstance(choice.get("message"), dict) else None


def _logprobs(choice: dict[str, Any]) -> list[dict[str, Any]] | None:
    said = choice.get("logprobs")
    entries = said.get("content") if isinstance(said, dict) else None
    is_list = isinstance(entries, list) and all(isinstance(entry, dict) for entry in entries)
    return entries if is_list and entries else None


def _add(answer: Answer, pieces: Sequence[Piece]) -> None:
    for piece in pieces:
        if isinstance(piece, Content):
            answer.content += piece.text
        elif isinstance(piece, Reasoning):
            answer.reasoning += piece.text


def _reply(request: Request, response: httpx.Response) -> Reply:
    try:
        value = response.json()
    except (ValueError, RecursionError):
        value = None
    kind = response.headers.get("content-type", "").partition(";")[0]
    return Reply(request=request, status=response.status_code, content_type=kind, text=response.text, value=value)


def _good(reply: Reply) -> Reply:
    """Return the reply if it is one of success."""
    if reply.status == 200:
        return reply
    if 400 <= reply.status < 500 and reply.status != 429:
        raise Refused(reply.status, reply.said, reply.request)
    raise Failed(f"HTTP status {reply.status}: {reply.said or 'without a word why'}", reply.request)


def _why(error: httpx.HTTPError, limit_s: float | None) -> str:
    if isinstance(error, httpx.TimeoutException) and limit_s is not None:
        return f"no answer within {limit_s:g} s"
    return f"no answer ({' '.join(str(error).split()) or type(error).__name__})"
