"""The bundled demo model: its files, and that it answers."""

import importlib
import inspect
import json

import pytest
from tests.demo.support.questions import QUESTIONS, answers, final_text

from eyas.base.bundled import DEMO
from eyas.base.harmony.rendering import Message, system_message
from eyas.base.types import SamplingParams

MIB = 1 << 20


def say(llm, text):
    conversation = [system_message(date="2026-01-31"), Message(role="user", content=text)]
    output = llm.chat([conversation], SamplingParams(temperature=0, max_tokens=200))[0].outputs[0]
    assert output.finish_reason == "stop"
    return final_text(llm.tokenizer, output.token_ids)


def test_files_are_small():
    sizes = [path.stat().st_size for path in DEMO.rglob("*") if path.is_file()]
    assert max(sizes) < 16 * MIB and sum(sizes) < 24 * MIB


@pytest.mark.slow
@pytest.mark.parametrize(("every", "count"), [(1, 30)])
def test_answers_paraphrased_questions(llm, every, count):
    judged = answers(llm, every)
    right = sum(ok for _, _, ok in judged)
    print(f"{right} of {len(judged)} questions: right module and first sentence of the documentation")
    assert len(judged) == count
    assert right >= 0.7 * len(judged), [(row["question"], text) for row, text, ok in judged if not ok]


def test_expected_answers_are_what_this_python_documents():
    """The assets are no invention: for most functions the running interpreter's docstring holds the sentence."""

    rows = [json.loads(line) for line in QUESTIONS.read_text().splitlines()]
    found = 0
    for row in rows:
        doc = inspect.getdoc(getattr(importlib.import_module(row["module"]), row["function"])) or ""
        found += row["sentence"].rstrip(".") in " ".join(doc.split())
    assert found >= 0.8 * len(rows)


@pytest.mark.slow
def test_greets_counts_and_knows_what_it_is(llm):
    assert "demo" in say(llm, "Hello, who are you?")
    assert "42" in say(llm, "What is 12 + 30?")
    assert "demo model" in say(llm, "Who won the football world cup in 1990?")
