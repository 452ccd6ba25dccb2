"""Prompts of benchmarks as token ids: from a JSONL file, from a few questions here, or random ids.

Real text is the default: random tokens say nothing about speculation (vLLM issue #33497).
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from eyas.base.errors import InvalidRequest, UserError
from eyas.base.harmony.rendering import ROLES, Message, render_conversation, system_message
from eyas.base.tokens.tokenizer import TextCodec

__all__ = ["QUESTIONS", "question_prompts", "random_prompts", "read_prompts", "unseen_prompts"]

QUESTIONS = (
    "What does textwrap.dedent do?",
    "Hello, who are you?",
    "Explain bisect.insort in one sentence.",
    "What is 17 + 25?",
    "Which function reads a JSON file?",
    "What does the module shutil offer?",
    "How do I join two paths?",
    "What is collections.OrderedDict for?",
)
FIELDS = {"role", "content", "channel", "recipient", "name", "content_type"}


def question_prompts(codec: TextCodec) -> list[tuple[int, ...]]:
    """Render QUESTIONS as first turns of chats, at low reasoning effort."""
    system = system_message(effort="low")
    return [
        tuple(render_conversation(codec, [system, Message(role="user", content=question)])) for question in QUESTIONS
    ]


def random_prompts(vocab_size: int, *, num_tokens: int, count: int) -> list[tuple[int, ...]]:
    """Make prompts for a model without a tokenizer. Concurrent requests must differ, or they read the same experts."""
    rng = random.Random(num_tokens)  # no prompt begins like a longer one
    return [tuple(rng.randrange(vocab_size) for _ in range(num_tokens)) for _ in range(count)]


def read_prompts(path: Path, codec: TextCodec, *, limit: int | None = None) -> tuple[list[tuple[int, ...]], int]:
    """Read the first `limit` prompts of a JSONL file; return them and the number of lines without one.

    A line is `{"messages": [{"role": ..., "content": ...}, ...]}`, or `{"prompt": "..."}` for a user's first message;
    other keys are ignored. Without a system message the default one is put in front, without a date.
    Raises UserError, naming the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text; give a JSONL file of prompts") from error
    prompts: list[tuple[int, ...]] = []
    num_left_out = 0
    for number, line in enumerate(lines, 1):
        if limit is not None and len(prompts) == limit:
            break
        if not line.strip():
            continue
        try:
            messages = _messages(json.loads(line))
            if messages:
                prompts.append(tuple(render_conversation(codec, messages)))
            else:
                num_left_out += 1
        except (ValueError, InvalidRequest) as error:
            raise UserError(f"{path}, line {number}: {error}") from error
    if not prompts:
        raise UserError(f'{path} has no line with "messages" or "prompt"; give a JSONL file of prompts')
    return prompts, num_left_out


def _messages(value: Any) -> list[Message]:
    """Read the messages of one line. Raises ValueError."""
    if not isinstance(value, dict):
        raise ValueError(f"wants an object, got {type(value).__name__}")
    if isinstance(value.get("prompt"), str):
        return [system_message(), Message(role="user", content=value["prompt"])]
    raw = value.get("messages", [])
    if not isinstance(raw, list):
        raise ValueError("messages must be a list")
    messages = [_message(item) for item in raw]
    if messages and messages[0].role != "system":
        messages.insert(0, system_message())
    return messages


def _message(value: Any) -> Message:
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise ValueError("a message is an object whose values are strings")
    if value.get("role") not in ROLES or "content" not in value or set(value) - FIELDS:
        raise ValueError(
            f"a message has a role ({', '.join(ROLES)}), a content and no other fields than {', '.join(sorted(FIELDS))}"
        )
    return Message(**value)


def unseen_prompts(
    prompts: Sequence[Sequence[int]], *, vocab_size: int, num_tokens: int, numbers: Iterator[int]
) -> Iterator[tuple[int, ...]]:
    """Make prompts of one length that miss the prefix cache: the tokens of `prompts` after two that count up.

    `numbers` count up; prompts of several lengths for one engine must share the same counter.
    """
    stream = [token for prompt in prompts for token in prompt]
    repeated = stream * (num_tokens // len(stream) + 2)
    for number in numbers:
        start = number * num_tokens % len(stream)
        ids = (number % vocab_size, number // vocab_size % vocab_size, *repeated[start : start + num_tokens])
        yield ids[:num_tokens]
