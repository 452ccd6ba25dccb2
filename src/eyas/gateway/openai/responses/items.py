"""Items of `/v1/responses`, as received, stored and sent, and their conversion to entries of a conversation.

An item is what Harmony calls a message: reasoning is the analysis channel, a function call the commentary channel with
a recipient, an assistant's message the final channel or, with phase "commentary", a preamble.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from eyas.base.errors import InvalidRequest
from eyas.base.harmony.conversation import CallEntry, Entry, ReasoningEntry, ResultEntry, TextEntry
from eyas.gateway.openai.fields import ToolName

__all__ = [
    "FunctionCall",
    "FunctionCallOutput",
    "InputItem",
    "InputText",
    "Item",
    "ItemReference",
    "MessageItem",
    "OutputText",
    "Phase",
    "Reasoning",
    "ReasoningText",
    "Status",
    "keep",
    "to_entries",
]

Status: TypeAlias = Literal["in_progress", "completed", "incomplete"]
Phase: TypeAlias = Literal["commentary", "final_answer"]
Label: TypeAlias = Annotated[str, Meta(min_length=1, max_length=128)]


class InputText(Struct, tag="input_text", kw_only=True, forbid_unknown_fields=True):
    text: str


class OutputText(Struct, tag="output_text", kw_only=True, forbid_unknown_fields=True):
    """Text of an answer. `parsed` is added by the official SDK, which sends it back; it is ignored."""

    text: str
    annotations: Annotated[list[Any], Meta(max_length=0)] = []
    logprobs: list[Any] | UnsetType | None = UNSET
    parsed: Any = UNSET


class Refusal(Struct, tag="refusal", kw_only=True, forbid_unknown_fields=True):
    refusal: str


class ReasoningText(Struct, tag="reasoning_text", kw_only=True, forbid_unknown_fields=True):
    text: str


class SummaryText(Struct, tag="summary_text", kw_only=True, forbid_unknown_fields=True):
    text: str


class MessageItem(Struct, tag="message", kw_only=True, forbid_unknown_fields=True):
    role: Literal["user", "system", "developer", "assistant"]
    content: str | list[InputText | OutputText | Refusal]
    id: Label | None = None
    status: Status | None = None
    phase: Phase | UnsetType | None = UNSET


class Reasoning(Struct, tag="reasoning", kw_only=True, forbid_unknown_fields=True):
    id: Label | None = None
    summary: list[SummaryText] = []
    content: list[ReasoningText] | None = None
    encrypted_content: UnsetType | None = UNSET  # a string is refused: it cannot be decrypted here
    status: Status | None = None


class FunctionCall(Struct, tag="function_call", kw_only=True, forbid_unknown_fields=True):
    """A call of a function. `parsed_arguments` is added by the official SDK, like `OutputText.parsed`."""

    call_id: Label
    name: ToolName
    arguments: str
    id: Label | None = None
    status: Status | None = None
    parsed_arguments: Any = UNSET


class FunctionCallOutput(Struct, tag="function_call_output", kw_only=True, forbid_unknown_fields=True):
    call_id: Label
    output: str | list[InputText]
    id: Label | None = None
    status: Status | None = None


class ItemReference(Struct, tag="item_reference", kw_only=True, forbid_unknown_fields=True):
    """A reference to an item of a stored response, by its id."""

    id: Label


Item: TypeAlias = MessageItem | Reasoning | FunctionCall | FunctionCallOutput
InputItem: TypeAlias = Item | ItemReference

ID_PREFIXES: dict[type, str] = {MessageItem: "msg", Reasoning: "rs", FunctionCall: "fc", FunctionCallOutput: "fco"}


def keep(items: Sequence[InputItem], stem: str, referenced: Mapping[str, Item]) -> list[Item]:
    """Return input items as stored and listed: with an id (from `stem`), a status, content as parts, without echoes.

    `referenced` has the items that references resolve to. An item referenced twice is refused: a small body could
    otherwise make an endless prompt. Raises InvalidRequest.
    """
    kept: list[Item] = []
    seen: set[str] = set()
    for index, item in enumerate(items):
        if isinstance(item, ItemReference):
            found, where = referenced.get(item.id), f"input[{index}].id"
            if found is None:
                raise InvalidRequest(
                    f"item '{item.id}' is not found or no longer kept; send the item itself", param=where
                )
            if item.id in seen:
                raise InvalidRequest(f"item '{item.id}' is referred to twice", param=where)
            seen.add(item.id)
            kept.append(found)
            continue
        changes: dict[str, Any] = {
            "id": item.id or f"{ID_PREFIXES[type(item)]}_{stem}_i{index}",
            "status": item.status or "completed",
        }
        if isinstance(item, MessageItem):
            changes["content"] = _parts(item, f"input[{index}].content")
        elif isinstance(item, FunctionCall):
            changes["parsed_arguments"] = UNSET
        kept.append(msgspec.structs.replace(item, **changes))
    return kept


def _parts(item: MessageItem, where: str) -> list[InputText | OutputText | Refusal]:
    is_assistant = item.role == "assistant"
    if isinstance(item.content, str):
        return [OutputText(text=item.content) if is_assistant else InputText(text=item.content)]
    parts: list[InputText | OutputText | Refusal] = []
    for index, part in enumerate(item.content):
        if isinstance(part, InputText):
            parts.append(OutputText(text=part.text) if is_assistant else part)
            continue
        if not is_assistant:
            raise InvalidRequest(
                f"'{where}[{index}].type': only the assistant has output parts, role '{item.role}' has input_text",
                param=f"{where}[{index}].type",
            )
        parts.append(OutputText(text=part.text) if isinstance(part, OutputText) else part)
    return parts


def to_entries(history: Sequence[Item], items: Sequence[Item]) -> list[Entry]:
    """Return a conversation: its stored items, then those that `input` adds.

    All reasoning is included; `render_conversation` decides which of it the model sees again. A call that was cut off
    by the token limit, and never run, is left out. Raises InvalidRequest for an output without its call and for a call
    without its output, naming the item of `input`.
    """
    answered = {item.call_id for item in (*history, *items) if isinstance(item, FunctionCallOutput)}
    entries: list[Entry] = []
    names: dict[str, str] = {}
    open_calls: dict[str, str] = {}  # call id to the field to name in an error
    for index, item in enumerate((*history, *items)):
        where = f"input[{index - len(history)}]" if index >= len(history) else "input"
        if isinstance(item, MessageItem):
            entries.append(_text_entry(item))
        elif isinstance(item, Reasoning):
            entries += _reasoning(item, where)
        elif isinstance(item, FunctionCall):
            if item.status != "incomplete" or item.call_id in answered:
                names[item.call_id], open_calls[item.call_id] = item.name, where
                entries.append(CallEntry(name=item.name, arguments=item.arguments))
        else:
            if item.call_id not in names:
                raise InvalidRequest(f"no function call with call_id '{item.call_id}'", param=f"{where}.call_id")
            open_calls.pop(item.call_id, None)
            entries.append(ResultEntry(name=names[item.call_id], output=_text_of(item.output)))
    for call_id, where in open_calls.items():
        raise InvalidRequest(f"no output for the function call with call_id '{call_id}'", param=where)
    return entries


def _text_entry(item: MessageItem) -> TextEntry:
    text = _text_of(item.content)
    if item.role == "assistant":
        return TextEntry(role="assistant", text=text, is_preamble=item.phase == "commentary")
    return TextEntry(role="user" if item.role == "user" else "system", text=text)


def _reasoning(item: Reasoning, where: str) -> list[ReasoningEntry]:
    if item.summary and not item.content:
        raise InvalidRequest(
            f"{where}: a reasoning item is read from its content (reasoning_text), and this one has a summary only",
            param=f"{where}.summary",
        )
    return [ReasoningEntry(text=part.text) for part in item.content or ()]


def _text_of(content: str | Sequence[InputText | OutputText | Refusal]) -> str:
    """Return the content as one text."""
    if isinstance(content, str):
        return content
    return "".join(part.refusal if isinstance(part, Refusal) else part.text for part in content)
