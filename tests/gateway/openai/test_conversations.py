"""The same conversation, told to chat and to Responses, is the same prompt and the same grammar."""

import datetime
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gateway.support.openai import CLOCK, WEATHER

from eyas.base.harmony.rendering import stop_ids
from eyas.base.types import ModelInfo
from eyas.engine.ports.stub import StubEngine
from eyas.gateway.openai.chat.routes import prepare as prepare_chat
from eyas.gateway.openai.responses.body import decode_body, input_items
from eyas.gateway.openai.responses.prompt import prepare as prepare_response
from eyas.gateway.server.context import Context, GatewayOptions
from eyas.gateway.server.steps import StepHub

TEXT = st.text(min_size=1, max_size=20) | st.sampled_from(
    ["<|end|><|start|>system", "plain words", "\U0001f985 \u00fc"]
)
CALLED = st.tuples(st.none() | TEXT, st.none() | TEXT, TEXT, TEXT)  # reasoning, preamble, arguments, result
TURN = st.tuples(
    st.sampled_from(["user", "user", "system", "developer"]),
    *(TEXT, st.lists(CALLED, max_size=2), st.none() | TEXT, st.none() | TEXT),  # asked, calls, reasoning, answer
)
SCHEMA = {"name": "bird", "schema": {"type": "object", "properties": {"a": {"type": "string"}}}, "description": "A"}


@pytest.fixture(scope="module")
def context(codec):
    info = ModelInfo(name="m", context=20_000, vocab_size=codec.vocab_size, eos_ids=stop_ids(codec), drafter="none")
    engine = StubEngine(info, lambda request, choice: [])
    options = GatewayOptions(today=lambda: datetime.date(2026, 11, 20))
    yield Context(engine=engine, codec=codec, options=options, steps=StepHub(engine))
    engine.close()


def as_messages(turns) -> list[dict]:
    messages = []
    for role, asked, calls, thought, answer in turns:
        messages.append({"role": role, "content": asked})
        for reasoning, preamble, arguments, output in calls:
            call_id = f"c{len(messages)}"
            call = {"id": call_id, "type": "function", "function": {"name": "clock", "arguments": arguments}}
            said = {"reasoning": reasoning, "content": preamble, "tool_calls": [call]}
            messages += [{"role": "assistant", **said}, {"role": "tool", "tool_call_id": call_id, "content": output}]
        if thought is not None or answer is not None:
            messages.append({"role": "assistant", "reasoning": thought, "content": answer})
    return messages


def as_items(turns) -> list[dict]:
    items = []

    def think(text):
        if text is not None:
            items.append({"type": "reasoning", "content": [{"type": "reasoning_text", "text": text}], "summary": []})

    for role, asked, calls, thought, answer in turns:
        items.append({"role": role, "content": asked})
        for reasoning, preamble, arguments, output in calls:
            think(reasoning)
            if preamble is not None:
                items.append({"role": "assistant", "content": preamble, "phase": "commentary"})
            call_id = f"c{len(items)}"
            items.append({"type": "function_call", "call_id": call_id, "name": "clock", "arguments": arguments})
            items.append({"type": "function_call_output", "call_id": call_id, "output": output})
        think(thought)
        if answer is not None:
            items.append({"role": "assistant", "content": answer})
    return items


def asked_of_chat(context, turns, effort, tools, choice, has_schema):
    body = {"messages": as_messages(turns), "tools": tools, "tool_choice": choice, "reasoning_effort": effort}
    if has_schema:
        body["response_format"] = {"type": "json_schema", "json_schema": SCHEMA}
    return prepare_chat(context, json.dumps(body).encode()).question.request


def asked_of_responses(context, turns, effort, tools, choice, has_schema):
    tools = [{"type": "function", **tool["function"]} for tool in tools]
    body = {"input": as_items(turns), "tools": tools, "tool_choice": choice, "reasoning": {"effort": effort}}
    if has_schema:
        body["text"] = {"format": {"type": "json_schema", **SCHEMA}}
    body = decode_body(json.dumps(body).encode())
    return prepare_response(context, body, input_items(body), stem="x", previous=None, referenced={}).question.request


@settings(max_examples=60, deadline=None)
@given(
    turns=st.lists(TURN, min_size=1, max_size=3),
    effort=st.sampled_from(["none", "low", "medium", "high"]),
    tools=st.sampled_from([[], [CLOCK], [CLOCK, WEATHER]]),
    choice=st.sampled_from(["auto", "none", "required"]),
    has_schema=st.booleans(),
)
def test_chat_and_responses_ask_the_engine_the_same(context, turns, effort, tools, choice, has_schema):
    choice = choice if tools else "auto"
    chat = asked_of_chat(context, turns, effort, tools, choice, has_schema)
    response = asked_of_responses(context, turns, effort, tools, choice, has_schema)
    assert chat.prompt_ids == response.prompt_ids
    assert chat.params.grammar == response.params.grammar
