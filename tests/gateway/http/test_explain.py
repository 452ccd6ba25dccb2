"""What is said of a body that cannot be served: the field, and what it may be."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.base.errors import InvalidRequest
from eyas.gateway.http import explain
from eyas.gateway.http.body import decode
from eyas.gateway.http.errors import failure_of
from eyas.gateway.openai.chat.routes import ChatBody
from eyas.gateway.openai.completions.routes import CompletionsBody
from eyas.gateway.openai.errors import ERRORS
from eyas.gateway.openai.responses.body import decode_body, input_items


def body_of(error: InvalidRequest) -> bytes:
    return ERRORS.body(failure_of(error))


USER = {"role": "user", "content": "Hi"}


def chat_error(body) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        decode(body if isinstance(body, bytes) else json.dumps(body).encode(), ChatBody)
    return caught.value


def responses_error(body) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        input_items(decode_body(json.dumps({"input": "x"} | body).encode()))
    return caught.value


@pytest.mark.parametrize(
    ("error", "param", "known"),
    [
        (lambda: chat_error({"messages": [USER], "tool_choice": "any"}), "tool_choice", "'none', 'auto', 'required'"),
        (lambda: chat_error({"messages": [USER], "tool_choice": {"type": "x"}}), "tool_choice.type",
         "'function', 'allowed_tools'"),
        (lambda: chat_error({"messages": [USER], "reasoning_effort": "max"}), "reasoning_effort",
         "'none', 'minimal', 'low', 'medium', 'high'"),
        (lambda: chat_error({"messages": [USER], "verbosity": "low"}), "verbosity", "'medium'"),
        (lambda: chat_error({"messages": [{"role": "robot", "content": "x"}]}), "messages[0].role",
         "'system', 'developer', 'user', 'assistant', 'tool'"),
        (lambda: chat_error({"messages": [USER | {"content": [{"type": "x"}]}]}), "messages[0].content[0].type",
         "'text', 'refusal'"),
        (lambda: chat_error({"messages": [USER], "response_format": {"type": "xml"}}), "response_format.type",
         "'text', 'json_object', 'json_schema'"),
        (lambda: responses_error({"truncation": "x"}), "truncation", "'auto', 'disabled'"),
        (lambda: responses_error({"text": {"verbosity": "high"}}), "text.verbosity", "'medium'"),
        (lambda: responses_error({"text": {"format": {"type": "x"}}}), "text.format.type",
         "'text', 'json_object', 'json_schema'"),
        (lambda: responses_error({"input": [USER | {"content": [{"type": "x"}]}]}), "input[0].content[0].type",
         "'input_text', 'output_text', 'refusal'"),
        (lambda: responses_error({"input": [{"type": "x"}]}), "input[0].type",
         "'message', 'reasoning', 'function_call', 'function_call_output', 'item_reference'"),
    ],
)  # fmt: skip
def test_a_refused_value_names_those_that_are_allowed(error, param, known):
    refused = error()
    assert refused.param == param and str(refused).endswith(f"; it can be {known}")


@pytest.mark.parametrize(
    ("part", "what"),
    [
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}, "images"),
        ({"image_url": {"url": "x"}, "type": "image_url"}, "images"),
        ({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}, "audio"),
        ({"type": "file", "file": {"file_id": "f"}}, "files"),
        ({"type": "video_url", "video_url": {"url": "x"}}, "videos"),
    ],
)
def test_what_is_no_text_is_refused_by_its_kind(part, what):
    error = chat_error({"messages": [USER, USER | {"content": [{"type": "text", "text": "What is this?"}, part]}]})
    assert (error.param, str(error)) == (
        "messages[1].content[1]",
        f"'messages[1].content[1]': no {what}, this model takes text only",
    )


@pytest.mark.parametrize("kind", ["input_image", "input_file", "input_audio"])
def test_responses_take_text_only(kind):
    where = "input[0].content[0]"
    assert str(responses_error({"input": [USER | {"content": [{"type": kind}]}]})).startswith(f"'{where}': no ")
    output = {"type": "function_call_output", "call_id": "c", "output": [{"type": kind}]}
    assert str(responses_error({"input": [output]})).startswith("'input[0].output[0]': no ")


def in_json(*texts: str) -> bytes:
    messages = ", ".join(f'{{"role": "user", "content": "{text}"}}' for text in texts)
    return f'{{"messages": [{messages}]}}'.encode("utf-8", "surrogatepass")


@pytest.mark.parametrize("half", [r"\ud83d", r"\uDE00", r"\ud83d\u0041", r"\ud83d\ud83d\ude00", "\ud83d"])
def test_half_an_emoji_is_named_with_its_place(half):
    error = chat_error(in_json(r"whole \ud83d\ude00", f"cut {half}"))
    assert error.param == "messages[1].content" and b"messages[1].content" in body_of(error)
    number = "de00" if half == r"\uDE00" else "d83d"
    assert f"'messages[1].content' has half of a character at position 4, the lone surrogate \\u{number}" in str(error)
    assert "emoji" in str(error)


def test_half_an_emoji_elsewhere():
    assert chat_error(b'{"stop": ["a", "\\ud83d"], "messages": []}').param == "stop[1]"
    with pytest.raises(InvalidRequest, match="'prompt' has half of a character"):
        decode(b'{"prompt": "\\ud83d"}', CompletionsBody)
    named = chat_error(b'{"metadata": {"\\ud83d": "x"}, "messages": []}')
    assert named.param == "metadata" and body_of(named)
    assert str(chat_error(b'"\\ud83d"')).startswith("'body' has half of a character")


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b'{"stop": "\xff"}', "the body is not UTF-8: byte 0xff at position 10"),
        (b'{"messages": ', "the body is not JSON: "),
        (b'{"stop": "\\ud83d", ', "the body is not JSON: "),
        (b"[" * 100_000, ""),
        (b'{"messages": 5, "x": ' + b"[" * 100_000, "'messages': expected array, got int"),
        (b'{"stop": "\\ud83d", "x": ' + b"[" * 100_000, "the body is not JSON: "),
    ],
)
def test_what_else_is_no_json(raw, words):
    assert words in str(chat_error(raw))


def test_large_bodies_are_not_read_once_more(monkeypatch):
    monkeypatch.setattr(explain, "MAX_VALUES", 10)
    monkeypatch.setattr(json, "loads", None)
    monkeypatch.setattr(explain.msgspec.json, "decode", None)
    assert explain.loosely(b"[1,1,1,1,1,1,1,1,1,1]") is None
    assert "not JSON" in str(explain.not_json(rb'["\ud83d",1,1,1,1,1,1,1,1,1]', ValueError("x")))


@given(
    body=st.recursive(
        st.none() | st.text(max_size=3) | st.integers(0, 3),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["type", "content", "role"]), inner, max_size=3)
        ),
    )
)
def test_any_json_is_refused_in_words(body):
    assert str(chat_error({"messages": [body]} if body != USER else {}))
