"""Reads the events of a backend's stream, dialect by dialect: what each shows, says and ends. Nothing is changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from eyas.base.serving.failures import error_message, is_mistake
from eyas.base.serving.sse import data_of
from eyas.gateway.http.explain import INVALID_JSON
from eyas.router.upstream.errors import UpstreamError
from eyas.router.upstream.part import Part

__all__ = ["READERS", "Reader"]

DONE = b"[DONE]"


class Reader(Protocol):
    """Reads one stream. `is_complete`: it may end now, even without the event that says so."""

    is_complete: bool

    def read(self, event: bytes) -> Part:
        """Return an event as a part. Raises UpstreamError for what is none."""


class _Function(Struct):
    arguments: str | None = None


class _Call(Struct):
    function: _Function | None = None


class _Delta(Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None

    def written(self) -> str:
        text = self.reasoning_content or self.reasoning or ""  # servers send both names with one text
        if self.content:
            text += self.content
        if self.refusal:
            text += self.refusal
        if self.tool_calls:
            text += "".join(call.function.arguments or "" for call in self.tool_calls if call.function is not None)
        return text


class _ChatChoice(Struct):
    index: int = 0
    delta: _Delta | None = None
    finish_reason: str | None = None


class _ChatChunk(Struct):
    choices: list[_ChatChoice]
    error: Any = None


class _TextChoice(Struct):
    index: int = 0
    text: str = ""
    finish_reason: str | None = None


class _TextChunk(Struct):
    choices: list[_TextChoice]
    error: Any = None


class _ChoiceReader:
    """Common part of chat and completions: choices that finish one by one, and `[DONE]`."""

    def __init__(self) -> None:
        self.is_complete = False
        self._running: set[int] = set()
        self._finished: set[int] = set()

    def read(self, event: bytes) -> Part:
        data = data_of(event)
        if data is None:
            return Part(data=event, is_noise=True)
        if data == DONE or data.strip() == DONE:
            return Part(data=event, is_last=True)
        text, shows, finishes, opens = "", False, False, False
        try:
            for index, written, finish in self._choices(data):
                if written:
                    shows = True
                    if index == 0:
                        text = written
                if finish is not None:
                    finishes = True
                    self._finished.add(index)
                if index not in self._running:
                    self._running.add(index)
                    opens = True
        except msgspec.ValidationError:
            return self._other(event, data)
        except INVALID_JSON:
            raise UpstreamError("malformed", "an event of its stream is not JSON") from None
        if finishes:
            self.is_complete = self._running == self._finished
        elif not shows and not opens:  # a choice's first chunk has its role
            return self._other(event, data)
        return Part(data=event, text=text, shows=shows)

    def _choices(self, data: bytes) -> list[tuple[int, str, str | None]]:
        """Return index, text and finish of each choice. Raises msgspec.ValidationError if it is to be read slowly."""
        raise NotImplementedError

    def _other(self, event: bytes, data: bytes) -> Part:
        """Read an event without text, or with fields that are unknown or of other types: the slow way."""
        value = _object(data)
        if (error := _error_part(event, value)) is not None:
            return error
        choices = value.get("choices")
        if not isinstance(choices, list):
            raise UpstreamError("malformed", "an event of its stream has no choices")
        if not choices:
            return Part(data=event)  # usage, or what a filter says of the prompt
        is_empty = not value.get("usage")
        for choice in choices:
            said = (choice.get("delta", choice) or {}) if isinstance(choice, dict) else {"?": choice}
            fields = {name for name, item in said.items() if item} if isinstance(said, dict) else {"?"}
            if fields - {"role", "index", "finish_reason", "logprobs"}:
                return Part(data=event, shows=True)
        return Part(data=event, is_noise=is_empty)


class ChatReader(_ChoiceReader):
    """`/v1/chat/completions`."""

    _decoder = msgspec.json.Decoder(_ChatChunk)

    def _choices(self, data: bytes) -> list[tuple[int, str, str | None]]:
        chunk = self._decoder.decode(data)
        if chunk.error:
            raise msgspec.ValidationError
        return [
            (choice.index, choice.delta.written() if choice.delta is not None else "", choice.finish_reason)
            for choice in chunk.choices
        ]


class CompletionReader(_ChoiceReader):
    """`/v1/completions`."""

    _decoder = msgspec.json.Decoder(_TextChunk)

    def _choices(self, data: bytes) -> list[tuple[int, str, str | None]]:
        chunk = self._decoder.decode(data)
        if chunk.error:
            raise msgspec.ValidationError
        return [(choice.index, choice.text, choice.finish_reason) for choice in chunk.choices]


class _Response(Struct):
    id: str = ""
    status: str = ""
    error: dict[str, Any] | None = None


class _ResponseEvent(Struct):
    type: str
    delta: str | None = None
    message: str | None = None
    response: _Response | None = None


class ResponsesReader:
    """`/v1/responses`."""

    _decoder = msgspec.json.Decoder(_ResponseEvent)
    _ends = frozenset({"response.completed", "response.incomplete", "response.cancelled"})

    def __init__(self) -> None:
        self.is_complete = False

    def read(self, event: bytes) -> Part:
        data = data_of(event)
        if data is None or data.strip() == DONE:  # some servers end every kind of stream with it
            return Part(data=event, is_noise=True)
        try:
            said = self._decoder.decode(data)
        except INVALID_JSON:
            return self._other(event, data)
        kind = said.type
        if said.delta is not None:
            return Part(data=event, text=said.delta, shows=bool(said.delta), is_noise=not said.delta)
        if kind in self._ends:
            self.is_complete = True
            return Part(data=event, is_last=True)
        stored = said.response.id if said.response is not None and said.response.id else None
        if kind in ("error", "response.failed"):
            found = _object(data) if said.response is None else said.response.error
            return _error_part(event, {"error": found or "the response failed"}) or Part(data=event)
        is_noise = kind.endswith(("keepalive", "ping"))
        return Part(data=event, shows=kind.endswith(".done"), is_noise=is_noise, stored=stored)

    def _other(self, event: bytes, data: bytes) -> Part:
        value = _object(data)
        if (error := _error_part(event, value)) is not None:
            return error
        kind = value.get("type")
        if not isinstance(kind, str):
            raise UpstreamError("malformed", "an event of its stream has no type")
        return Part(data=event, shows=kind.endswith((".delta", ".done")))


class _BlockDelta(Struct):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None


class _MessageEvent(Struct):
    type: str
    delta: _BlockDelta | None = None


class MessagesReader:
    """`/v1/messages`, of a backend that has it."""

    _decoder = msgspec.json.Decoder(_MessageEvent)
    _texts = frozenset({"text_delta", "thinking_delta", "input_json_delta"})

    def __init__(self) -> None:
        self.is_complete = False

    def read(self, event: bytes) -> Part:
        data = data_of(event)
        if data is None:
            return Part(data=event, is_noise=True)
        try:
            said = self._decoder.decode(data)
        except INVALID_JSON:
            if (error := _error_part(event, _object(data))) is not None:
                return error
            raise UpstreamError("malformed", "an event of its stream is none of a message") from None
        match said.type:
            case "content_block_delta" if said.delta is not None:
                delta = said.delta
                text = delta.text or delta.thinking or delta.partial_json or ""
                is_empty = not text and delta.type in self._texts
                return Part(data=event, text=text, shows=not is_empty, is_noise=is_empty)
            case "message_stop":
                self.is_complete = True
                return Part(data=event, is_last=True)
            case "error":
                return _error_part(event, _object(data)) or Part(data=event, error="it sent an error")
            case kind:
                return Part(data=event, is_noise=kind == "ping")


READERS: dict[str, type[Reader]] = {
    "/v1/chat/completions": ChatReader,
    "/v1/completions": CompletionReader,
    "/v1/responses": ResponsesReader,
    "/v1/messages": MessagesReader,
}


def _object(data: bytes) -> dict[str, Any]:
    """Return the object that an event holds. Raises UpstreamError for anything else."""
    try:
        value = msgspec.json.decode(data)
    except INVALID_JSON:
        raise UpstreamError("malformed", "an event of its stream is not JSON") from None
    if not isinstance(value, dict):
        raise UpstreamError("malformed", "an event of its stream is no JSON object")
    return value


def _error_part(event: bytes, value: Mapping[str, Any]) -> Part | None:
    """Return an event with an error as a part; None if it has none.

    A mistake of the client is an answer: another backend would find the same, and no backend has failed.
    """
    message = error_message(value)
    if message is None:
        return None
    if is_mistake(value["error"]):
        return Part(data=event, is_last=True, is_mistake=True)
    return Part(data=event, error=message)
