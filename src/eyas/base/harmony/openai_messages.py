"""Converts OpenAI's chat messages to entries of a conversation: for a server, and for files of chats.

The messages come as any objects with the fields of `ChatMessage`, their types and limits checked by who decoded them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from eyas.base.errors import InvalidRequest
from eyas.base.harmony.conversation import CallEntry, Entry, ReasoningEntry, ResultEntry, TextEntry
from eyas.base.harmony.tools import FunctionTool, check_tool_name, check_tools, repeated

__all__ = [
    "AUTHOR",
    "MAX_CALLS",
    "MAX_MESSAGES",
    "MAX_PARTS",
    "MAX_TOOLS",
    "SCHEMA_FIELD",
    "CalledFunction",
    "ChatMessage",
    "ContentPart",
    "ToolCall",
    "check_functions",
    "entries_of",
]

MAX_MESSAGES = 10_000
MAX_PARTS = 1000  # per message
MAX_CALLS = 128  # per message
MAX_TOOLS = 128
NAME_FIELD, SCHEMA_FIELD = "tools[{}].function.name", "tools[{}].function.parameters"
AUTHOR = r"\A[A-Za-z0-9_.-]{1,64}\Z"  # a message's `name`, which becomes part of a header


class ContentPart(Protocol):
    """A part of a message's content. Only the assistant has refusals, which are text of its answer."""

    @property
    def text(self) -> str: ...
    @property
    def is_refusal(self) -> bool: ...


class CalledFunction(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def arguments(self) -> str: ...


class ToolCall(Protocol):
    @property
    def id(self) -> str: ...
    @property
    def function(self) -> CalledFunction: ...


class ChatMessage(Protocol):
    """A message of the conversation; None means "not given".

    `name` distinguishes participants of one role: the model reads it after the role, `assistant:name`, which is how
    openai-harmony writes it for every role. A tool's message may repeat the name of the function that was called.
    """

    @property
    def role(self) -> Literal["system", "developer", "user", "assistant", "tool"]: ...
    @property
    def content(self) -> str | Sequence[ContentPart] | None: ...
    @property
    def name(self) -> str | None: ...
    @property
    def tool_calls(self) -> Sequence[ToolCall] | None: ...
    @property
    def tool_call_id(self) -> str | None: ...
    @property
    def reasoning_content(self) -> str | None: ...
    @property
    def reasoning(self) -> str | None: ...
    @property
    def refusal(self) -> str | None: ...


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


def check_functions(tools: Sequence[FunctionTool]) -> None:
    """Raises InvalidRequest naming the tool and its field, for a bad name or schema, or a name given twice."""
    check_tools(tools, name=NAME_FIELD, parameters=SCHEMA_FIELD)
    if (index := repeated(tools)) is not None:
        where = NAME_FIELD.format(index)
        raise InvalidRequest(f"'{where}': there is a '{tools[index].name}' already", param=where)


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
    if text is None or isinstance(text, str):
        return text
    return "".join(part.text for part in text)


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
    if message.role != "assistant" and message.content is not None and not isinstance(message.content, str):
        for index, part in enumerate(message.content):
            if part.is_refusal:
                where = f"{where}.content[{index}].type"
                raise InvalidRequest(f"'{where}': only the assistant has parts of type 'refusal'", param=where)
