"""The sets of prompts that come with eyas, written for it: data/*.txt, and documents made of written parts.

In a text file a line of `---` ends a prompt; one with `>>>` has several turns, by the user and the assistant in turns.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from eyas.bench.endpoint.prompts.documents import documents
from eyas.bench.endpoint.prompts.prompt import Message, Prompt

__all__ = ["SETS", "builtin"]

FOLDER = Path(__file__).parent / "data"
SETS = ("chat", "code", "math", "tools", "documents")
END = "\n---\n"
TURN = "\n>>>\n"
TOOLS_LINE = "tools: "  # the first line of a prompt with tools names them


def builtin(name: str, seed: int = 0) -> list[Prompt]:
    """Return the 40 prompts of a set; documents are made by the seed."""
    if name == "documents":
        texts = documents(seed)
    else:
        texts = (FOLDER / f"{name}.txt").read_text("utf-8").strip("\n").split(END)
    return [_prompt(name, number, text.strip("\n")) for number, text in enumerate(texts, 1)]


def _prompt(name: str, number: int, text: str) -> Prompt:
    tools: tuple[dict[str, Any], ...] = ()
    if text.startswith(TOOLS_LINE):
        first, _, text = text.partition("\n")
        tools = tuple(_tools()[tool] for tool in first.removeprefix(TOOLS_LINE).split())
    turns = text.split(TURN)
    messages: list[Message] = [
        {"role": ("user", "assistant")[place % 2], "content": turn.strip("\n")} for place, turn in enumerate(turns)
    ]
    return Prompt(id=f"{name}/{number}", category=name, messages=tuple(messages), tools=tools)


@cache
def _tools() -> dict[str, dict[str, Any]]:
    """Return the tools by name, as OpenAI's API takes them."""
    listed = msgspec.json.decode((FOLDER / "tools.json").read_bytes(), type=list[dict[str, Any]])
    return {tool["name"]: {"type": "function", "function": tool} for tool in listed}
