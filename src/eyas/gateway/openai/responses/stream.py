"""Converts deltas to events of `/v1/responses` and to its whole answer: one state machine, so that they cannot differ.

Each Harmony message of the answer becomes an item: reasoning, message or function call, in the model's order.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Struct, UnsetType

from eyas.base.errors import EyasError, InvalidRequest
from eyas.base.tokens.tokenizer import TextCodec
from eyas.base.types import FinishReason
from eyas.gateway.http.stream import named_sse
from eyas.gateway.openai.common import LogprobEntry, Metrics, Timings, TokenNames, metrics_of, timings_of
from eyas.gateway.openai.responses.items import (
    FunctionCall,
    MessageItem,
    OutputText,
    Phase,
    Reasoning,
    ReasoningText,
    Status,
)
from eyas.gateway.turn.delta import Delta, Kind, Piece, ScoredToken, Totals

__all__ = ["Event", "OutputItem", "ResponseGrowth", "ResponseObject", "encode_events"]

OutputItem: TypeAlias = MessageItem | Reasoning | FunctionCall
Part: TypeAlias = OutputText | ReasoningText
ErrorCode: TypeAlias = Literal["server_error", "invalid_prompt"]
ResponseStatus: TypeAlias = Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]


class Usage(Struct, kw_only=True):
    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int


class ResponseError(Struct, kw_only=True):
    code: ErrorCode
    message: str


class ResponseObject(Struct, kw_only=True):
    """The response as clients see it, whole or in events; most of it repeats the request, with the values in force."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: ResponseStatus = "in_progress"
    background: bool = False
    error: ResponseError | None = None
    incomplete_details: dict[str, str] | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    metadata: dict[str, str] = {}
    model: str
    output: list[OutputItem] = []
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    prompt_cache_key: str | None = None
    reasoning: dict[str, str | None] = {}
    safety_identifier: str | None = None
    service_tier: str = "default"
    store: bool = True
    temperature: float
    text: dict[str, Any] = {}
    tool_choice: Any = "auto"
    tools: list[dict[str, Any]] = []
    top_logprobs: int = 0
    top_p: float
    truncation: str = "disabled"
    usage: Usage | None = None
    user: str | None = None
    timings: Timings | UnsetType = UNSET
    metrics: Metrics | UnsetType = UNSET


class Event(Struct, kw_only=True):
    """One server-sent event; each type uses the fields that it has in the API."""

    type: str
    sequence_number: int
    response: ResponseObject | UnsetType = UNSET
    output_index: int | UnsetType = UNSET
    item: OutputItem | UnsetType = UNSET
    item_id: str | UnsetType = UNSET
    content_index: int | UnsetType = UNSET
    part: Part | UnsetType = UNSET
    delta: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    logprobs: list[LogprobEntry] | UnsetType = UNSET
    code: str | UnsetType = UNSET
    message: str | UnsetType = UNSET
    param: str | UnsetType | None = UNSET


def encode_events(events: Iterable[Event]) -> bytes:
    """Return events as bytes to send."""
    return b"".join(named_sse(event.type, msgspec.json.encode(event)) for event in events)


