"""Reads the chunks of a streamed chat completion: pieces, calls put together from fragments, figures at the end."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from eyas.base.serving.failures import error_message
from eyas.client.errors import Broken, ClientError
from eyas.client.pieces import Call, Content, Piece, Reasoning, Usage
from eyas.client.refusals import INVALID_JSON, error_in_stream, hidden

__all__ = ["ChunkReader"]


class _Function(Struct):
    name: str | None = None
    arguments: str | None = None


class _Fragment(Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Delta(Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    thinking: str | None = None
    refusal: str | None = None
    tool_calls: list[_Fragment] | None = None


class _Choice(Struct):
    index: int = 0
    delta: _Delta | None = None
    finish_reason: str | None = None


class _PromptDetails(Struct):
    cached_tokens: int | None = None


class _CompletionDetails(Struct):
    reasoning_tokens: int | None = None


class _Usage(Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None


class _Chunk(Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None
    model: str | None = None


class _Open:
    """A call whose fragments still come."""

    __slots__ = ("arguments", "id", "index", "name")

    def __init__(self, index: int | None) -> None:
        self.index = index
        self.id = self.name = ""
        self.arguments: list[str] = []


_decode = msgspec.json.Decoder(_Chunk).decode


class ChunkReader:
    """Reads one stream; of several choices the first. `key` is kept out of errors.

    `has_progress` is set by whatever the model has written, fragments of calls included: their call is a piece only
    when all of it is there.
    """

    __slots__ = (
        *("_calls", "_endpoint", "_key", "_reasoning", "_text"),
        *("finish_reason", "has_progress", "model", "usage"),
    )

    def __init__(self, endpoint: str, key: str | None = None) -> None:
        self._endpoint, self._key = endpoint, key
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[_Open] = []
        self.finish_reason: str | None = None
        self.has_progress = False
        self.model: str | None = None
        self.usage: Usage | None = None

    def read(self, data: bytes, pieces: list[Piece]) -> None:
        """Append what the data of an event has to `pieces`. Raises ClientError for an error and for what is none."""
        try:
            chunk = _decode(data)
        except INVALID_JSON:
            raise self._unreadable(data) from None
        if chunk.error:
            raise self._unreadable(data)
        if chunk.usage is not None:
            self.usage = _usage(chunk.usage)
        if chunk.model is not None:
            self.model = chunk.model
        choices = chunk.choices
        if not choices:
            if choices is None and chunk.usage is None:
                raise self._malformed("an event of its stream has no choices")
            return
        choice = choices[0]
        if choice.index != 0:
            return
        if (delta := choice.delta) is not None:
            if reasoning := delta.reasoning_content or delta.reasoning or delta.thinking:
                self._reasoning.append(reasoning)  # servers send several names with one text
                self.has_progress = True
                pieces.append(Reasoning(reasoning))
            if content := delta.content or delta.refusal:
                self._text.append(content)
                self.has_progress = True
                pieces.append(Content(content))
            if delta.tool_calls:
                for fragment in delta.tool_calls:
                    self._add(fragment)
        if choice.finish_reason is not None:
            if self.finish_reason is None:
                pieces.extend(self.calls())
            self.finish_reason = choice.finish_reason

    def calls(self) -> tuple[Call, ...]:
        """Return the calls, as far as they have come."""
        return tuple(Call(call.id, call.name, "".join(call.arguments)) for call in self._calls)

    def keep_in(self, error: ClientError) -> None:
        """Let an error tell what had come."""
        error.text, error.reasoning, error.calls = "".join(self._text), "".join(self._reasoning), self.calls()

    def _add(self, fragment: _Fragment) -> None:
        """Add a fragment to its call: that of its index, else the last. Some servers number all calls 0."""
        call = next((one for one in reversed(self._calls) if one.index == fragment.index), None)
        if fragment.index is None and not fragment.id and self._calls:
            call = self._calls[-1]
        if call is None or (fragment.id and call.id and fragment.id != call.id):
            call = _Open(fragment.index)
            self._calls.append(call)
        if fragment.id:
            call.id = fragment.id
        function = fragment.function
        if function is not None:
            call.name = call.name or function.name or ""
            if function.arguments:
                call.arguments.append(function.arguments)
        self.has_progress = True

    def _unreadable(self, data: bytes) -> ClientError:
        try:
            value = msgspec.json.decode(hidden(data, self._key))
        except INVALID_JSON:
            return self._malformed("an event of its stream is not JSON")
        if error_message(value) is not None:
            return error_in_stream(value, self._endpoint)
        return self._malformed("an event of its stream is no chunk of a chat completion")

    def _malformed(self, what: str) -> ClientError:
        return Broken(what, kind="malformed", endpoint=self._endpoint)


def _usage(usage: _Usage) -> Usage:
    prompt, completion = usage.prompt_tokens_details, usage.completion_tokens_details
    return Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.total_tokens or usage.prompt_tokens + usage.completion_tokens,
        cached_tokens=None if prompt is None else prompt.cached_tokens,
        reasoning_tokens=None if completion is None else completion.reasoning_tokens,
    )
