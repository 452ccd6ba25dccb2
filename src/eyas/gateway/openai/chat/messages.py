"""Checks the messages of a chat request, and converts them to entries of a conversation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta

from eyas.base.conversation import CallEntry, Entry, ReasoningEntry, ResultEntry, TextEntry
from eyas.base.errors import InvalidRequest
from eyas.base.harmony.tools import check_tool_name
from eyas.gateway.http.body import Fields

__all__ = ["ChatMessage", "ChatMessages", "entries_of"]

MAX_MESSAGES = 10_000
MAX_PARTS = 1000  # per message
MAX_CALLS = 128  # per message


class TextPart(Fields, tag="text", kw_only=True):
    text: str


class RefusalPart(Fields, tag="refusal", kw_only=True):
    refusal: str


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
    """A message of the conversation. Fields that the official SDK echoes as null are accepted as null.

    `name` distinguishes participants of one role: the model reads it after the role, `assistant:name`, which is how
    openai-harmony writes it for every role. A tool's message may repeat the name of the function that was called.
    """

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[TextPart | RefusalPart], Meta(max_length=MAX_PARTS)] | None = None
    name: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_.-]{1,64}\Z")] | None = None
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


def entries_of(messages: Sequence[ChatMessage]) -> list[Entry]:
    """Return the entries; "system" and "developer" are one role. Raises InvalidRequest naming message and field."""
    entries: list[Entry] = []
    names: dict[str, str] = {}  # call id to name of the function
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        _check_fields(message, where)
        if message.role == "assistant":
            entries += _assistant(message, where, names)
            continue
        text = _required_text(message, where)
        if message.role == "tool":
            entries.append(_result(message, text, where, names))
        elif message.role == "user":
            entries.append(TextEntry(role="user", text=text, author=message.name))
        else:
            entries.append(TextEntry(role="system", text=text, author=message.name))
    return entries


def _assistant(message: ChatMessage, where: str, names: dict[str, str]) -> list[Entry]:
    """Yield reasoning, then the answer; text before calls is a preamble, as the model itself writes it."""
    text, reasoning = (_text(message) or "") + (message.refusal or ""), message.reasoning or message.reasoning_content
    out: list[Entry] = []
    if reasoning:
        out.append(ReasoningEntry(text=reasoning, author=message.name))
    if text:
        is_preamble = bool(message.tool_calls)
        out.append(TextEntry(role="assistant", text=text, author=message.name, is_preamble=is_preamble))
    for index, call in enumerate(message.tool_calls or ()):
        check_tool_name(call.function.name, param=f"{where}.tool_calls[{index}].function.name")
        names[call.id] = call.function.name
        out.append(CallEntry(name=call.function.name, arguments=call.function.arguments, author=message.name))
    return out


def _result(message: ChatMessage, text: str, where: str, names: dict[str, str]) -> ResultEntry:
    if message.tool_call_id is None:
        raise InvalidRequest(f"'{where}.tool_call_id' is missing", param=f"{where}.tool_call_id")
    name = names.get(message.tool_call_id)
    if name is None:
        raise InvalidRequest(
            f"'{where}.tool_call_id': no assistant message before it has a call with the id '{message.tool_call_id}'",
            param=f"{where}.tool_call_id",
        )
    if message.name not in (None, name):
        raise InvalidRequest(f"'{where}.name': the function that was called is '{name}'", param=f"{where}.name")
    return ResultEntry(name=name, output=text)


def _text(message: ChatMessage) -> str | None:
    text = message.content
    if not isinstance(text, list):
        return text
    return "".join(part.refusal if isinstance(part, RefusalPart) else part.text for part in text)


def _required_text(message: ChatMessage, where: str) -> str:
    text = _text(message)
    if text is None:
        raise InvalidRequest(f"'{where}.content' is missing", param=f"{where}.content")
    return text


ONLY_OF = {
    "reasoning_content": "assistant",
    "reasoning": "assistant",
    "tool_calls": "assistant",
    "refusal": "assistant",
    "tool_call_id": "tool",
}


def _check_fields(message: ChatMessage, where: str) -> None:
    for name, role in ONLY_OF.items():
        if getattr(message, name) is not None and message.role != role:
            raise InvalidRequest(f"{where}: only a message of role '{role}' has {name}", param=f"{where}.{name}")
    if message.role != "assistant" and isinstance(message.content, list):
        for index, part in enumerate(message.content):
            if isinstance(part, RefusalPart):
                where = f"{where}.content[{index}].type"
                raise InvalidRequest(f"'{where}': only the assistant has parts of type 'refusal'", param=where)
