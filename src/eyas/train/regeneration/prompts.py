"""Reads recorded chats line by line: what is asked of the target, and the calls whose results may be used again.

A file is read twice: once to check and to hash all of it before anything is asked, once while chats are answered.
What recorded assistants said is not read, but for their calls.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eyas.base.errors import UserError
from eyas.train.regeneration.calls import Call, RecordedCall, read_call

__all__ = ["Message", "Prompt", "PromptFile", "Turn", "scan"]

Message = dict[str, Any]  # of OpenAI's Chat Completions

ASKING = ("system", "developer", "user")
ROLES = (*ASKING, "assistant", "tool")
EFFORTS = ("low", "medium", "high")
SPEAKERS = {  # of ShareGPT's `from`
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
}
MAX_LINE_BYTES = 64 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """Messages up to a question, and the calls that were made before it was answered, in groups of parallel calls."""

    asked: tuple[Message, ...]
    recorded: tuple[tuple[RecordedCall, ...], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """A recorded chat without its answers. `line` counts from 1."""

    line: int
    turns: tuple[Turn, ...]
    tools: list[Any] | None
    effort: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptFile:
    """A file that was checked: its hash, and how many of its lines are chats (the first `limit` of them)."""

    path: Path
    sha256: str
    num_lines: int
    num_chats: int
    limit: int | None

    def prompts(self, is_done: Callable[[int], bool]) -> Iterator[Prompt]:
        """Yield the chats of lines that are not done. Raises UserError for a file that has changed since."""
        num_seen = 0
        for number, line in _lines(self.path):
            if num_seen == self.num_chats:
                return
            if not line.strip():
                continue
            num_seen += 1
            if not is_done(number):
                yield _prompt(self.path, number, line)


def scan(path: Path, *, limit: int | None = None) -> PromptFile:
    """Check and hash a file of chats, one line in memory at a time. Raises UserError, naming line and field."""
    digest = hashlib.sha256()
    num_lines = num_chats = 0
    for num_lines, line in _lines(path):
        digest.update(line)
        if line.strip() and (limit is None or num_chats < limit):
            _prompt(path, num_lines, line)
            num_chats += 1
    if not num_chats:
        raise UserError(f"{path} has no chats; give a JSONL file with 'messages' in each line")
    return PromptFile(path=path, sha256=digest.hexdigest(), num_lines=num_lines, num_chats=num_chats, limit=limit)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    raise UserError(f"{path}, line {number}: longer than {MAX_LINE_BYTES >> 20} MiB")
                yield number, line
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None


def _prompt(path: Path, number: int, line: bytes) -> Prompt:
    try:
        value = json.loads(line)
        if not isinstance(value, dict):
            raise ValueError("wants an object with 'messages'")
        if b"\\u" in line:
            json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair could not be written again
        turns = _turns(_messages(value))
        if not turns:
            raise ValueError("messages: no user message, so there is nothing to answer")
        return Prompt(line=number, turns=turns, tools=_tools(value), effort=_effort(value))
    except UnicodeError:
        raise UserError(f"{path}, line {number}: no UTF-8 text, or half of a surrogate pair in it") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{path}, line {number}: no JSON ({error.msg}, column {error.colno})") from None
    except RecursionError:
        raise UserError(f"{path}, line {number}: nested too deeply") from None
    except ValueError as error:
        raise UserError(f"{path}, line {number}: {error}") from None


def _messages(value: dict[str, Any]) -> list[Message]:
    """Return a chat's messages in OpenAI's format. Raises ValueError, naming the field."""
    is_sharegpt = "messages" not in value and "conversations" in value
    name = "conversations" if is_sharegpt else "messages"
    entries = value.get(name)
    if not isinstance(entries, list) or not entries:
        raise ValueError(f"{name}: wants a list of messages")
    read = _sharegpt if is_sharegpt else _checked
    return [read(entry, f"{name}[{index}]") for index, entry in enumerate(entries)]


def _sharegpt(entry: Any, where: str) -> Message:
    if not isinstance(entry, dict) or not isinstance(entry.get("value"), str):
        raise ValueError(f"{where}.value: wants a text")
    role = SPEAKERS.get(str(entry.get("from")))
    if role is None:
        raise ValueError(f"{where}.from: wants {', '.join(SPEAKERS)}, got {entry.get('from')!r:.40}")
    return {"role": role, "content": entry["value"]}


def _checked(entry: Any, where: str) -> Message:
    if not isinstance(entry, dict):
        raise ValueError(f"{where}: wants an object")
    role = entry.get("role")
    if role not in ROLES:
        raise ValueError(f"{where}.role: wants {', '.join(ROLES)}, got {role!r:.40}")
    if role != "assistant" and not _is_text(entry.get("content")):
        raise ValueError(f"{where}.content: wants a text, or a list of parts with type 'text'")
    if role == "assistant" and not isinstance(entry.get("tool_calls") or [], list):
        raise ValueError(f"{where}.tool_calls: wants a list")
    for index, call in enumerate(entry.get("tool_calls") or [] if role == "assistant" else []):
        if read_call(call) is None:
            raise ValueError(f"{where}.tool_calls[{index}]: wants a function with a name and arguments")
    return entry


def _is_text(content: Any) -> bool:
    if isinstance(content, list):
        return all(
            isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
            for part in content
        )
    return isinstance(content, str)


def _tools(value: dict[str, Any]) -> list[Any] | None:
    tools = value.get("tools")
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise ValueError("tools: wants a list of objects")
    return tools or None


def _effort(value: dict[str, Any]) -> str | None:
    effort = value.get("reasoning_effort")
    if effort is not None and effort not in EFFORTS:
        raise ValueError(f"reasoning_effort: wants {', '.join(EFFORTS)}, got {effort!r:.40}")
    return effort


@dataclass(slots=True)
class _OpenTurn:
    """A turn that is being read: a message that asks after one that answers begins the next."""

    asked: list[Message] = field(default_factory=list)
    answered: list[Message] = field(default_factory=list)


def _turns(messages: list[Message]) -> tuple[Turn, ...]:
    """Split a chat before each message that asks after an answer; what assistants said before a user did is dropped."""
    found: list[Turn] = []
    turn = _OpenTurn()

    def close() -> None:
        nonlocal turn
        is_asked = any(message["role"] == "user" for message in turn.asked)
        if is_asked:
            found.append(Turn(asked=tuple(map(_request_message, turn.asked)), recorded=_groups(turn.answered)))
        turn = _OpenTurn() if is_asked else _OpenTurn(asked=turn.asked)

    for message in messages:
        if message["role"] not in ASKING:
            turn.answered.append(message)
            continue
        if turn.answered:
            close()
        turn.asked.append(message)
    close()
    return tuple(found)


def _request_message(message: Message) -> Message:
    """Leave out what endpoints refuse, such as a data set's own fields."""
    return {name: message[name] for name in ("role", "name", "content") if message.get(name) is not None}


def _groups(answered: list[Message]) -> tuple[tuple[RecordedCall, ...], ...]:
    """Group a turn's recorded calls by the results between them; a result goes by its id, or without one by order."""
    groups: list[list[tuple[Call, list[Any]]]] = []
    is_open = False
    for message in answered:
        if message["role"] == "tool":
            is_open = False
            waiting = [(call, results) for group in groups for call, results in group if not results]
            wanted = message.get("tool_call_id")
            match = next((results for call, results in waiting if wanted is None or call.id == wanted), None)
            if match is not None:
                match.append(message["content"])
            continue
        calls = [call for call in map(read_call, message.get("tool_calls") or []) if call is not None]
        if calls:
            if not is_open:
                groups.append([])
            is_open = True
            groups[-1] += [(call, []) for call in calls]
    return tuple(
        tuple(RecordedCall(call=call, result=results[0] if results else None) for call, results in group)
        for group in groups
    )
