"""JSON schemas as TypeScript: generated ones against openai-harmony."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.base.support.tool_cases import reference_developer

from eyas.base.harmony.rendering import developer_message
from eyas.base.harmony.tools import FunctionTool
from eyas.base.harmony.typescript import json_text, typescript_type

TEXT = st.text(max_size=8) | st.sampled_from(["null", "a\nb", 'say "x"', "\u4f60", "\r\n"])
# serde_json reads numbers of more digits or larger exponents to within one unit in the last place only.
DECIMAL = st.builds(lambda n, e: float(f"{n}e{e}"), st.integers(-(10**9), 10**9), st.integers(-22, 12))
NUMBER = st.integers(-(2**63), 2**64 - 1) | DECIMAL | st.sampled_from([2**64, -(2**63) - 1])
VALUE = st.recursive(
    st.none() | st.booleans() | NUMBER | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=4,
)
KIND = st.sampled_from(["string", "number", "integer", "boolean", "array", "object", "null", "other"])
ANNOTATIONS = {
    "description": TEXT,
    "title": TEXT,
    "default": VALUE,
    "examples": st.lists(VALUE, max_size=2),
    "enum": st.lists(VALUE | TEXT, max_size=3),
    "nullable": st.booleans(),
    "const": VALUE,
    "required": st.lists(TEXT, max_size=3),
}
NESTED = ("properties", "items", "oneOf", "anyOf")


@st.composite
def schemas(draw, depth=3, kind=None):
    """Keywords in any order, most with values as they should be, some of any kind."""
    schema = {}
    for name in draw(st.lists(st.sampled_from(["type", *ANNOTATIONS, *NESTED]), max_size=6, unique=True)):
        if draw(st.integers(0, 15)) == 0:
            schema[name] = draw(VALUE)
        elif name == "type":
            schema[name] = draw(KIND | KIND | st.lists(KIND | st.just(3), max_size=3))
        elif name in ANNOTATIONS:
            schema[name] = draw(ANNOTATIONS[name])
        elif depth > 0:
            inner = schemas(depth - 1) | schemas(depth - 1, "object") | st.booleans()
            shapes = {"properties": st.dictionaries(TEXT, inner, max_size=3), "items": inner}
            schema[name] = draw(shapes.get(name, st.lists(inner, max_size=3)))
    return schema if kind is None else schema | {"type": kind}


@settings(deadline=None, max_examples=60)
@given(description=TEXT, parameters=schemas(kind="object") | schemas())
def test_any_schema_is_rendered_as_openai_harmony_does(harmony, description, parameters):
    import openai_harmony as oh

    tools = [FunctionTool(name="f", description=description, parameters=parameters)]
    message = oh.Message.from_role_and_content(oh.Role.DEVELOPER, reference_developer(None, tools))
    assert developer_message(tools=tools).content == harmony.decode(harmony.render(message)[3:-1])


@settings(deadline=None, max_examples=60)
@given(number=NUMBER)
def test_any_number_is_spelled_as_openai_harmony_does(harmony, number):
    import openai_harmony as oh

    tools = [FunctionTool(name="f", parameters={"type": "object", "properties": {"a": {"default": number}}})]
    message = oh.Message.from_role_and_content(oh.Role.DEVELOPER, reference_developer(None, tools))
    text = harmony.decode(harmony.render(message))
    assert f"// default: {json_text(number)}\n" in text


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "integer"}, "number"),
        ({"type": "array", "items": {"type": "string"}}, "string[]"),
        ({"type": ["string", "null"]}, "string | null"),
        ({"type": "string", "enum": ["a", "b"]}, '"a" | "b"'),
        ({"anyOf": [{"type": "string"}]}, "any"),
        ({"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}, "{\na: boolean,\n}"),
        ({"type": "object", "properties": {"a": {"type": "boolean", "default": True}}}, None),
        (True, "any"),
    ],
)
def test_a_few_types(schema, expected):
    assert typescript_type(schema) == (expected or "{\na?: boolean, // default: true\n}")
