"""The prompt of a request: the user's newest text, in all four dialects and whatever else a body holds."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.router.routes.prompts import MAX_PROMPT, bounded, prompt_of

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
WORDS = ["messages", "input", "prompt", "role", "content", "text", "type", "user"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=3),
    max_leaves=12,
)


def unread(body):
    """The body as the relay has it: the values of its fields are bytes."""
    return msgspec.json.decode(msgspec.json.encode(body), type=dict[str, msgspec.Raw])


def user(content):
    return {"role": "user", "content": content}


REMINDER = {"type": "text", "text": "<system-reminder>\nToday's date is a secret.\n</system-reminder>"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "of the tool"}]}
BODIES = [
    (CHAT, {"messages": [user("first"), {"role": "assistant", "content": "yes"}, user("second")]}, "second"),
    (CHAT, {"messages": [user("ask"), {"role": "assistant"}, {"role": "tool", "content": "result"}]}, "ask"),
    (
        CHAT,
        {"messages": [user([{"type": "text", "text": "what is"}, IMAGE, {"type": "text", "text": "this"}])]},
        "what is\nthis",
    ),
    (CHAT, {"messages": [user("before"), user([IMAGE])]}, "before"),
    (CHAT, {"messages": [{"role": "system", "content": "rules"}]}, ""),
    (MESSAGES, {"system": "rules", "messages": [user("ask"), user([RESULT])]}, "ask"),
    (MESSAGES, {"messages": [user([REMINDER, {"type": "text", "text": "fix it"}])]}, "fix it"),
    (MESSAGES, {"messages": [user("ask"), user([RESULT, REMINDER])]}, "ask"),
    (RESPONSES, {"instructions": "rules", "input": "plain"}, "plain"),
    (RESPONSES, {"input": [user([{"type": "input_text", "text": "typed"}])]}, "typed"),
    (RESPONSES, {"input": [user("ask"), {"type": "function_call_output", "call_id": "c", "output": "8"}]}, "ask"),
    ("/v1/completions", {"prompt": "once upon"}, "once upon"),
    ("/v1/completions", {"prompt": ["one", "two"]}, "one"),
    ("/v1/completions", {"prompt": [1, 2, 3]}, ""),
    ("/v1/embeddings", {"input": "text"}, ""),
    (CHAT, {}, ""),
    (CHAT, {"messages": {"role": "user"}}, ""),
    (CHAT, {"messages": [None, 3, {"role": 4}]}, ""),
]


@pytest.mark.parametrize(("path", "body", "prompt"), BODIES)
def test_newest_text_of_the_user(path, body, prompt):
    assert prompt_of(path, body) == prompt
    assert prompt_of(path, unread(body)) == prompt


@given(st.sampled_from([CHAT, MESSAGES, RESPONSES, "/v1/completions"]), st.dictionaries(st.sampled_from(WORDS), JSON))
def test_no_body_is_an_error_and_read_or_unread_makes_no_difference(path, body):
    assert prompt_of(path, body) == prompt_of(path, unread(body))


def test_unread_values_may_be_broken():
    assert prompt_of(CHAT, {"messages": msgspec.Raw(b'[{"role": "user", "content": ')}) == ""
    assert prompt_of(RESPONSES, {"input": msgspec.Raw(b'"\\ud8"')}) == ""
    assert prompt_of(CHAT, {"messages": msgspec.Raw(b'[{"role": "user", "content": "\xff"}]')}) == ""


@given(st.text(), st.integers(3, 40))
def test_bounded_keeps_both_ends(text, limit):
    short = bounded(text, limit)
    assert len(short) <= limit
    if len(text) <= limit:
        assert short == text
    else:
        head, _, tail = short[: limit * 2 // 3], short[limit * 2 // 3], short[limit * 2 // 3 + 1 :]
        assert text.startswith(head)
        assert text.endswith(tail)
        assert len(short) == limit


def test_a_prompt_is_bounded():
    assert len(prompt_of(CHAT, {"messages": [user("a" * 9_000_000)]})) == MAX_PROMPT