class ResponseGrowth:
    """Extends `response` by deltas, and returns the events of each step. The items' ids are made from `stem`.

    Call `begin`, `take` for each delta, and `fail` or `cancel` if the last delta never came. Encode the returned events
    before the next call. The last event holds the final response.
    """

    def __init__(self, response: ResponseObject, codec: TextCodec, *, stem: str, with_logprobs: bool) -> None:
        self.response = response
        self._codec = codec
        self._names = TokenNames(codec)
        self._stem = stem
        self._with_logprobs = with_logprobs
        self._num_events = 0
        self._open: _OpenItem | None = None
        self._num_content_bytes = self._num_scored_bytes = 0

    def begin(self) -> list[Event]:
        return [self._event(f"response.{name}", response=self._snapshot()) for name in ("created", "in_progress")]

    def take(self, delta: Delta) -> list[Event]:
        """Add a delta; one with `finish` completes the response, or leaves it incomplete at the token limit."""
        events: list[Event] = []
        shares = self._share(delta)
        if self._open is not None and all(piece.message != self._open.message for piece in delta.pieces):
            late = shares.pop(self._open.message, [])
            events += self._grow(Piece(message=self._open.message, kind=self._open.kind, text=""), late)
        for piece in delta.pieces:
            if self._open is None or piece.message != self._open.message:
                events += self._close("completed")
                events += self._begin_item(piece)
            events += self._grow(piece, shares.pop(piece.message, []))
        if delta.finish is not None and delta.totals is not None:
            events += self._finish(delta.finish, delta.totals)
        return events

    def fail(self, error: EyasError) -> list[Event]:
        """Mark the response as failed after an interrupted answer; the text so far stays."""
        self._abandon()
        code: ErrorCode = "invalid_prompt" if isinstance(error, InvalidRequest) else "server_error"
        self.response.error = ResponseError(code=code, message=str(error))
        return self._end("failed", "failed")

    def cancel(self) -> list[Event]:
        """Mark the response as cancelled by the client. The API has no such event: the status says it."""
        self._abandon()
        return self._end("cancelled", "incomplete")

    def error(self, message: str) -> list[Event]:
        """Return the event for a bug of the server, after which the response's state is unknown."""
        return [self._event("error", code="server_error", message=message, param=None)]

    def _event(self, kind: str, **fields: Any) -> Event:
        self._num_events += 1
        return Event(type=kind, sequence_number=self._num_events - 1, **fields)

    def _snapshot(self) -> ResponseObject:
        return msgspec.structs.replace(self.response, output=list(self.response.output))

    def _begin_item(self, piece: Piece) -> list[Event]:
        index = len(self.response.output)
        self._open = _OpenItem(piece, index, self._stem)
        self.response.output.append(self._open.item("in_progress"))
        added = self._event("response.output_item.added", output_index=index, item=self._open.item("in_progress"))
        if self._open.kind is Kind.CALL:
            return [added]
        part = self._open.part("", logprobs=[] if self._with_logprobs else UNSET)
        return [added, self._event("response.content_part.added", **self._open.place, part=part)]

    def _grow(self, piece: Piece, scored: Sequence[ScoredToken]) -> list[Event]:
        assert self._open is not None
        if not piece.text and not scored:
            return []
        self._open.texts.append(piece.text)
        if self._open.kind is Kind.CALL:
            name = "function_call_arguments"
        elif self._open.kind is Kind.REASONING:
            name = "reasoning_text"
        else:
            logprobs = [self._names.entry(token.token_id, token.logprob) for token in scored]
            self._open.logprobs += logprobs
            return [self._event("response.output_text.delta", **self._open.place, delta=piece.text, logprobs=logprobs)]
        return [self._event(f"response.{name}.delta", **self._open.place, delta=piece.text)]

    def _close(self, status: Status) -> list[Event]:
        if self._open is None:
            return []
        one, self._open = self._open, None
        item = one.item(status, with_logprobs=self._with_logprobs)
        self.response.output[one.index] = item
        text, place, events = "".join(one.texts), one.place, []
        if one.kind is Kind.CALL:
            events.append(self._event("response.function_call_arguments.done", **place, arguments=text))
        elif one.kind is Kind.REASONING:
            events.append(self._event("response.reasoning_text.done", **place, text=text))
        else:
            events.append(self._event("response.output_text.done", **place, text=text, logprobs=one.logprobs))
        if one.kind is not Kind.CALL:
            part = one.part(text, logprobs=one.logprobs if self._with_logprobs else UNSET)
            events.append(self._event("response.content_part.done", **place, part=part))
        return [*events, self._event("response.output_item.done", output_index=one.index, item=item)]

    def _abandon(self) -> None:
        """Keep the text that an item has so far, without an event."""
        if self._open is not None:
            item = self._open.item("incomplete", with_logprobs=self._with_logprobs)
            self.response.output[self._open.index] = item
            self._open = None

    def _finish(self, finish: FinishReason, totals: Totals) -> list[Event]:
        is_cut = finish is FinishReason.LENGTH
        events = self._close("incomplete" if is_cut else "completed")
        self.response.usage = _usage(totals)
        self.response.timings, self.response.metrics = timings_of([totals]), metrics_of(totals)
        if is_cut:
            self.response.incomplete_details = {"reason": "max_output_tokens"}
            return events + self._end("incomplete", "incomplete")
        self.response.completed_at = int(time.time())
        return events + self._end("completed", "completed")

    def _end(self, status: ResponseStatus, event: str) -> list[Event]:
        self.response.status = status
        return [self._event(f"response.{event}", response=self._snapshot())]

    def _share(self, delta: Delta) -> dict[int, list[ScoredToken]]:
        """Group the delta's tokens by the message with their first byte: a round may end one and begin another."""
        if not self._with_logprobs:
            return {}
        begins: list[tuple[int, int]] = []
        if self._open is not None and self._open.kind is Kind.CONTENT:
            begins.append((0, self._open.message))
        for piece in delta.pieces:
            if piece.kind is Kind.CONTENT:
                begins.append((self._num_content_bytes, piece.message))
                self._num_content_bytes += len(piece.text.encode())
        shares: dict[int, list[ScoredToken]] = {}
        for token in delta.scored:
            owners = [message for begin, message in begins if begin <= self._num_scored_bytes]
            if owners or begins:
                shares.setdefault(owners[-1] if owners else begins[0][1], []).append(token)
            self._num_scored_bytes += len(self._codec.token_bytes(token.token_id))
        return shares


