"""Prompts from files: JSON lines, one prompt each, or ShareGPT's format, a list of conversations.

A conversation ends at its last message by a person: what comes after is what the model is to write.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from eyas.base.errors import UserError
from eyas.bench.endpoint.prompts.prompt import Message, Prompt

__all__ = ["prompt_from", "read_file"]

# Names under which data sets have their prompts, in the order in which they are looked for.
TEXT_FIELDS = ("prompt", "question", "problem", "instruction", "query", "input")
TALK_FIELDS = ("messages", "conversations", "conversation")
ROLES = {"human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant", "bard": "assistant",
         "assistant": "assistant", "system": "system", "developer": "developer", "tool": "tool"}  # fmt: skip
CATEGORY_FIELDS = ("category", "subject", "type")
MAX_BYTES = 1 << 30


def read_file(path: Path) -> list[Prompt]:
    """Read all prompts of a file; entries without a question are left out. Raises UserError."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UserError(f"{path} has more than {MAX_BYTES >> 30} GiB; give a part of it")
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    found = [_prompt(entry, where, path.stem) for where, entry in _entries(path, data)]
    prompts = [prompt for prompt in found if prompt is not None]
    if not prompts:
        raise UserError(f"{path} has no prompt: an entry needs {', '.join(TEXT_FIELDS + TALK_FIELDS)}")
    return prompts


def prompt_from(entry: Mapping[str, Any], name: str, number: int) -> Prompt | None:
    """Return the prompt of one entry; None where it has none. Raises ValueError for one that is none."""
    fields = {key.lower(): value for key, value in entry.items()}
    category = next((fields[key] for key in CATEGORY_FIELDS if isinstance(fields.get(key), str)), name)
    tools = fields.get("tools") or ()
    if not isinstance(tools, list | tuple) or not all(isinstance(tool, dict) for tool in tools):
        raise ValueError("tools is a list of objects")
    messages = _messages(fields)
    if not messages:
        return None
    return Prompt(id=f"{name}/{number}", category=category, messages=messages, tools=tuple(tools))


def _entries(path: Path, data: bytes) -> Iterable[tuple[str, Any]]:
    """Yield the entries with where they stand."""
    if data.lstrip()[:1] == b"[":
        try:
            entries = msgspec.json.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise UserError(f"{path}: no JSON ({error})") from None
        yield from ((f"{path}, entry {number}", entry) for number, entry in enumerate(entries, 1))
        return
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            yield where, msgspec.json.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise UserError(f"{where}: no JSON ({error})") from None


def _prompt(entry: Any, where: str, name: str) -> Prompt | None:
    if not isinstance(entry, dict):
        raise UserError(f"{where}: wants an object, got {type(entry).__name__}")
    try:
        return prompt_from(entry, name, int(where.rpartition(" ")[2]))
    except ValueError as error:
        raise UserError(f"{where}: {error}") from None


def _messages(fields: Mapping[str, Any]) -> tuple[Message, ...]:
    for name in TEXT_FIELDS:
        if isinstance(text := fields.get(name), str) and text.strip():
            return ({"role": "user", "content": text},)
    talk = next((fields[name] for name in TALK_FIELDS if fields.get(name)), None)
    if talk is None:
        return ()
    if not isinstance(talk, list):
        raise ValueError("a conversation is a list of messages")
    messages = [_message(item) for item in talk]
    while messages and messages[-1]["role"] not in ("user", "tool"):
        messages.pop()
    return tuple(messages)


def _message(item: Any) -> Message:
    """Return a message in OpenAI's form, whether it came in that (role, content) or in ShareGPT's (from, value)."""
    if not isinstance(item, dict):
        raise ValueError("a message is an object")
    role, content = item.get("role", item.get("from")), item.get("content", item.get("value"))
    if role not in ROLES or not isinstance(content, str | list | None):
        raise ValueError(f"a message has a role ({', '.join(sorted(ROLES))}) and a content")
    if "from" in item:
        return {"role": ROLES[role], "content": content}
    return {**item, "role": ROLES[role]}
