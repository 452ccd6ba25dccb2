"""Conversations as every API and data set has them, and the one function from them to Harmony."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from eyas.base.harmony.rendering import (
    Effort,
    Message,
    call_message,
    developer_message,
    result_message,
    system_message,
)
from eyas.base.harmony.tools import FunctionTool, ResponseFormat

__all__ = [
    "CallEntry",
    "Conversation",
    "Entry",
    "ReasoningEntry",
    "ResultEntry",
    "TextEntry",
    "ToolsEntry",
    "to_harmony",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class TextEntry:
    """Text of one side. "system" is the system prompt of an API's user, which Harmony calls the developer message.

    `author` distinguishes participants of one role. `is_preamble` marks what the assistant says before a tool call,
    rather than as its answer.
    """

    role: Literal["system", "user", "assistant"]
    text: str
    author: str | None = None
    is_preamble: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ReasoningEntry:
    """Reasoning of the assistant. Rendering leaves out that of finished turns."""

    text: str
    author: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CallEntry:
    """A call that the assistant made; `arguments` is JSON as the model wrote it, `id` is the client's."""

    name: str
    arguments: str
    author: str | None = None
    id: str | None = field(default=None, compare=False)  # not shown to the model


@dataclass(frozen=True, kw_only=True, slots=True)
class ResultEntry:
    """The result that the function `name` returned to the call with this `id`."""

    name: str
    output: str
    id: str | None = field(default=None, compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolsEntry:
    """Tools that become known here, after the beginning: the model reads their definitions in this place."""

    tools: Sequence[FunctionTool]


Entry: TypeAlias = TextEntry | ReasoningEntry | CallEntry | ResultEntry | ToolsEntry


@dataclass(frozen=True, kw_only=True, slots=True)
class Conversation:
    """Everything that the model reads before it answers.

    `instructions` is a system prompt in addition to the entries; without it, a system entry at the beginning of the
    conversation takes its place. `tools` and `answer_format` are shown to the model; enforcing them takes a grammar.
    `date` is YYYY-MM-DD.
    """

    entries: Sequence[Entry]
    instructions: str | None = None
    tools: Sequence[FunctionTool] = ()
    answer_format: ResponseFormat | None = None
    effort: Effort = "medium"
    date: str | None = None


def to_harmony(conversation: Conversation) -> tuple[list[Message], list[Message]]:
    """Return Harmony messages: the head, which stays when old turns are cut off, and the rest.

    The head is the system message and, unless it would be empty, one developer message with the instructions, the
    tools and the format of the answer. Later system entries keep their places.
    """
    entries, tools = list(conversation.entries), conversation.tools
    formats = () if conversation.answer_format is None else (conversation.answer_format,)
    has_functions = bool(tools) or any(isinstance(entry, ToolsEntry) for entry in entries)
    head = [system_message(date=conversation.date, effort=conversation.effort, has_functions=has_functions)]
    text, author = conversation.instructions, None
    if text is None and entries and isinstance(first := entries[0], TextEntry) and first.role == "system":
        text, author = first.text, first.author
        del entries[0]
    if text is not None or tools or formats:
        head.append(replace(developer_message(text, tools=tools, response_formats=formats), name=author))
    return head, [_message(entry) for entry in entries]


def _message(entry: Entry) -> Message:
    match entry:
        case TextEntry(role="system"):
            return replace(developer_message(entry.text), name=entry.author)
        case TextEntry(role="user"):
            return Message(role="user", content=entry.text, name=entry.author)
        case TextEntry():
            channel = "commentary" if entry.is_preamble else "final"
            return Message(role="assistant", channel=channel, content=entry.text, name=entry.author)
        case ReasoningEntry():
            return Message(role="assistant", channel="analysis", content=entry.text, name=entry.author)
        case CallEntry():
            return replace(call_message(entry.name, entry.arguments), name=entry.author)
        case ResultEntry():
            return result_message(entry.name, entry.output)
        case ToolsEntry():
            return developer_message(tools=entry.tools)
