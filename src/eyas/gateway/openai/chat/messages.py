"""Messages of a chat request as structs that a body is decoded into, checked for types and limits."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from eyas.base.harmony.openai_messages import AUTHOR, MAX_CALLS, MAX_MESSAGES, MAX_PARTS
from eyas.gateway.http.body import Fields

__all__ = ["ChatMessage", "ChatMessages"]


class TextPart(Fields, tag="text", kw_only=True):
    text: str

    @property
    def is_refusal(self) -> bool:
        return False


class RefusalPart(Fields, tag="refusal", kw_only=True):
    refusal: str

    @property
    def text(self) -> str:
        return self.refusal

    @property
    def is_refusal(self) -> bool:
        return True


class CalledFunction(Fields, kw_only=True):
    name: str
    arguments: str
    parsed_arguments: Any = None  # added by the official SDK's parse() for its caller


class ToolCall(Fields, kw_only=True):
    """A call that the assistant made; `index` is left there by stream accumulators."""

    id: str
    function: CalledFunction
    type: Literal["function"] = "function"
    index: int | None = None


class ChatMessage(Fields, kw_only=True):
    """A message of the conversation. Fields that the official SDK echoes as null are accepted as null."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[TextPart | RefusalPart], Meta(max_length=MAX_PARTS)] | None = None
    name: Annotated[str, Meta(pattern=AUTHOR)] | None = None
    tool_calls: Annotated[list[ToolCall], Meta(max_length=MAX_CALLS)] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None  # what the assistant said instead of an answer, or after it
    annotations: Annotated[list[None], Meta(max_length=0)] | None = None
    audio: None = None
    function_call: None = None
    parsed: Any = None  # added by the official SDK's parse() for its caller


ChatMessages = Annotated[list[ChatMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]
