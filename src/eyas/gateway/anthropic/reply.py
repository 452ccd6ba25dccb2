"""An answer as a whole message, or as its stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Literal

import msgspec
from msgspec import Struct

from eyas.gateway.anthropic.events import Blocks, ContentBlock, StopReason, event_name, fold, stop_of
from eyas.gateway.http.stream import named_sse
from eyas.gateway.turn.delta import Delta, Totals

__all__ = ["LAST", "PING", "MessageReply"]


class OutputDetails(Struct, kw_only=True):
    thinking_tokens: int


class Usage(Struct, kw_only=True):
    """Tokens; those of the prompt are `input_tokens` and, found in the prefix cache, `cache_read_input_tokens`."""

    input_tokens: int
    output_tokens: int = 0
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    output_tokens_details: OutputDetails | None = None


class MessageObject(Struct, kw_only=True, tag="message"):
    id: str
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[ContentBlock]
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    usage: Usage


class MessageStart(Struct, kw_only=True, tag="message_start"):
    message: MessageObject


class StopFields(Struct, kw_only=True):
    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(Struct, kw_only=True, tag="message_delta"):
    delta: StopFields
    usage: Usage


def encoded(event: Struct) -> bytes:
    return named_sse(event_name(event), msgspec.json.encode(event))


PING = named_sse("ping", b'{"type":"ping"}')
LAST = named_sse("message_stop", b'{"type":"message_stop"}')


class MessageReply:
    """Turns the deltas of one answer into events, or into one message."""

    def __init__(self, message_id: str, model: str, *, max_tokens: int) -> None:
        self._id = message_id
        self._model = model
        self._max_tokens = max_tokens
        self._blocks = Blocks()
        self._is_new = True

    async def chunks(self, deltas: AsyncGenerator[Delta, None]) -> AsyncGenerator[bytes, None]:
        """Yield the events of each delta together; the first come with the engine's first token."""
        async for delta in deltas:
            if events := self.events(delta):
                yield events

    def events(self, delta: Delta) -> bytes:
        """Return the events of the next delta. Those of the last are complete but for LAST."""
        events = [encoded(event) for event in self._blocks.add(delta)]
        if self._is_new:
            events.insert(0, encoded(MessageStart(message=self._message([], _first_usage(delta)))))
            self._is_new = False
        if delta.totals is not None:
            reason, text = self._stop(delta)
            stop = StopFields(stop_reason=reason, stop_sequence=text)
            events.append(encoded(MessageDelta(delta=stop, usage=usage_of(delta.totals))))
        return b"".join(events)

    def whole(self, deltas: list[Delta]) -> bytes:
        """Return the message."""
        blocks = fold([event for delta in deltas for event in self._blocks.add(delta)])
        last = deltas[-1]
        assert last.totals is not None
        message = self._message(blocks, usage_of(last.totals))
        message.stop_reason, message.stop_sequence = self._stop(last)
        return msgspec.json.encode(message)

    def _message(self, content: list[ContentBlock], usage: Usage) -> MessageObject:
        return MessageObject(id=self._id, model=self._model, content=content, usage=usage)

    def _stop(self, last: Delta) -> tuple[StopReason, str | None]:
        return stop_of(last, has_call=self._blocks.has_call, max_tokens=self._max_tokens)


def usage_of(totals: Totals) -> Usage:
    """Return the usage of a complete answer."""
    return Usage(
        input_tokens=totals.num_prompt - totals.num_cached,
        cache_read_input_tokens=totals.num_cached,
        output_tokens=totals.num_tokens,
        output_tokens_details=OutputDetails(thinking_tokens=totals.num_reasoning),
    )


def _first_usage(delta: Delta) -> Usage:
    """Return the usage at the beginning of an answer."""
    if (prompt := delta.prompt) is None:
        return Usage(input_tokens=0)
    return Usage(input_tokens=prompt.num_prompt - prompt.num_cached, cache_read_input_tokens=prompt.num_cached)
