"""What a route sets: each dialect's fields, the client's own before them, all else as it was."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.router.routes.fields import added, fields_of
from eyas.router.settings.schema import RouteSettings

CHAT, COMPLETIONS, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
ROUTE = RouteSettings(name="MATH", effort="high", max_tokens=100)

CASES = [
    (CHAT, {}, {"reasoning_effort": "high", "max_tokens": 100}),
    (CHAT, {"reasoning_effort": "low"}, {"max_tokens": 100}),
    (CHAT, {"max_tokens": 7}, {"reasoning_effort": "high"}),
    (CHAT, {"max_completion_tokens": 7}, {"reasoning_effort": "high"}),
    (CHAT, {"max_tokens": None, "reasoning_effort": None}, {"reasoning_effort": "high", "max_tokens": 100}),
    (CHAT, {"chat_template_kwargs": {"reasoning_effort": "low"}}, {"max_tokens": 100}),
    (CHAT, {"chat_template_kwargs": {"x": 1}, "max_tokens": 1}, {"reasoning_effort": "high"}),
    (COMPLETIONS, {}, {"max_tokens": 100}),
    (COMPLETIONS, {"max_tokens": 0}, {}),
    (RESPONSES, {}, {"reasoning": {"effort": "high"}, "max_output_tokens": 100}),
    (RESPONSES, {"reasoning": {"effort": "low"}, "max_output_tokens": 5}, {}),
    (
        RESPONSES,
        {"reasoning": {"summary": "auto"}, "max_output_tokens": 5},
        {"reasoning": {"summary": "auto", "effort": "high"}},
    ),
    (RESPONSES, {"reasoning": {}, "max_output_tokens": 5}, {"reasoning": {"effort": "high"}}),
    (RESPONSES, {"reasoning": {"effort": None}, "max_output_tokens": 5}, {"reasoning": {"effort": "high"}}),
    (RESPONSES, {"reasoning": "much", "max_output_tokens": 5}, {}),
    (MESSAGES, {"max_tokens": 32000}, {"output_config": {"effort": "high"}}),
    (MESSAGES, {"max_tokens": 1, "output_config": {"effort": "max"}}, {}),
    ("/v1/embeddings", {}, {}),
]


def unread(body):
    return msgspec.json.decode(msgspec.json.encode(body), type=dict[str, msgspec.Raw])


@pytest.mark.parametrize(("path", "body", "new"), CASES)
def test_the_clients_own_fields_win(path, body, new):
    assert added(ROUTE, path, body) == new
    assert msgspec.json.decode(msgspec.json.encode(added(ROUTE, path, unread(body)))) == new


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES, MESSAGES, "/v1/embeddings"])
def test_a_body_without_fields_gets_all_of_them(path):
    assert added(ROUTE, path, {}) == fields_of(ROUTE, path)


@given(
    st.sampled_from([CHAT, COMPLETIONS, RESPONSES, MESSAGES]),
    st.dictionaries(
        st.sampled_from(["max_tokens", "max_output_tokens", "reasoning_effort", "reasoning", "output_config", "seed"]),
        st.none() | st.integers(0, 9) | st.dictionaries(st.sampled_from(["effort", "summary"]), st.text(max_size=3)),
    ),
)
def test_nothing_of_the_clients_is_lost_and_a_second_time_adds_nothing(path, body):
    filled = body | added(ROUTE, path, body)
    for name, value in body.items():
        if isinstance(value, dict):
            assert value.items() <= filled[name].items()
        elif value is not None:
            assert filled[name] == value
    assert added(ROUTE, path, filled) == {}


def test_of_a_nested_object_what_was_not_read_stays_to_the_byte():
    body = unread({"reasoning": {}}) | {"reasoning": msgspec.Raw(b'{"summary": "a\\u0075to" , "x":1.50}')}
    assert b'"summary":"a\\u0075to","x":1.50' in msgspec.json.encode(added(ROUTE, RESPONSES, body))
