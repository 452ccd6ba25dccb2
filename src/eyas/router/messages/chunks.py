"""Answers of chat endpoints as structs: chunks of a stream and whole ones, with the fields that engines add."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from eyas.gateway.http.explain import INVALID_JSON
from eyas.router.upstream.errors import UpstreamError

__all__ = ["ChatAnswer", "ChatCall", "ChatMessage", "ChatUsage", "decoded"]

MAX_SHOWN = 200


class CalledFunction(Struct, kw_only=True):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class ChatCall(Struct, kw_only=True):
    """A call, or more of one. Whole answers have no `index`."""

    index: int | None = None
    id: str | None = None
    function: CalledFunction | None = None


class ChatMessage(Struct, kw_only=True):
    """A message, or more of one. Reasoning is in one of two fields, or in both."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[ChatCall] | None = None


class ChatChoice(Struct, kw_only=True):
    index: int = 0
    delta: ChatMessage | None = None
    message: ChatMessage | None = None
    finish_reason: str | None = None


class PromptDetails(Struct, kw_only=True):
    cached_tokens: int | None = None


class AnswerDetails(Struct, kw_only=True):
    reasoning_tokens: int | None = None


class ChatUsage(Struct, kw_only=True):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: AnswerDetails | None = None

    @property
    def num_cached(self) -> int:
        details = self.prompt_tokens_details
        found = 0 if details is None else details.cached_tokens or 0
        return min(found, self.prompt_tokens or 0)

    @property
    def num_reasoning(self) -> int:
        return 0 if self.completion_tokens_details is None else self.completion_tokens_details.reasoning_tokens or 0


class ChatAnswer(Struct, kw_only=True):
    """A chunk or a whole answer. A stream's last chunk may have usage and no choice; a failed one says `error`."""

    choices: list[ChatChoice] = []
    usage: ChatUsage | None = None
    error: Any = None
    object: Any = None
    message: Any = None  # of an error in vLLM's older form


DECODER = msgspec.json.Decoder(ChatAnswer)


def decoded(data: bytes) -> ChatAnswer:
    """Return an answer. Raises UpstreamError: malformed for what is none, status for an error."""
    try:
        answer = DECODER.decode(data)
    except INVALID_JSON as error:
        shown = data[:MAX_SHOWN].decode(errors="replace")
        raise UpstreamError("malformed", f"this is no answer of a chat: {shown!r}") from error
    if answer.error is not None or answer.object == "error":
        told = answer.error if answer.error is not None else answer.message
        text = told.get("message") if isinstance(told, dict) else told
        raise UpstreamError("status", f"an error inside the answer: {str(text)[:MAX_SHOWN]}")
    return answer
