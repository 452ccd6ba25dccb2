"""Writes prompts for `examples/train`: `PYTHONPATH=src python tools/demo/example_prompts.py 800 > prompts.jsonl`.

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

HELD_OUT = Path(__file__).parents[2] / "tests" / "assets" / "demo_heldout.jsonl"


def held_out_questions() -> set[str]:
    """Return all user messages of the held-out prompts."""
    rows = [json.loads(line) for line in HELD_OUT.read_text(encoding="ascii").splitlines()]
    return {m["content"] for row in rows for m in row.get("messages", ()) if m["role"] == "user"}


def prompts(count: int, *, seed: int) -> Iterator[dict[str, Any]]:
    """Yield chats of user messages alone, in OpenAI's format."""
    writer, avoided = ChatWriter(load_facts(), Random(f"example:{seed}")), held_out_questions()
    while count:
        chat = writer.chat()
        questions = [turn.question for turn in chat.turns]
        if avoided.isdisjoint(questions):
            count -= 1
            yield {
                "messages": [{"role": "user", "content": question} for question in questions],
                "reasoning_effort": chat.effort,
            }


if __name__ == "__main__":
    for prompt in prompts(int(sys.argv[1]), seed=0):
        print(json.dumps(prompt))
