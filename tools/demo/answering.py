"""Lets the target answer chats by itself, many at a time, as clients of a server would: what its head is trained on.

A chat is a row of OpenAI's format with its user messages to come. Prompts are made of the row as `eyas train` will read
it, so a sampled answer stands behind the same tokens there. Calls of the python tool are run by `calculator`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from calculator import run_program
from chats import PYTHON, Chat, ChatWriter
from decode import generate_all
from facts import load_facts
from target import TargetModel, Weights
from tool_chats import TOOL_SHARE, ToolChatWriter

from eyas.base.harmony.conversation import Conversation, to_harmony
from eyas.base.harmony.parser import StreamParser
from eyas.base.harmony.rendering import Message, render_conversation, stop_ids
from eyas.base.harmony.tools import called_function
from eyas.base.tokens.tokenizer import Tokenizer
from eyas.train.data.records import chat_of

__all__ = ["OpenChat", "answer_chats", "draw_chats", "program_of", "prompt_of"]

MAX_CALLS = 2  # of a turn
GREEDY_EVERY = 3  # every third chat is answered at temperature 0, the others at 1


@dataclass(slots=True)
class OpenChat:
    """A chat that is being answered: the row so far, and the questions to come."""

    row: dict[str, Any]
    questions: list[str]
    temperature: float
    num_calls: int = field(default=0)  # of this turn

    def ask(self) -> bool:
        """Put the next question, if there is one."""
        if self.questions:
            self.row["messages"].append({"role": "user", "content": self.questions.pop(0)})
            self.num_calls = 0
            return True
        return False


def draw_chats(count: int, *, seed: str) -> Iterator[OpenChat]:
    """Draw chats like those that the target was trained on; system prompts are those that a server writes."""
    rng = Random(seed)
    facts = load_facts()
    plain, with_tools = ChatWriter(facts, rng), ToolChatWriter(facts, rng)
    for number in range(count):
        chat, tools = with_tools.drawn() if rng.random() < TOOL_SHARE else (plain.chat(), ())
        row = {"messages": _instructions(chat), "reasoning_effort": chat.effort}
        if tools:
            row["tools"] = [
                {
                    "type": "function",
                    "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
                }
                for tool in tools
            ]
        if rng.random() < 0.85:
            row["date"] = f"{rng.randint(2024, 2027)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"
        questions = [turn.question for turn in chat.turns]
        yield OpenChat(row, questions, 0.0 if number % GREEDY_EVERY == 0 else 1.0)


def _instructions(chat: Chat) -> list[dict[str, Any]]:
    """Return the system prompt of the API's user, if the chat has one."""
    texts = [m.content for m in chat.preamble if m.role == "developer"]
    instructions = [text.removeprefix("# Instructions\n\n").partition("\n\n# Tools")[0] for text in texts]
    return [{"role": "system", "content": text} for text in instructions if not text.startswith("# Tools")]


def prompt_of(codec: Tokenizer, row: dict[str, Any]) -> list[int]:
    """Return the prompt that a server makes of a row."""
    chat = chat_of(row, source="a chat")
    head, rest = to_harmony(
        Conversation(entries=chat.entries, tools=chat.tools, effort=chat.effort or "medium", date=chat.date)
    )
    return render_conversation(codec, [*head, *rest], purpose="completion")


def program_of(message: Message) -> str | None:
    """Return the program of a call of the python tool, None if the message is none."""
    if called_function(message.recipient, [PYTHON]) is None:
        return None
    try:
        arguments = json.loads(message.content)
    except ValueError:
        return None
    code = arguments.get("code") if isinstance(arguments, dict) else None
    return code if isinstance(code, str) else None


def answer_chats(
    model: TargetModel,
    weights: Weights,
    codec: Tokenizer,
    chats: Sequence[OpenChat],
    *,
    max_tokens: int,
    longest: int,
    generator: torch.Generator,
) -> list[dict[str, Any]]:
    """Return the rows of the chats with the target's answers; a chat ends before a turn that went wrong.

    Wrong is an answer that does not end within `max_tokens`, a call of anything but the python tool, more than two
    calls in a turn, and a prompt of more than `longest` tokens. A chat without any answer is left out.
    """
    answered: dict[int, int] = {}  # by chat: the messages of its row up to the last finished turn
    going = [number for number, chat in enumerate(chats) if chat.ask()]
    while going:
        prompts = [prompt_of(codec, chats[number].row) for number in going]
        fitting = [(number, prompt) for number, prompt in zip(going, prompts, strict=True) if len(prompt) <= longest]
        said = generate_all(
            model,
            weights,
            [prompt for _, prompt in fitting],
            max_tokens=max_tokens,
            temperatures=[chats[number].temperature for number, _ in fitting],
            stops=stop_ids(codec),
            generator=generator,
        )
        going = []
        for (number, _), ids in zip(fitting, said, strict=True):
            chat = chats[number]
            if ids[-1] not in stop_ids(codec) or not _append(chat, codec, ids):
                continue
            is_finished = chat.row["messages"][-1]["role"] == "assistant"
            if is_finished:
                answered[number] = len(chat.row["messages"])
            if not is_finished or chat.ask():
                going.append(number)
    rows = []
    for number, end in sorted(answered.items()):
        row = chats[number].row
        rows.append(row | {"messages": row["messages"][:end]})
    return rows


def _append(chat: OpenChat, codec: Tokenizer, ids: Sequence[int]) -> bool:
    """Append what the target said, and the result of its call; return whether all is well-formed."""
    parser = StreamParser(codec)
    parser.feed(ids)
    parser.finish()
    if not 1 <= len(parser.messages) <= 2:
        return False
    *before, last = parser.messages
    if any(message.channel != "analysis" or message.recipient for message in before):
        return False
    message: dict[str, Any] = {"role": "assistant", "content": None}
    if before:
        message["reasoning_content"] = before[0].content
    if last.recipient is None and last.channel == "final":
        chat.row["messages"].append(message | {"content": last.content})
        return True
    program = program_of(last)
    offers = any(tool["function"]["name"] == PYTHON for tool in chat.row.get("tools", ()))
    if program is None or not offers or chat.num_calls == MAX_CALLS:
        return False
    chat.num_calls += 1
    call_id = f"call_{len(chat.row['messages'])}"
    function = {"name": PYTHON, "arguments": last.content}
    message["tool_calls"] = [{"id": call_id, "type": "function", "function": function}]
    result = {"role": "tool", "tool_call_id": call_id, "content": run_program(program)}
    chat.row["messages"] += [message, result]
    return True
