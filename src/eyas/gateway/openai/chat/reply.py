"""Converts deltas of a chat request to `chat.completion` answers and `chat.completion.chunk`s."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from eyas.base.tokens.tokenizer import TextCodec
from eyas.base.types import FinishReason, Request
from eyas.gateway.http.stream import sse
from eyas.gateway.openai.common import (
    LogprobEntry,
    Metrics,
    Timings,
    TokenNames,
    Usage,
    metrics_of,
    prompt_logprobs_json,
    timings_of,
    usage_of,
)
from eyas.gateway.openai.fields import StreamOptions
from eyas.gateway.turn.delta import Delta, Kind, Piece, ScoredToken, Totals

__all__ = ["ChatReply", "ReplyOptions"]

BREAK = "\n"  # between two messages that a client sees as one text


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplyOptions:
    """Options for the contents and the form of an answer."""

    stream: StreamOptions | None = None
    with_logprobs: bool = False
    with_reasoning: bool = True
    with_token_ids: bool = False
    tokens_as_ids: bool = False


class CallFunction(Struct, kw_only=True):
    name: str | UnsetType = UNSET
    arguments: str


class Call(Struct, kw_only=True):
    """A call of an answer; in chunks `index` identifies it, and the first chunk of each has id, type and name."""

    index: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: CallFunction


class Part(Struct, kw_only=True):
    """`message` of a whole answer and `delta` of a chunk. Reasoning has llama.cpp's name and vLLM's."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[Call] | UnsetType = UNSET
    refusal: UnsetType | None = UNSET


class Logprobs(Struct, kw_only=True):
    content: list[LogprobEntry]
    refusal: None = None


class ChatChoice(Struct, kw_only=True):
    index: int
    message: Part | UnsetType = UNSET
    delta: Part | UnsetType = UNSET
    logprobs: Logprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: Sequence[int] | UnsetType = UNSET


