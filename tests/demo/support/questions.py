"""Ask the demo model the questions of tests/assets/stdlib_questions.jsonl and judge its answers."""

import json
from pathlib import Path

from eyas.base.harmony.parser import StreamParser
from eyas.base.harmony.rendering import Message, system_message
from eyas.base.types import SamplingParams

QUESTIONS = Path(__file__).parents[2] / "assets" / "stdlib_questions.jsonl"


def final_text(codec, token_ids):
    parser = StreamParser(codec)
    parser.feed(token_ids)
    parser.finish()
    return " ".join(message.content for message in parser.messages if message.channel == "final")


def answers(llm, every=1):
    """[(question row, answer text, right)]: right is the module and the whole first sentence of the documentation."""
    rows = [json.loads(line) for line in QUESTIONS.read_text().splitlines()][::every]
    conversations = [[system_message(date="2026-01-31"), Message(role="user", content=r["question"])] for r in rows]
    outputs = llm.chat(conversations, SamplingParams(temperature=0, max_tokens=256))
    texts = [final_text(llm.tokenizer, output.outputs[0].token_ids) for output in outputs]
    return [
        (row, text, f"`{row['module']}`" in text and row["sentence"] in text)
        for row, text in zip(rows, texts, strict=True)
    ]
