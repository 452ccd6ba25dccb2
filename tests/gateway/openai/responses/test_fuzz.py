"""Bodies of `/v1/responses` with anything anywhere: each is either prepared or refused with the name of a field."""

import copy
import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gateway.support.responses import WEATHER

from eyas.base.errors import InvalidRequest
from eyas.base.harmony.rendering import stop_ids
from eyas.base.types import ModelInfo
from eyas.engine.ports.stub import StubEngine
from eyas.gateway.openai.responses.body import decode_body, input_items
from eyas.gateway.openai.responses.prompt import prepare
from eyas.gateway.server.context import Context, GatewayOptions
from eyas.gateway.server.steps import StepHub

GOOD = {
    "model": "stub",
    "input": [
        {"role": "developer", "content": "Be kind."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
        {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "function_call", "id": "fc", "call_id": "c", "name": "get_weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "sunny"}]},
        {
            "type": "message",
            "role": "assistant",
            "id": "msg",
            "status": "completed",
            "phase": "final_answer",
            "content": [{"type": "output_text", "text": "Sunny.", "annotations": [], "logprobs": []}],
        },
        {"role": "user", "content": "Thanks"},
    ],
    "tools": [{**WEATHER, "strict": True}],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "get_weather"}]},
    "text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "object"}, "strict": True}},
    "reasoning": {"effort": "low", "summary": "auto"},
    "include": ["message.output_text.logprobs"],
    "metadata": {"a": "b"},
    "max_output_tokens": 9,
    "temperature": 0.5,
    "top_logprobs": 1,
    "truncation": "auto",
    "stream": True,
    "stream_options": {"include_obfuscation": False},
    "stop": ["x"],
    "seed": 1,
}
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(["message", "function", "required", "item_reference", "type", "", 10**30, -1, 1e300]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=4,
)


def places(value, path=()):
    """Paths of all values within a body."""
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [(*path, key) for key in keys] + [place for key in keys for place in places(value[key], (*path, key))]


PLACES = places(GOOD)
CHANGES = st.lists(st.tuples(st.sampled_from(PLACES), st.sampled_from(["set", "delete", "add"]), JSON), max_size=3)


def changed(changes):
    body = copy.deepcopy(GOOD)
    for path, how, value in changes:
        parent = body
        try:
            for key in path[:-1]:
                parent = parent[key]
            if how == "set":
                parent[path[-1]] = value
            elif how == "delete":
                del parent[path[-1]]
            elif isinstance(parent, dict):
                parent[str(value)[:9]] = value
            else:
                parent.append(value)
        except (AttributeError, KeyError, IndexError, TypeError):  # an earlier change took the place away
            continue
    return body


@pytest.fixture(scope="module")
def context(codec):
    info = ModelInfo(name="stub", context=4000, vocab_size=codec.vocab_size, eos_ids=stop_ids(codec), drafter="none")
    engine = StubEngine(info, lambda request, choice: [])
    yield Context(engine=engine, codec=codec, options=GatewayOptions(), steps=StepHub(engine))
    engine.close()


def prepared(context, raw):
    body = decode_body(raw)
    return prepare(context, body, input_items(body), stem="x", previous=None, referenced={})


def test_the_unchanged_body_is_good(context):
    assert prepared(context, json.dumps(GOOD).encode()).question.request.prompt_ids


@settings(max_examples=60, deadline=None)
@given(changes=CHANGES)
def test_any_body_is_prepared_or_refused(context, changes):
    try:
        ready = prepared(context, json.dumps(changed(changes)).encode())
    except InvalidRequest as error:
        assert str(error)
    else:
        msgspec.json.encode((ready.response, ready.items))
        assert len(ready.question.request.prompt_ids) < 4000


@pytest.mark.parametrize("where", ["metadata", "tools", "input", "text"])
def test_deep_nesting_is_refused(context, where):
    deep = b'{"a":' * 50_000 + b"1" + b"}" * 50_000
    wrapped = {
        "metadata": b"%b",
        "tools": b'[{"type":"function","name":"f","parameters":%b}]',
        "input": b'[{"role":"assistant","content":[{"type":"output_text","text":"","parsed":%b}]}]',
        "text": b'{"format":{"type":"json_schema","name":"a","schema":%b}}',
    }[where]
    fields = b"" if where == "input" else b'"input":"Hi",'
    for nested in (deep, b'{"a":' * 400 + b"1" + b"}" * 400):
        raw = b'{%b"%b":%b}' % (fields, where.encode(), wrapped % nested)
        if where == "input" and len(nested) < 10_000:
            assert prepared(context, raw).question.request.prompt_ids
        else:
            with pytest.raises(InvalidRequest):
                prepared(context, raw)
