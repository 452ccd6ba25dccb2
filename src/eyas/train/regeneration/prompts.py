"""Reads recorded chats line by line: what is asked of the target, and the calls whose results may be used again.

A file is read twice: once to check and to hash all of it before anything is asked, once while chats are answered.
Answers of recorded assistants are not used, except for their calls.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eyas.base.errors import InvalidRequest, UserError
from eyas.train.data.chats import MAX_LINE_BYTES
from eyas.train.data.records import SENDERS, chat_of
from eyas.train.regeneration.calls import Call, RecordedCall, read_call

__all__ = ["Message", "Prompt", "PromptFile", "Turn", "scan"]

Message = dict[str, Any]  # of OpenAI's Chat Completions

ASKING = ("system", "developer", "user")


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
    """A file that was checked: its hash, and how many of its lines are wanted chats."""

    path: Path
    sha256: str
    num_lines: int
    num_chats: int

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
    return PromptFile(path=path, sha256=digest.hexdigest(), num_lines=num_lines, num_chats=num_chats)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    raise UserError(f"{path}:{number} has more than {MAX_LINE_BYTES >> 20} MiB; one line is one chat")
                yield number, line
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None


def _prompt(path: Path, number: int, line: bytes) -> Prompt:
    where = f"{path}:{number}"
    try:
        value = json.loads(line)
        effort = chat_of(value, source=where).effort
        if b"\\u" in line:
            json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair could not be written again
    except UnicodeError:
        raise UserError(f"{where} is not UTF-8, or has half of a surrogate pair") from None
    except InvalidRequest as error:
        raise UserError(f"{where}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is not JSON: {error}") from None
    turns = _turns(value["messages"] if "messages" in value else _openai_messages(value["conversations"]))
    if not turns:
        raise UserError(f"{where}: no message is a user's, so there is nothing to answer")
    return Prompt(line=number, turns=turns, tools=value.get("tools") or None, effort=effort)


def _openai_messages(conversations: list[dict[str, str]]) -> list[Message]:
    """Return checked messages of ShareGPT as OpenAI's; their calls and results have no ids."""
    messages: list[Message] = []
    for entry in conversations:
        message: Message = {"role": SENDERS[entry["from"]], "content": entry["value"]}
        if entry["from"] == "function_call":
            message |= {"content": None, "tool_calls": [{"function": json.loads(entry["value"])}]}
        messages.append(message)
    return messages


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
                match.append(message.get("content"))
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
