"""Checks one chat that was read from JSON, in OpenAI's format or ShareGPT's."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, get_args

from eyas.base.errors import InvalidRequest, nearest
from eyas.base.harmony.conversation import Entry
from eyas.base.harmony.openai_messages import (
    AUTHOR,
    MAX_CALLS,
    MAX_MESSAGES,
    MAX_PARTS,
    MAX_TOOLS,
    check_functions,
    entries_of,
)
from eyas.base.harmony.rendering import ROLES, Effort, Role
from eyas.base.harmony.tools import FunctionTool

__all__ = ["SENDERS", "Chat", "chat_of"]

T = TypeVar("T")

EFFORTS: tuple[Effort, ...] = get_args(Effort)
MESSAGE_TEXTS = ("role", "name", "tool_call_id", "reasoning", "reasoning_content", "refusal")
MESSAGE_FIELDS = (*MESSAGE_TEXTS, "content", "tool_calls")
IGNORED = ("parsed", "parsed_arguments", "index")  # left by OpenAI's SDK: its own readings of texts, places in streams
KINDS = {dict: "an object", list: "a list", str: "a string", bool: "true or false"}

# ShareGPT's senders. The last two are LLaMA-Factory's: a call as JSON, and its result.
SENDERS: dict[str, Role] = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "tool": "tool",
    "observation": "tool",
    "function_call": "assistant",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Chat:
    """One chat; None where it says nothing of its own. `date` is YYYY-MM-DD."""

    entries: tuple[Entry, ...]
    tools: tuple[FunctionTool, ...] = ()
    effort: Effort | None = None
    date: str | None = None
    source: str  # for messages: "chats.jsonl:12"


# The fields of `eyas.base.harmony.openai_messages.ChatMessage`.
@dataclass(frozen=True, kw_only=True, slots=True)
class _Part:
    text: str
    is_refusal: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class _Function:
    name: str
    arguments: str


@dataclass(frozen=True, kw_only=True, slots=True)
class _Call:
    id: str
    function: _Function


@dataclass(frozen=True, kw_only=True, slots=True)
class _Message:
    role: Role
    content: str | Sequence[_Part] | None = None
    name: str | None = None
    tool_calls: Sequence[_Call] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None


def chat_of(value: object, *, source: str) -> Chat:
    """Return the chat that a JSON value is; fields of a chat that are not named here are ignored.

    `{"messages": [...], "tools": [...], "reasoning_effort": "low", "date": "2026-11-24"}`, or ShareGPT's
    `{"conversations": [{"from": "human", "value": "Hi"}, ...]}`. Raises InvalidRequest naming the field.
    """
    chat = _typed(value, dict, "the line")
    if ("messages" in chat) == ("conversations" in chat):
        raise InvalidRequest("a chat has either 'messages' (OpenAI) or 'conversations' (ShareGPT)", param="messages")
    name, read = ("messages", _messages) if "messages" in chat else ("conversations", _conversations)
    items = _typed(chat[name], list, name)
    if not 0 < len(items) <= MAX_MESSAGES:
        raise InvalidRequest(f"'{name}' has {len(items)} messages; it takes 1 to {MAX_MESSAGES}", param=name)
    messages = read([(f"{name}[{i}]", _typed(item, dict, f"{name}[{i}]")) for i, item in enumerate(items)])
    return Chat(
        entries=tuple(entries_of(messages)),
        tools=_tools(_optional(chat, "tools", list, "") or []),
        effort=_effort(_optional(chat, "reasoning_effort", str, "")),
        date=_date(_optional(chat, "date", str, "")),
        source=source,
    )


def _messages(items: Sequence[tuple[str, dict[str, Any]]]) -> list[_Message]:
    return [_message(value, where) for where, value in items]


def _message(value: Mapping[str, Any], where: str) -> _Message:
    _refuse_unknown(value, MESSAGE_FIELDS, where)
    texts = {name: _optional(value, name, str, where) for name in MESSAGE_TEXTS}
    role, name = texts.pop("role"), texts["name"]
    if role not in ROLES:
        shown = "is missing" if role is None else f"cannot be {role!r}"
        raise InvalidRequest(f"'{where}.role' {shown}; it can be {', '.join(ROLES)}", param=f"{where}.role")
    if name is not None and not re.fullmatch(AUTHOR, name):
        raise InvalidRequest(
            f"'{where}.name' is {name!r}; it has 1 to 64 letters, digits, '_', '.' or '-'", param=f"{where}.name"
        )
    calls = _optional(value, "tool_calls", list, where)
    return _Message(
        role=role,
        content=_content(value.get("content"), f"{where}.content"),
        tool_calls=None if calls is None else _calls(calls, f"{where}.tool_calls"),
        **texts,
    )


def _content(value: object, where: str) -> str | list[_Part] | None:
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise _wrong_type(value, "a string or a list of parts", where)
    _check_count(value, MAX_PARTS, where)
    return [_part(_typed(item, dict, f"{where}[{i}]"), f"{where}[{i}]") for i, item in enumerate(value)]


def _part(value: Mapping[str, Any], where: str) -> _Part:
    kind = value.get("type")
    if kind not in ("text", "refusal"):
        raise InvalidRequest(
            f"'{where}.type' is {kind!r}: only text is taken, parts of type 'text' or 'refusal'", param=f"{where}.type"
        )
    _refuse_unknown(value, ("type", kind), where)
    return _Part(text=_required(value, kind, str, where), is_refusal=kind == "refusal")


def _calls(values: list[object], where: str) -> list[_Call]:
    _check_count(values, MAX_CALLS, where)
    calls = []
    for index, item in enumerate(values):
        at = f"{where}[{index}]"
        value = _typed(item, dict, at)
        _refuse_unknown(value, ("id", "type", "function"), at)
        _check_function_type(value, at)
        called = _required(value, "function", dict, at)
        _refuse_unknown(called, ("name", "arguments"), f"{at}.function")
        name, arguments = (_required(called, field, str, f"{at}.function") for field in ("name", "arguments"))
        calls.append(_Call(id=_required(value, "id", str, at), function=_Function(name=name, arguments=arguments)))
    return calls


def _tools(values: list[object]) -> tuple[FunctionTool, ...]:
    _check_count(values, MAX_TOOLS, "tools")
    tools = []
    for index, item in enumerate(values):
        value = _typed(item, dict, f"tools[{index}]")
        _refuse_unknown(value, ("type", "function"), f"tools[{index}]")
        _check_function_type(value, f"tools[{index}]")
        function, where = _required(value, "function", dict, f"tools[{index}]"), f"tools[{index}].function"
        _refuse_unknown(function, ("name", "description", "parameters", "strict"), where)
        tools.append(
            FunctionTool(
                name=_required(function, "name", str, where),
                description=_optional(function, "description", str, where) or "",
                parameters=_optional(function, "parameters", dict, where),
                strict=_optional(function, "strict", bool, where) or False,
            )
        )
    check_functions(tools)
    return tuple(tools)


def _conversations(items: Sequence[tuple[str, dict[str, Any]]]) -> list[_Message]:
    """Return ShareGPT's messages as OpenAI's; a result belongs to the earliest call that has none yet."""
    messages: list[_Message] = []
    waiting: list[_Call] = []
    for where, value in items:
        _refuse_unknown(value, ("from", "value"), where)
        sender, text = (_required(value, field, str, where) for field in ("from", "value"))
        role = SENDERS.get(sender)
        if role is None:
            raise InvalidRequest(
                f"'{where}.from' cannot be {sender!r}; it can be {', '.join(SENDERS)}", param=f"{where}.from"
            )
        if sender == "function_call":
            call = _Call(id=where, function=_function(text, f"{where}.value"))
            waiting.append(call)
            messages.append(_Message(role=role, tool_calls=[call]))
        elif role == "tool":
            if not waiting:
                raise InvalidRequest(
                    f"'{where}' is a result without a call: put a message from 'function_call' before it, or use "
                    "OpenAI's format",
                    param=where,
                )
            messages.append(_Message(role=role, content=text, tool_call_id=waiting.pop(0).id))
        else:
            messages.append(_Message(role=role, content=text))
    return messages


def _function(text: str, where: str) -> _Function:
    """Read `{"name": ..., "arguments": {...}}`; arguments are written as gpt-oss writes them, without spaces."""
    try:
        value = _typed(json.loads(text), dict, where)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"'{where}' is not JSON ({error}); a call has a name and arguments", param=where
        ) from error
    arguments = value.get("arguments")
    if not isinstance(arguments, str):
        arguments = json.dumps(
            _required(value, "arguments", dict, where), ensure_ascii=False, separators=(",", ":"), allow_nan=False
        )
    return _Function(name=_required(value, "name", str, where), arguments=arguments)


def _effort(text: str | None) -> Effort | None:
    effort = next((known for known in EFFORTS if known == text), None)
    if text is not None and effort is None:
        raise InvalidRequest(
            f"'reasoning_effort' cannot be {text!r}; it can be {', '.join(EFFORTS)}", param="reasoning_effort"
        )
    return effort


def _date(text: str | None) -> str | None:
    if text is not None:
        try:
            is_date = datetime.date.fromisoformat(text).isoformat() == text
        except ValueError:
            is_date = False
        if not is_date:
            raise InvalidRequest(f"'date' is {text!r}; a date is YYYY-MM-DD", param="date")
    return text


def _check_function_type(value: Mapping[str, Any], where: str) -> None:
    if value.get("type", "function") != "function":
        raise InvalidRequest(f"'{where}.type' is {value['type']!r}; only 'function' is known", param=f"{where}.type")


def _check_count(values: list[object], limit: int, where: str) -> None:
    if len(values) > limit:
        raise InvalidRequest(f"'{where}' has {len(values)} items; it takes {limit} at most", param=where)


def _refuse_unknown(value: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    """Raises InvalidRequest for a field that says something; data sets fill absent ones with null or nothing."""
    for name, item in value.items():
        if name not in known and name not in IGNORED and item is not None and item != [] and item != {}:
            raise InvalidRequest(
                f"unknown field '{where}.{name}'{nearest(name, known)}; known are {', '.join(known)}",
                param=f"{where}.{name}",
            )


def _required(value: Mapping[str, Any], name: str, kind: type[T], where: str) -> T:
    item = _optional(value, name, kind, where)
    if item is None:
        raise InvalidRequest(f"'{where}.{name}' is missing", param=f"{where}.{name}")
    return item


def _optional(value: Mapping[str, Any], name: str, kind: type[T], where: str) -> T | None:
    item = value.get(name)
    return None if item is None else _typed(item, kind, f"{where}.{name}".removeprefix("."))


def _typed(value: object, kind: type[T], where: str) -> T:
    if not isinstance(value, kind):
        raise _wrong_type(value, KINDS[kind], where)
    return value


def _wrong_type(value: object, wanted: str, where: str) -> InvalidRequest:
    found = "null" if value is None else KINDS.get(type(value), "a number")
    return InvalidRequest(f"'{where}' is {found}; it must be {wanted}", param=where)
