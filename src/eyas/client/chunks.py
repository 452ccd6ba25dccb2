"""Reads the chunks of a streamed completion: pieces, calls put together from fragments, figures at the end."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct

from eyas.base.serving.failures import error_message, message_of
from eyas.client.errors import Broken, ClientError
from eyas.client.pieces import Call, Content, Piece, Reasoning, Usage
from eyas.client.refusals import INVALID_JSON, error_in_stream, hidden

__all__ = ["ChunkKind", "ChunkReader"]

ChunkKind = Literal["reasoning", "text", "call"]


class _Function(Struct):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


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
    index: int | None = None
    delta: _Delta | None = None
    text: str | None = None  # of `/v1/completions`, which has no delta
    finish_reason: str | None = None


class _Chunk(Struct):
    choices: list[_Choice] | None = None
    usage: Any = None
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
    when all of it is there. `kind` is what the last event brought, None for a role or usage alone; `num_chars` counts
    the characters of all of them.
    """

    __slots__ = (
        *("_calls", "_endpoint", "_key", "_num_given", "_reasoning", "_text"),
        *("finish_reason", "has_progress", "kind", "model", "num_chars", "usage"),
    )

    def __init__(self, endpoint: str, key: str | None = None) -> None:
        self._endpoint, self._key = endpoint, key
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[_Open] = []
        self._num_given = 0  # of them, as pieces
        self.finish_reason: str | None = None
        self.has_progress = False
        self.kind: ChunkKind | None = None
        self.num_chars = 0
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
        self.kind = None
        if chunk.usage is not None:
            self.usage = _usage(chunk.usage) or self.usage
        if chunk.model is not None:
            self.model = chunk.model
        choices = chunk.choices
        if not choices:
            if choices is None and chunk.usage is None:
                raise self._unreadable(data)
            return
        choice = choices[0]
        if choice.index:
            return
        if (delta := choice.delta) is not None:
            if reasoning := delta.reasoning_content or delta.reasoning or delta.thinking:
                self._reasoning.append(reasoning)  # servers send several names with one text
                self._wrote("reasoning", reasoning)
                pieces.append(Reasoning(reasoning))
            if content := delta.content or delta.refusal:
                self._text.append(content)
                self._wrote("text", content)
                pieces.append(Content(content))
            if delta.tool_calls:
                for fragment in delta.tool_calls:
                    self._add(fragment)
        elif choice.text:
            self._text.append(choice.text)
            self._wrote("text", choice.text)
            pieces.append(Content(choice.text))
        if choice.finish_reason:  # some servers send "" until they know it
            self.give_calls(pieces)
            self.finish_reason = choice.finish_reason

    def give_calls(self, pieces: list[Piece]) -> None:
        """Append the calls that are no pieces yet: all of them are there now."""
        pieces.extend(self.calls()[self._num_given :])
        self._num_given = len(self._calls)

    def calls(self) -> tuple[Call, ...]:
        """Return the calls, as far as they have come."""
        return tuple(Call(call.id, call.name, "".join(call.arguments)) for call in self._calls)

    def written(self) -> str:
        """Return the reasoning and the text that have come."""
        return "".join(self._reasoning) + "".join(self._text)

    def keep_in(self, error: ClientError) -> None:
        """Let an error tell what had come."""
        error.text, error.reasoning, error.calls = "".join(self._text), "".join(self._reasoning), self.calls()

    def _add(self, fragment: _Fragment) -> None:
        call = self._call_of(fragment)
        if call is None:
            call = _Open(fragment.index)
            self._calls.append(call)
        if fragment.id:
            call.id = fragment.id
        function = fragment.function
        if function is not None:
            call.name = call.name or function.name or ""
            if arguments := function.arguments:
                if not isinstance(arguments, str):
                    arguments = msgspec.json.encode(arguments).decode()
                call.arguments.append(arguments)
                self.num_chars += len(arguments)
        self.kind = self.kind or "call"
        self.has_progress = True

    def _wrote(self, kind: ChunkKind, text: str) -> None:
        self.kind = kind
        self.num_chars += len(text)
        self.has_progress = True

    def _call_of(self, fragment: _Fragment) -> _Open | None:
        """Return the call that a fragment goes on with: that of its id, else of its index, else the last.

        Some servers number all calls 0, some number none. Without ids another name begins another call.
        """
        index, name = fragment.index, fragment.function.name if fragment.function is not None else None
        for call in reversed(self._calls):
            if fragment.id and call.id:
                if fragment.id == call.id and index in (None, call.index):
                    return call
            elif index == call.index or (index is None and not fragment.id):
                is_other = not fragment.id and name and call.arguments and name != call.name
                return None if is_other else call
        return None

    def _unreadable(self, data: bytes) -> ClientError:
        try:
            value = msgspec.json.decode(hidden(data, self._key))
        except INVALID_JSON:
            return self._malformed("an event of its stream is not JSON")
        if error_message(value) or message_of(value):
            return error_in_stream(value, self._endpoint)
        return self._malformed("an event of its stream is no chunk of a chat completion")

    def _malformed(self, what: str) -> ClientError:
        return Broken(what, kind="malformed", endpoint=self._endpoint)


def _usage(said: Any) -> Usage | None:
    """Return what a server counts. What is no number it does not say: an answer does not fail by its bill."""
    if not isinstance(said, dict):
        return None
    prompt, completion = _count(said, "prompt_tokens") or 0, _count(said, "completion_tokens") or 0
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=_count(said, "total_tokens") or prompt + completion,
        cached_tokens=_count(said.get("prompt_tokens_details"), "cached_tokens"),
        reasoning_tokens=_count(said.get("completion_tokens_details"), "reasoning_tokens"),
    )


def _count(said: Any, name: str) -> int | None:
    number = said.get(name) if isinstance(said, dict) else None
    return int(number) if isinstance(number, int | float) else None
