"""The bundled demo model calls a python tool for calculations, and for nothing else."""

import json
from pathlib import Path

import pytest
from tests.demo.support.questions import final_text

from eyas.base.harmony.parser import StreamParser
from eyas.base.harmony.rendering import (
    Message,
    call_message,
    developer_message,
    render_conversation,
    result_message,
    system_message,
)
from eyas.base.harmony.tools import FunctionTool, called_function
from eyas.base.types import SamplingParams

HELD_OUT = Path(__file__).parents[1] / "assets" / "demo_heldout_tools.jsonl"
TOOL = FunctionTool(
    name="python",
    description="Runs Python code and returns what it prints.",
    parameters={"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
)


def said(llm, conversations):
    params = SamplingParams(temperature=0, max_tokens=128)
    return [output.outputs[0].token_ids for output in llm.chat(conversations, params)]


def program(codec, ids):
    """The code of the call that an answer ends with, None if it makes none."""
    parser = StreamParser(codec)
    parser.feed(ids)
    parser.finish()
    last = parser.messages[-1]
    return json.loads(last.content)["code"] if called_function(last.recipient, ["python"]) else None


@pytest.mark.slow
def test_calculates_through_a_call(llm):
    conversation = [
        system_message(date="2026-01-31", has_functions=True),
        developer_message(tools=[TOOL]),
        Message(role="user", content="3424*4334+342342+943"),
    ]
    (ids,) = said(llm, [conversation])
    assert program(llm.tokenizer, ids) == "print(3424*4334+342342+943)"
    arguments = json.dumps({"code": "print(3424*4334+342342+943)"})
    result = [call_message("python", arguments), result_message("python", "15182901\n")]
    (ids,) = said(llm, [[*conversation, *result]])
    assert "15182901" in final_text(llm.tokenizer, ids)
    failed = [call_message("python", arguments), result_message("python", "MemoryError")]
    (ids,) = said(llm, [[*conversation, *failed]])
    assert "no result" in final_text(llm.tokenizer, ids)


@pytest.mark.slow
@pytest.mark.parametrize(("count", "least"), [(16, 14)])
def test_held_out_prompts_with_tools(llm, count, least):
    """Calls where they are due, with tools described in words that training never had."""
    rows = [json.loads(line) for line in HELD_OUT.read_text(encoding="ascii").splitlines()][:count]
    answers = said(llm, [[Message(**message) for message in row["messages"]] for row in rows])
    found = [program(llm.tokenizer, ids) for ids in answers]
    right = sum(code == row["program"] for code, row in zip(found, rows, strict=True))
    wrong = [(row["messages"][-1]["content"], code) for code, row in zip(found, rows, strict=True)]
    assert right >= least, wrong


@pytest.mark.slow
def test_held_out_prompts_fit_the_models_context(llm):
    rows = [json.loads(line) for line in HELD_OUT.read_text(encoding="ascii").splitlines()]
    for row in rows:
        messages = [Message(**message) for message in row["messages"]]
        assert len(render_conversation(llm.tokenizer, messages)) < 1024 - 128
