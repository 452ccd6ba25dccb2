"""Errors of servers as they are worded."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.client.errors import Broken, ClientError, Refused, ServerBusy
from eyas.client.refusals import error_in_stream, error_of, hidden

JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)),
    max_leaves=6,
)


@pytest.mark.parametrize(("body", "message"), [
    (b'{"error": {"message": "no  such\\nmodel", "type": "x"}}', "no such model"),
    (b'{"error": "plain"}', "plain"),
    (b'{"message": "vLLM says"}', "vLLM says"),
    (b'{"detail": "FastAPI says"}', "FastAPI says"),
    (b'{"detail": [{"loc": ["body", "x"]}]}', '{"detail": [{"loc": ["body", "x"]}]}'),
    (b"<html>Bad Gateway</html>", "<html>Bad Gateway</html>"),
    (b"\xff\xfe", "\ufffd\ufffd"),
    (b"", "without a word why"),
])  # fmt: skip
def test_a_server_is_quoted(body, message):
    error = error_of(418, {}, body, "e")
    assert type(error) is Refused and error.message == message and message in str(error)


def test_a_spent_queue_is_no_failure():
    said = {"error": {"message": "waited 9 s", "type": "server_error", "code": "queue_timeout"}}
    error = error_of(504, {}, json.dumps(said).encode(), "e")
    assert type(error) is ServerBusy and error.kind is None and "waited 9 s" in str(error)
    error = error_of(504, {}, b'{"error": {"message": "no backend answered in time", "code": null}}', "e")
    assert type(error) is Refused and error.kind == "status"


@given(st.integers(300, 999), st.binary(max_size=50) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_answer_is_an_error(status, body):
    error = error_of(status, {"retry-after": "3"}, body, "e")
    assert isinstance(error, ClientError) and len(str(error)) < 600
    assert (type(error) is Broken) == (status < 400)
    assert (type(error) is ServerBusy) == (status in (429, 503))
    assert (error.kind is None) == (400 <= status < 500 or getattr(error, "is_loading", False))


@given(JSON)
def test_any_event_with_an_error_is_one(value):
    if value:
        assert isinstance(error_in_stream({"error": value}, "e"), Refused | ServerBusy | Broken)


def test_keys_are_hidden():
    assert hidden(b"key s3cret is wrong", "s3cret") == b"key *** is wrong" and hidden(b"x", None) == b"x"
    key = 'a/b"c\\d'
    for body in (json.dumps({"error": key}), json.dumps({"error": key}).replace("/", "\\/")):
        error = error_of(401, {}, hidden(body.encode(), key), "e")
        assert isinstance(error, Refused) and error.message == "***" and key not in str(error)
