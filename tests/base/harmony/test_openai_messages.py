"""OpenAI's messages to entries, from objects that are no structs of the gateway's."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from eyas.base.errors import InvalidRequest
from eyas.base.harmony.conversation import CallEntry, ReasoningEntry, ResultEntry, TextEntry
from eyas.base.harmony.openai_messages import check_functions, entries_of
from eyas.base.harmony.tools import FunctionTool


@dataclass
class Plain:
    role: Any
    content: Any = None
    name: str | None = None
    tool_calls: Any = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None


def call(name, number):
    return SimpleNamespace(id=number, function=SimpleNamespace(name=name, arguments="{}"))


def part(text, is_refusal=False):
    return SimpleNamespace(text=text, is_refusal=is_refusal)


def test_any_objects_with_the_fields_are_messages():
    messages = [
        Plain("system", "S"),
        Plain("developer", [part("D"), part("E")], name="eva"),
        Plain("user", "U"),
        Plain("assistant", "P", reasoning_content="R", tool_calls=(call("f", "1"), call("g", "2"))),
        Plain("tool", "9", tool_call_id="2"),
        Plain("assistant", (part("A"), part("no", True)), refusal="!"),
    ]
    assert entries_of(messages) == [
        TextEntry(role="system", text="S"),
        TextEntry(role="system", text="DE", author="eva"),
        TextEntry(role="user", text="U"),
        ReasoningEntry(text="R"),
        TextEntry(role="assistant", text="P", is_preamble=True),
        CallEntry(name="f", arguments="{}"),
        CallEntry(name="g", arguments="{}"),
        ResultEntry(name="g", output="9"),
        TextEntry(role="assistant", text="Ano!"),
    ]


@pytest.mark.parametrize(
    ("message", "param"),
    [
        (Plain("user"), "messages[0].content"),
        (Plain("user", "U", reasoning="R"), "messages[0].reasoning"),
        (Plain("user", (part("U"), part("no", True))), "messages[0].content[1].type"),
        (Plain("tool", "9"), "messages[0].tool_call_id"),
        (Plain("tool", "9", tool_call_id="1"), "messages[0].tool_call_id"),
        (Plain("assistant", tool_calls=[call("f g", "1")]), "messages[0].tool_calls[0].function.name"),
    ],
)
def test_an_error_names_the_field(message, param):
    with pytest.raises(InvalidRequest) as caught:
        entries_of([message])
    assert caught.value.param == param


def test_functions_have_good_names_and_each_its_own():
    good = FunctionTool(name="f")
    check_functions([good, FunctionTool(name="g")])
    for tools, param in (
        ([FunctionTool(name="f g")], "tools[0].function.name"),
        ([good, good], "tools[1].function.name"),
        ([FunctionTool(name="f", parameters={"x": float("nan")})], "tools[0].function.parameters"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            check_functions(tools)
        assert caught.value.param == param