class Completion(Struct, kw_only=True):
    id: str
    object: Literal["chat.completion", "chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage | UnsetType | None = UNSET
    timings: Timings | UnsetType = UNSET
    metrics: Metrics | UnsetType = UNSET
    prompt_token_ids: Sequence[int] | UnsetType = UNSET
    prompt_logprobs: list[dict[str, Any] | None] | UnsetType = UNSET


@dataclass(slots=True)
class _Choice:
    """State of a choice: what its next chunk depends on."""

    begun: bool = False
    reasoning_message: int | None = None
    content_message: int | None = None
    calls: dict[int, int] = field(default_factory=dict)  # message number to index of the call


class ChatReply:
    """Turns the deltas of one request into chunks, or into one whole answer."""

    def __init__(self, request: Request, model: str, codec: TextCodec, options: ReplyOptions) -> None:
        self._request = request
        self._model = model
        self._options = options
        self._names = TokenNames(codec, as_ids=options.tokens_as_ids)
        self._created = int(time.time())
        self._choices = [_Choice() for _ in range(request.params.n)]
        self._totals: list[Totals] = []
        self._num_tokens = 0
        stream = options.stream
        self._with_usage = stream is not None and bool(stream.include_usage)
        self._is_continuous = stream is not None and stream.is_continuous

    async def chunks(self, deltas: AsyncGenerator[Delta, None]) -> AsyncGenerator[bytes, None]:
        """Yield an event for each chunk as its delta comes, and the usage at the end if it was requested."""
        async for delta in deltas:
            if (chunk := self._chunk(delta)) is not None:
                yield sse(chunk)
        if self._with_usage:
            yield sse(msgspec.json.encode(self._completion("chat.completion.chunk", [], usage=usage_of(self._totals))))

    def whole(self, deltas: list[Delta]) -> bytes:
        """Return all deltas as the JSON of one `chat.completion`."""
        choices = [
            self._whole_choice(index, [delta for delta in deltas if delta.choice == index])
            for index in range(len(self._choices))
        ]
        totals = [delta.totals for delta in deltas if delta.totals is not None]
        completion = self._completion("chat.completion", choices, usage=usage_of(totals))
        completion.timings = timings_of(totals)
        if len(totals) == 1:
            completion.metrics = metrics_of(totals[0])
        if self._options.with_token_ids:
            completion.prompt_token_ids = self._request.prompt_ids
        if self._request.params.prompt_logprobs is not None:
            logprobs = next(delta.prompt_logprobs for delta in deltas if delta.choice == 0)
            completion.prompt_logprobs = prompt_logprobs_json(self._names, self._request.prompt_ids, logprobs or ())
        return msgspec.json.encode(completion)

    def _chunk(self, delta: Delta) -> bytes | None:
        """Return a chunk: a choice's first names the role, its last has the timings; None if it would be empty."""
        state = self._choices[delta.choice]
        part = self._part(state, delta)
        self._num_tokens += len(delta.token_ids)
        if part is None and delta.finish is None and not self._options.with_token_ids:
            return None
        part = part or Part()
        is_first = not any(choice.begun for choice in self._choices)
        if not state.begun:
            state.begun = True
            part.role = "assistant"
        choice = ChatChoice(
            index=delta.choice,
            delta=part,
            logprobs=self._logprobs(delta.scored),
            finish_reason=self._finish_reason(state, delta.finish),
        )
        completion = self._completion("chat.completion.chunk", [choice], usage=None if self._with_usage else UNSET)
        if self._options.with_token_ids:
            choice.token_ids = delta.token_ids
            if is_first:
                completion.prompt_token_ids = self._request.prompt_ids
        if delta.totals is not None:
            choice.stop_reason = delta.stop_reason
            self._totals.append(delta.totals)
            completion.timings = timings_of([delta.totals])
            completion.metrics = metrics_of(delta.totals)
        if self._is_continuous:
            prompt = len(self._request.prompt_ids)
            completion.usage = Usage(
                prompt_tokens=prompt, completion_tokens=self._num_tokens, total_tokens=prompt + self._num_tokens
            )
        return msgspec.json.encode(completion)

    def _whole_choice(self, index: int, deltas: list[Delta]) -> ChatChoice:
        state = self._choices[index]
        parts = [part for delta in deltas if (part := self._part(state, delta)) is not None]
        calls: list[Call] = []
        for call in (call for part in parts for call in part.tool_calls or ()):
            if call.id is not UNSET:
                calls.append(call)
                call.index = UNSET
            else:
                calls[-1].function.arguments += call.function.arguments
        content = "".join(part.content or "" for part in parts)
        message = Part(role="assistant", content=content if content or not calls else None, refusal=None)
        if reasoning := "".join(part.reasoning or "" for part in parts):
            message.reasoning = message.reasoning_content = reasoning
        if calls:
            message.tool_calls = calls
        last = deltas[-1]
        choice = ChatChoice(
            index=index,
            message=message,
            logprobs=self._logprobs([token for delta in deltas for token in delta.scored]),
            finish_reason=self._finish_reason(state, last.finish),
            stop_reason=last.stop_reason,
        )
        if self._options.with_token_ids:
            choice.token_ids = [token_id for delta in deltas for token_id in delta.token_ids]
        return choice

    def _part(self, state: _Choice, delta: Delta) -> Part | None:
        """Return what a delta adds to its choice, None if nothing visible."""
        part = Part()
        for piece in delta.pieces:
            if piece.kind is Kind.CONTENT:
                part.content = (part.content or "") + _joined(state.content_message, piece)
                state.content_message = piece.message
            elif piece.kind is Kind.CALL:
                part.tool_calls = [*(part.tool_calls or ()), self._call(state, delta.choice, piece)]
            elif self._options.with_reasoning:
                part.reasoning = (part.reasoning or "") + _joined(state.reasoning_message, piece)
                part.reasoning_content = part.reasoning
                state.reasoning_message = piece.message
        has_any = part.content or part.reasoning or part.tool_calls
        return part if has_any else None

    def _call(self, state: _Choice, choice: int, piece: Piece) -> Call:
        index = state.calls.get(piece.message)
        if index is not None:
            return Call(index=index, function=CallFunction(arguments=piece.text))
        index = state.calls[piece.message] = len(state.calls)
        own = self._request.request_id.rpartition("-")[2]
        return Call(
            index=index,
            id=f"call_{own[:24]}{choice:x}{index:02x}",
            type="function",
            function=CallFunction(name=piece.name or "", arguments=piece.text),
        )

    def _finish_reason(self, state: _Choice, finish: FinishReason | None) -> str | None:
        return "tool_calls" if finish is FinishReason.STOP and state.calls else finish

    def _logprobs(self, scored: Sequence[ScoredToken]) -> Logprobs | None:
        if not self._options.with_logprobs:
            return None
        return Logprobs(content=[self._names.entry(token.token_id, token.logprob) for token in scored])

    def _completion(
        self,
        kind: Literal["chat.completion", "chat.completion.chunk"],
        choices: list[ChatChoice],
        *,
        usage: Usage | UnsetType | None,
    ) -> Completion:
        return Completion(
            id=self._request.request_id,
            object=kind,
            created=self._created,
            model=self._model,
            choices=choices,
            usage=usage,
        )


def _joined(last: int | None, piece: Piece) -> str:
    return piece.text if last in (None, piece.message) else BREAK + piece.text
