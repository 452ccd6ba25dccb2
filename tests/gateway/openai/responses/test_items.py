"""Prompts of `/v1/responses` against openai-harmony, token by token: any conversation, kept in any pieces."""

import datetime
import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.base.conftest import harmony, o200k, o200k_pattern, ranks  # noqa: F401 - fixtures
from tests.base.harmony.test_rendering import keep_all, reference_ids
from tests.base.support.harmony_cases import reference_message
from tests.base.support.tool_cases import reference_developer
from tests.gateway.support.responses import WEATHER

from eyas.base.errors import InvalidRequest
from eyas.base.harmony.rendering import Message, stop_ids
from eyas.base.harmony.tools import FunctionTool
from eyas.base.types import ModelInfo
from eyas.engine.ports.stub import StubEngine
from eyas.gateway.openai.responses.body import decode_body, input_items
from eyas.gateway.openai.responses.items import FunctionCall, MessageItem, Reasoning, keep, to_entries
from eyas.gateway.openai.responses.prompt import prepare
from eyas.gateway.openai.responses.store import Kept
from eyas.gateway.server.context import Context, GatewayOptions
from eyas.gateway.server.steps import StepHub

TOOL = FunctionTool(name="get_weather", description=WEATHER["description"], parameters=WEATHER["parameters"])
TEXT = st.text(max_size=30) | st.sampled_from(["<|end|><|start|>system", "plain words", "\U0001f985 \u00fc"])
STEP = st.tuples(st.none() | TEXT, st.none() | TEXT, TEXT, TEXT)  # analysis, preamble, arguments, result
TURN = st.tuples(TEXT, st.lists(STEP, max_size=2), st.none() | TEXT, st.none() | TEXT)  # user, steps, analysis, final


@pytest.fixture(scope="module")
def context(o200k):  # noqa: F811
    info = ModelInfo(name="m", context=100_000, vocab_size=201_088, eos_ids=stop_ids(o200k), drafter="none")
    engine = StubEngine(info, lambda request, choice: [])
    options = GatewayOptions(today=lambda: datetime.date(2025, 6, 28))
    yield Context(engine=engine, codec=o200k, options=options, steps=StepHub(engine))
    engine.close()


def assistant(channel, text):
    return Message(role="assistant", channel=channel, content=text)


def written(turns):
    """(items as clients send them, the messages that they mean) of a conversation."""
    items, messages = [], []

    def add(item, message):
        items.append(item)
        messages.append(message)

    def reasoning(text):
        item = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}
        add(item, assistant("analysis", text))

    for asked, steps, thought, answer in turns:
        add({"role": "user", "content": asked}, Message(role="user", content=asked))
        for analysis, preamble, arguments, output in steps:
            if analysis is not None:
                reasoning(analysis)
            if preamble is not None:
                item = {"role": "assistant", "content": preamble, "phase": "commentary"}
                add(item, assistant("commentary", preamble))
            call_id = f"call_{len(items)}"
            item = {"type": "function_call", "call_id": call_id, "name": "get_weather", "arguments": arguments}
            call = {"channel": "commentary", "recipient": "functions.get_weather", "content_type": "<|constrain|>json"}
            add(item, Message(role="assistant", content=arguments, **call))
            result = {"role": "tool", "name": "functions.get_weather", "recipient": "assistant"}
            add(
                {"type": "function_call_output", "call_id": call_id, "output": output},
                Message(channel="commentary", content=output, **result),
            )
        if thought is not None:
            reasoning(thought)
        if answer is not None:
            add({"role": "assistant", "content": answer}, assistant("final", answer))
    return items, messages


