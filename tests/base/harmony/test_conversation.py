"""Conversations to Harmony: what stands in the head, and what each entry becomes."""

import pytest

from eyas.base.harmony.conversation import (
    CallEntry,
    Conversation,
    ReasoningEntry,
    ResultEntry,
    TextEntry,
    ToolsEntry,
    to_harmony,
)
from eyas.base.harmony.rendering import Message, call_message, developer_message, result_message, system_message
from eyas.base.harmony.tools import FunctionTool, ResponseFormat

TOOL = FunctionTool(name="clock")
FORMAT = ResponseFormat(name="bird", schema={"type": "object"})
USER = TextEntry(role="user", text="Hi")
SYSTEM = TextEntry(role="system", text="Be kind.", author="eva")
ENTRIES = [
    (USER, Message(role="user", content="Hi")),
    (TextEntry(role="user", text="Hi", author="ada"), Message(role="user", content="Hi", name="ada")),
    (SYSTEM, Message(role="developer", content=developer_message("Be kind.").content, name="eva")),
    (TextEntry(role="assistant", text="Yes."), Message(role="assistant", channel="final", content="Yes.")),
    (
        TextEntry(role="assistant", text="I look.", is_preamble=True),
        Message(role="assistant", channel="commentary", content="I look."),
    ),
    (ReasoningEntry(text="Hm."), Message(role="assistant", channel="analysis", content="Hm.")),
    (CallEntry(name="clock", arguments="{}"), call_message("clock", "{}")),
    (ResultEntry(name="clock", output="9"), result_message("clock", "9")),
    (ToolsEntry(tools=[TOOL]), developer_message(tools=[TOOL])),
]


@pytest.mark.parametrize(("entry", "message"), ENTRIES)
def test_an_entry_is_a_message(entry, message):
    assert to_harmony(Conversation(entries=[USER, entry]))[1] == [Message(role="user", content="Hi"), message]


def test_the_head_says_date_effort_and_whether_there_are_functions():
    conversation = Conversation(entries=[USER], date="2026-11-20", effort="high", tools=[TOOL])
    head, rest = to_harmony(conversation)
    assert head[0] == system_message(date="2026-11-20", effort="high", has_functions=True)
    assert head[1:] == [developer_message(tools=[TOOL])] and len(rest) == 1


@pytest.mark.parametrize("has_tools", [False, True])
@pytest.mark.parametrize("has_format", [False, True])
@pytest.mark.parametrize("instructions", [None, "", "Be brief."])
@pytest.mark.parametrize("begins_with_system", [False, True])
def test_one_developer_message_has_all_that_is_to_be_said(has_tools, has_format, instructions, begins_with_system):
    tools, formats = [TOOL] * has_tools, [FORMAT] * has_format
    entries = [SYSTEM] * begins_with_system + [USER, SYSTEM]
    conversation = Conversation(
        entries=entries, instructions=instructions, tools=tools, answer_format=FORMAT if has_format else None
    )
    head, rest = to_harmony(conversation)
    takes_place = instructions is None and begins_with_system
    text = SYSTEM.text if takes_place else instructions
    developers = (
        []
        if text is None and not tools and not formats
        else [developer_message(text, tools=tools, response_formats=formats)]
    )
    assert [message.content for message in head[1:]] == [message.content for message in developers]
    assert [message.name for message in head[1:]] == ["eva" if takes_place else None] * len(developers)
    assert [message.role for message in rest] == ["developer"] * (begins_with_system and not takes_place) + [
        "user",
        "developer",
    ]


def test_a_conversation_may_have_no_entries():
    assert to_harmony(Conversation(entries=[])) == ([system_message()], [])


def test_tools_that_become_known_later_are_functions_from_the_beginning():
    """Their place in the front does not change when a later message brings them."""
    later = ToolsEntry(tools=[FunctionTool(name="later")])
    head, rest = to_harmony(Conversation(entries=[USER, later]))
    assert head == [system_message(has_functions=True)] and rest[1].content.startswith("# Tools\n\n## functions")
    assert (
        to_harmony(Conversation(entries=[USER, later], tools=[TOOL]))[0]
        == to_harmony(Conversation(entries=[USER], tools=[TOOL]))[0]
    )
