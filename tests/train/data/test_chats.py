"""Files of chats: both formats, the limits, and one clear line for whatever is wrong."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.train.data.support.chats import NUM_CHATS, TOOLS, chat, chat_json

from eyas.base.errors import InvalidRequest, UserError
from eyas.base.harmony.conversation import CallEntry, ReasoningEntry, ResultEntry, TextEntry
from eyas.base.harmony.openai_messages import entries_of
from eyas.gateway.http.body import Fields, decode
from eyas.gateway.openai.chat.messages import ChatMessages
from eyas.train.data import chats
from eyas.train.data.chats import read_chats
from eyas.train.data.records import chat_of

USER = {"role": "user", "content": "Hi"}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
ASKED = {"role": "assistant", "tool_calls": [CALL]}


def written(tmp_path, *lines, name="chats.jsonl"):
    path = tmp_path / name
    path.write_bytes(b"\n".join(x if isinstance(x, bytes) else json.dumps(x).encode() for x in lines) + b"\n")
    return path


class Body(Fields, kw_only=True):
    messages: ChatMessages


def servers_entries(messages):
    return entries_of(decode(msgspec.json.encode({"messages": messages}), Body).messages)


@pytest.mark.parametrize("seed", range(NUM_CHATS))
def test_messages_become_what_they_become_for_a_server(seed):
    value = chat_json(seed)
    assert list(chat(value).entries) == servers_entries(value["messages"])


FIELD = st.none() | st.sampled_from(["", "x", "ada", "1", "f"])
CALLS = st.none() | st.lists(
    st.builds(
        lambda id, name: {"id": id, "type": "function", "function": {"name": name, "arguments": "{}"}},
        st.sampled_from("12"),
        st.sampled_from(["f", "g", "no name"]),
    ),
    max_size=2,
)
PARTS = st.lists(st.sampled_from([{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "no"}]), max_size=2)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "developer", "user", "assistant", "assistant", "tool", "tool"])},
    optional={
        "content": FIELD | PARTS,
        "name": st.sampled_from(["ada", "f", None]),
        "tool_calls": CALLS,
        "tool_call_id": st.sampled_from(["1", "2", None]),
        "reasoning": FIELD,
        "reasoning_content": FIELD,
        "refusal": FIELD,
    },
)


def entries_or_error(convert, messages):
    try:
        return list(convert(messages))
    except InvalidRequest as error:
        return str(error), error.param


@given(messages=st.lists(MESSAGE, min_size=1, max_size=4))
def test_errors_are_those_of_a_server(messages):
    ours = entries_or_error(lambda x: chat_of({"messages": x}, source="x").entries, messages)
    assert ours == entries_or_error(servers_entries, messages)


def test_openais_format_is_read_line_by_line(tmp_path):
    first = {"messages": [USER], "tools": TOOLS, "reasoning_effort": "low", "date": "2026-11-24", "id": 7}
    path = written(tmp_path, first, b"  ", {"messages": [USER, {"role": "assistant", "content": "Yo", "parsed": 1}]})
    one, two = read_chats([path])
    assert one.source == f"{path}:1" and two.source == f"{path}:3"
    assert (one.effort, one.date, [tool.name for tool in one.tools]) == (
        "low",
        "2026-11-24",
        ["weather", "time-zone", "price_of"],
    )
    assert (two.effort, two.date, two.tools) == (None, None, ())
    assert two.entries == (TextEntry(role="user", text="Hi"), TextEntry(role="assistant", text="Yo"))


def test_sharegpts_format_is_read(tmp_path):
    def said(sender, value):
        return {"from": sender, "value": value}

    asked = said("function_call", '{"name": "f", "arguments": {"a": "\\u00e9", "b": [1, 2]}}')
    again = said("function_call", '{"name": "g", "arguments": "{}"}')
    items = [
        said("system", "S"),
        said("human", "H"),
        asked,
        again,
        said("observation", "9"),
        said("tool", "8"),
        said("gpt", "G"),
    ]
    (found,) = read_chats([written(tmp_path, {"conversations": items})])
    assert found.entries == (
        TextEntry(role="system", text="S"),
        TextEntry(role="user", text="H"),
        CallEntry(name="f", arguments='{"a":"\u00e9","b":[1,2]}'),
        CallEntry(name="g", arguments="{}"),
        ResultEntry(name="f", output="9"),
        ResultEntry(name="g", output="8"),
        TextEntry(role="assistant", text="G"),
    )


def test_reasoning_has_either_name():
    for name in ("reasoning", "reasoning_content"):
        found = chat({"messages": [USER, {"role": "assistant", name: "Hm.", "content": "Yo"}]})
        assert found.entries[1] == ReasoningEntry(text="Hm.")


BAD = [
    (b"{", "is not JSON: Expecting property name"),
    (b'{"messages": [' + b"[" * 100_000, "is not JSON: maximum recursion"),
    (b'{"messages": ' + b"1" * 5000 + b"}", "is not JSON: Exceeds the limit"),
    (b'{"messages": "\xff"}', "is not UTF-8: byte 0xff at position 14"),
    ([], "'the line' is a list; it must be an object"),
    ({}, "a chat has either 'messages' (OpenAI) or 'conversations' (ShareGPT)"),
    ({"messages": [], "conversations": []}, "a chat has either"),
    ({"messages": {}}, "'messages' is an object; it must be a list"),
    ({"messages": []}, "'messages' has 0 messages; it takes 1 to 10000"),
    ({"messages": [USER, 7]}, "'messages[1]' is a number; it must be an object"),
    (
        {"messages": [{"content": "x"}]},
        "'messages[0].role' is missing; it can be system, developer, user, assistant, tool",
    ),
    ({"messages": [USER | {"role": "bot"}]}, "'messages[0].role' cannot be 'bot'; it can be system"),
    ({"messages": [USER | {"role": 1}]}, "'messages[0].role' is a number; it must be a string"),
    ({"messages": [{"role": "user"}]}, "'messages[0].content' is missing"),
    (
        {"messages": [USER | {"content": 1}]},
        "'messages[0].content' is a number; it must be a string or a list of parts",
    ),
    (
        {"messages": [USER | {"content": [{"type": "image_url"}]}]},
        "'messages[0].content[0].type' is 'image_url': only text",
    ),
    ({"messages": [USER | {"content": [{"type": "text"}]}]}, "'messages[0].content[0].text' is missing"),
    ({"messages": [USER | {"content": ["x"]}]}, "'messages[0].content[0]' is a string; it must be an object"),
    ({"messages": [USER | {"name": "a b"}]}, "'messages[0].name' is 'a b'; it has 1 to 64 letters"),
    ({"messages": [USER | {"reasonin": "x"}]}, "unknown field 'messages[0].reasonin' (did you mean 'reasoning'?)"),
    ({"messages": [USER | {"weight": 0}]}, "unknown field 'messages[0].weight'; known are role"),
    ({"messages": [USER | {"reasoning": "x"}]}, "messages[0]: only a message of role 'assistant' has reasoning"),
    ({"messages": [USER, {"role": "tool", "content": "x"}]}, "'messages[1].tool_call_id' is missing"),
    (
        {"messages": [ASKED, {"role": "tool", "tool_call_id": "2", "content": ""}]},
        "no assistant message before it has a call",
    ),
    ({"messages": [ASKED | {"tool_calls": [{"id": "1"}]}]}, "'messages[0].tool_calls[0].function' is missing"),
    (
        {"messages": [ASKED | {"tool_calls": [CALL | {"type": "custom"}]}]},
        "tool_calls[0].type' is 'custom'; only 'function'",
    ),
    (
        {"messages": [ASKED | {"tool_calls": [CALL | {"function": {"name": "f", "arguments": {}}}]}]},
        "'messages[0].tool_calls[0].function.arguments' is an object; it must be a string",
    ),
    (
        {"messages": [ASKED | {"tool_calls": [CALL | {"function": {"name": "f g", "arguments": ""}}]}]},
        "'f g' is not a valid tool name",
    ),
    ({"messages": [ASKED | {"tool_calls": [CALL] * 129}]}, "'messages[0].tool_calls' has 129 items; it takes 128"),
    ({"messages": [USER], "tools": "x"}, "'tools' is a string; it must be a list"),
    ({"messages": [USER], "tools": [TOOLS[0], TOOLS[0]]}, "'tools[1].function.name': there is a 'weather' already"),
    ({"messages": [USER], "tools": [{"type": "function", "function": {}}]}, "'tools[0].function.name' is missing"),
    (
        {"messages": [USER], "reasoning_effort": "max"},
        "'reasoning_effort' cannot be 'max'; it can be low, medium, high",
    ),
    ({"messages": [USER], "date": "20261124"}, "'date' is '20261124'; a date is YYYY-MM-DD"),
    ({"messages": [USER], "date": "2026-02-30"}, "'date' is '2026-02-30'; a date is YYYY-MM-DD"),
    (
        {"conversations": [{"from": "gtp", "value": "x"}]},
        "'conversations[0].from' cannot be 'gtp'; it can be system, human",
    ),
    ({"conversations": [{"from": "gpt"}]}, "'conversations[0].value' is missing"),
    ({"conversations": [{"from": "tool", "value": "x"}]}, "'conversations[0]' is a result without a call"),
    ({"conversations": [{"from": "function_call", "value": "f()"}]}, "'conversations[0].value' is not JSON"),
    (
        {"conversations": [{"from": "function_call", "value": '{"name": "f"}'}]},
        "'conversations[0].value.arguments' is missing",
    ),
]


@pytest.mark.parametrize(("line", "text"), BAD, ids=range(len(BAD)))
def test_what_is_wrong_is_said_in_one_line(tmp_path, line, text):
    path = written(tmp_path, {"messages": [USER]}, line)
    with pytest.raises(UserError) as caught:
        list(read_chats([path]))
    message = str(caught.value)
    assert message.startswith(f"{path}:2") and text in message
    assert "\n" not in message and len(message) < 600


def test_fields_that_say_nothing_are_passed_over():
    """As data sets write them whose rows have all columns."""
    empty = {"audio": None, "annotations": [], "function_call": None, "tool_calls": None, "thinking": None}
    assert chat({"messages": [USER | empty], "tools": None}).entries == chat({"messages": [USER]}).entries


def test_lines_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(chats, "MAX_LINE_BYTES", 1 << 20)
    path = written(tmp_path, {"messages": [USER]}, b"x" * (2 << 20), b"{")
    with pytest.raises(UserError, match=rf"^{path}:2 has more than 1 MiB; one line is one chat"):
        list(read_chats([path]))


def test_a_chat_is_there_before_the_next_line_is_read(tmp_path):
    path = written(tmp_path, {"messages": [USER]}, b"{")
    assert next(read_chats([path])).source == f"{path}:1"


def test_a_byte_order_mark_and_a_missing_last_newline_are_fine(tmp_path):
    path = tmp_path / "chats.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps({"messages": [USER]}).encode())
    assert len(list(read_chats([path, path]))) == 2


def test_files_that_cannot_be_read_are_named(tmp_path):
    for path, text in ((tmp_path / "no.jsonl", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(UserError, match=rf"^{path} cannot be read \({text}"):
            list(read_chats([path]))