def as_chain(items, cuts):
    """Items kept in responses that are cut at these places, inputs and outputs by turns; and what is left as input."""
    previous, places = None, [0, *cuts]
    for number in range(0, len(places) - 2, 2):
        begin, middle, end = places[number : number + 3]
        parts = [
            msgspec.json.encode(keep(input_items(body_of(part)), f"{number}{kind}", {}) if part else [])
            for kind, part in (("a", items[begin:middle]), ("b", items[middle:end]))
        ]
        previous = Kept(
            response_id=f"resp_{number}",
            owner=b"",
            status="completed",
            input_items=parts[0],
            response=b'{"id": "r", "output": %b}' % parts[1],
            previous=previous,
        )
    return previous, items[places[(len(places) - 1) // 2 * 2] :]


def body_of(items, **fields):
    return decode_body(json.dumps({"input": items, **fields}).encode())


def prompt_of(context, items, previous=None, **fields):
    body = body_of(items, **fields)
    return prepare(
        context, body, input_items(body), stem="x", previous=previous, referenced={}
    ).question.request.prompt_ids


@settings(max_examples=60, deadline=None)
@given(
    turns=st.lists(TURN, min_size=1, max_size=3),
    cuts=st.lists(st.integers(0, 20), max_size=5),
    instructions=st.none() | TEXT,
    effort=st.sampled_from(["low", "medium", "high"]),
    has_tools=st.booleans(),
)
def test_prompts_equal_openai_harmonys(context, harmony, turns, cuts, instructions, effort, has_tools):  # noqa: F811
    import openai_harmony as oh

    items, messages = written(turns)
    previous, rest = as_chain(items, sorted(min(cut, len(items) - 1) for cut in cuts))
    fields = {"instructions": instructions, "reasoning": {"effort": effort}, "tools": [WEATHER] if has_tools else []}
    ours = prompt_of(context, rest, previous, **fields)

    content = oh.SystemContent.new().with_conversation_start_date("2025-06-28")
    theirs = [
        oh.Message.from_role_and_content(
            oh.Role.SYSTEM, content.with_reasoning_effort(oh.ReasoningEffort[effort.upper()])
        )
    ]
    if has_tools or instructions is not None:
        developer = reference_developer(instructions, [TOOL] if has_tools else [])
        theirs.append(oh.Message.from_role_and_content(oh.Role.DEVELOPER, developer))
    last_final = max((i for i, message in enumerate(messages) if message.channel == "final"), default=-1)
    seen = [message for i, message in enumerate(messages) if message.channel != "analysis" or i > last_final]
    conversation = oh.Conversation.from_messages([*theirs, *map(reference_message, seen)])
    assert list(ours) == reference_ids(harmony, conversation, "completion", keep_all(harmony))


def test_a_system_prompt_in_the_input_takes_tools_and_schema_beside_it(context):
    schema = {"type": "json_schema", "name": "a", "schema": {"type": "object"}}
    fields = {"tools": [WEATHER], "text": {"format": schema}}
    items = [{"role": "user", "content": "Hi"}]
    by_field = prompt_of(context, items, instructions="Be kind.", **fields)
    for role in ("system", "developer"):
        assert prompt_of(context, [{"role": role, "content": "Be kind."}, *items], **fields) == by_field


def test_items_are_kept_with_ids_statuses_and_parts():
    items = input_items(
        body_of(
            [
                {"role": "user", "content": "Hi"},
                {"type": "message", "role": "assistant", "content": "Hello", "id": "msg_own"},
                {"type": "reasoning", "summary": [], "content": None},
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "parsed_arguments": {}},
                {"type": "function_call_output", "call_id": "c", "output": "x"},
            ]
        )
    )
    kept = json.loads(msgspec.json.encode(keep(items, "s", {})))
    assert [item["id"] for item in kept] == ["msg_s_i0", "msg_own", "rs_s_i2", "fc_s_i3", "fco_s_i4"]
    assert {item["status"] for item in kept} == {"completed"} and "parsed_arguments" not in kept[3]
    assert kept[0]["content"] == [{"type": "input_text", "text": "Hi"}]
    assert kept[1]["content"] == [{"type": "output_text", "text": "Hello", "annotations": []}]
    assert msgspec.convert(kept, list[MessageItem | Reasoning | FunctionCall | type(items[4])]) == keep(items, "s", {})


def test_errors_name_the_item_of_the_input_not_of_the_history():
    history = keep(input_items(body_of([{"role": "user", "content": "Hi"}])), "h", {})
    items = keep(
        input_items(body_of([{"type": "function_call", "call_id": "c", "name": "f", "arguments": ""}])),
        *("s", {}),
    )
    with pytest.raises(InvalidRequest) as caught:
        to_entries(history, items)
    assert caught.value.param == "input[0]"
    with pytest.raises(InvalidRequest) as caught:
        to_entries([*history, *items], history)
    assert caught.value.param == "input"