class _OpenItem:
    """The item that the model is writing."""

    def __init__(self, piece: Piece, index: int, stem: str) -> None:
        self.message = piece.message
        self.kind = piece.kind
        self.index = index
        self.texts: list[str] = []
        self.logprobs: list[LogprobEntry] = []
        self._name = piece.name or ""
        self._phase: Phase = "commentary" if piece.channel == "commentary" else "final_answer"
        prefix = {Kind.REASONING: "rs", Kind.CONTENT: "msg", Kind.CALL: "fc"}[piece.kind]
        self._id = f"{prefix}_{stem}_{index}"
        self._call_id = f"call_{stem}_{index}"
        self.place: dict[str, Any] = {"item_id": self._id, "output_index": index}
        if piece.kind is not Kind.CALL:
            self.place["content_index"] = 0

    def part(self, text: str, *, logprobs: list[LogprobEntry] | UnsetType) -> Part:
        return ReasoningText(text=text) if self.kind is Kind.REASONING else OutputText(text=text, logprobs=logprobs)

    def item(self, status: Status, *, with_logprobs: bool = False) -> OutputItem:
        """Return the item so far; while in progress it has no content yet."""
        text = "".join(self.texts)
        if self.kind is Kind.CALL:
            return FunctionCall(id=self._id, call_id=self._call_id, name=self._name, arguments=text, status=status)
        part = self.part(text, logprobs=self.logprobs if with_logprobs else UNSET)
        if isinstance(part, ReasoningText):
            return Reasoning(id=self._id, content=[] if status == "in_progress" else [part], status=status)
        content: list[Any] = [] if status == "in_progress" else [part]
        return MessageItem(id=self._id, role="assistant", content=content, status=status, phase=self._phase)


def _usage(totals: Totals) -> Usage:
    return Usage(
        input_tokens=totals.num_prompt,
        # This field counts cache writes that are billed; here they are free.
        input_tokens_details={"cached_tokens": totals.num_cached, "cache_write_tokens": 0},
        output_tokens=totals.num_tokens,
        output_tokens_details={"reasoning_tokens": totals.num_reasoning},
        total_tokens=totals.num_prompt + totals.num_tokens,
    )
