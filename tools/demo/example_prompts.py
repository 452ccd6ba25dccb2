"""Writes prompts for `examples/train`: `PYTHONPATH=src python tools/demo/example_prompts.py 1700 > prompts.jsonl`.

The demo model answers them (`eyas train regenerate`), and the answers are the chats that `examples/train/demo.yaml`
trains on. None of their questions is in the held-out file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from chats import ChatWriter
from facts import load_facts

MAX_TURNS = 2
HELD_OUT = Path(__file__).parents[2] / "tests" / "assets" / "demo_heldout.jsonl"


def held_out_questions() -> set[str]:
    """Return all user messages of the held-out prompts, in lower case."""
    rows = [json.loads(line) for line in HELD_OUT.read_text(encoding="ascii").splitlines()]
    return {m["content"].strip().lower() for row in rows for m in row.get("messages", ()) if m["role"] == "user"}


def prompts(count: int, *, seed: int) -> Iterator[dict[str, Any]]:
    """Yield chats in OpenAI's format, with the answers that the demo model was trained on."""
    writer, avoided = ChatWriter(load_facts(), Random(f"example:{seed}")), held_out_questions()
    while count:
        chat = writer.chat()
        questions = [turn.question for turn in chat.turns]
        if len(questions) <= MAX_TURNS and avoided.isdisjoint(question.strip().lower() for question in questions):
            count -= 1
            pairs = [(("user", turn.question), ("assistant", turn.answer)) for turn in chat.turns]
            messages = [{"role": role, "content": text} for pair in pairs for role, text in pair]
            yield {"messages": messages, "reasoning_effort": chat.effort}


if __name__ == "__main__":
    for prompt in prompts(int(sys.argv[1]), seed=0):
        print(json.dumps(prompt))
