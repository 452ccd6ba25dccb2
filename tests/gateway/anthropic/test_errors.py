"""Errors in Anthropic's envelope wherever they come from, what clients may repeat, and signs of life in silence."""

import time
from contextlib import closing
from dataclasses import replace
from threading import Timer

import httpx
import pytest
from tests.gateway.support.anthropic import CLOCK, USER, folded, post, records
from tests.gateway.support.gateway import reply_ids
from tests.gateway.support.operation import Raw

from eyas.base.errors import Busy, Unavailable
from eyas.base.types import FinishReason, TokenEvent
from eyas.gateway.http import stream
from eyas.gateway.operation.auth import digests
from eyas.gateway.operation.connections import ConnectionLimits

HEAD = b"POST /v1/messages?beta=true HTTP/1.1\r\nHost: localhost\r\n"
COUNT = "/v1/messages/count_tokens"


def check(answer: httpx.Response, status: int, kind: str, words: str) -> None:
    """The answer is Anthropic's envelope with the request's id, and says whether to try again."""
    body = answer.json()
    assert body.keys() == {"type", "error", "request_id"} and body["type"] == "error", body
    assert body["error"].keys() == {"type", "message"}
    assert (answer.status_code, body["error"]["type"]) == (status, kind), body
    assert words in body["error"]["message"]
    assert body["request_id"] == answer.headers["request-id"] == answer.headers["x-request-id"]
    is_final = 400 <= status < 500 and status not in (408, 429)
    assert answer.headers.get("x-should-retry") == ("false" if is_final else None)


@pytest.mark.parametrize("path", ["/v1/messages", COUNT])
def test_what_is_refused_before_a_route(serve, path):
    server = serve(gateway={"max_body": 3000})
    check(httpx.get(f"{server.url}{path}"), 405, "invalid_request_error", f"GET {path}")
    check(post(server, f"{path}/what"), 404, "not_found_error", f"POST {path}/what")
    check(httpx.post(f"{server.url}{path}", data={"a": "b"}), 415, "invalid_request_error", "application/json")
    check(post(server, path, system="x" * 4000), 413, "request_too_large", "larger than")
    parts = (b"x" * 300 for _ in range(30))
    headers = {"content-type": "application/json"}
    check(httpx.post(f"{server.url}{path}", content=parts, headers=headers), 413, "request_too_large", "larger than")
    broken = httpx.post(f"{server.url}{path}", content=b'{"model": "claude"', headers=headers)
    check(broken, 400, "invalid_request_error", "not JSON")
    check(post(server, path, headers={"host": "evil.example"}), 403, "permission_error", "evil.example")
    assert httpx.post(f"{server.url}/v1/messagess", json={}).json()["error"]["type"] == "invalid_request_error"


def test_keys(serve, sdk):
    server = serve(gateway={"key_digests": digests("secret")})
    check(post(server), 401, "authentication_error", "API key")
    check(post(server, headers={"x-api-key": "other"}), 401, "authentication_error", "API key")
    for options in ({"api_key": "secret"}, {"api_key": None, "auth_token": "secret"}):
        with sdk(server, **options) as client:
            assert client.messages.create(model="claude", max_tokens=9, messages=[USER]).role == "assistant"
    for method, path in (("HEAD", "/"), ("HEAD", "/api/hello"), ("GET", "/api/hello")):
        assert httpx.request(method, f"{server.url}{path}").status_code == 200


@pytest.mark.parametrize("name", ["claude-opus-5", "Claude", "anthropic/x", "stub", "claude-stub", "my-CLAUDE-haiku"])
def test_names_of_the_resident_model(server, name):
    assert post(server, model=name).json()["model"] == "stub"
    assert post(server, COUNT, model=name).status_code == 200


@pytest.mark.parametrize("path", ["/v1/messages", COUNT])
def test_names_of_other_models(server, path):
    check(post(server, path, model="gpt-5"), 404, "not_found_error", "'gpt-5' does not exist")
    check(post(server, path, model=None), 400, "invalid_request_error", "model")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("size", [900, 100_000])
def test_a_prompt_that_is_too_long(server, size, stream):
    """Clients read both numbers; the first is exact unless the text is far too long."""
    messages = [{"role": "user", "content": "\u00fc" * size}]
    answer = post(server, messages=messages, stream=stream)
    check(answer, 400, "invalid_request_error", "prompt is too long: ")
    told, _, limit = answer.json()["error"]["message"].removeprefix("prompt is too long: ").partition(" tokens > ")
    count = post(server, COUNT, messages=messages).json()["input_tokens"]
    assert limit == "600 maximum" and (int(told) == count if size < 1000 else 600 < int(told) <= count)


def test_a_prompt_that_fills_the_context_exactly(serve):
    server = serve(context=1000)
    context = post(server, COUNT).json()["input_tokens"]
    server.engine.info = replace(server.engine.info, context=context)
    answer = post(server)
    check(answer, 400, "invalid_request_error", f"prompt is too long: {context + 1} tokens > {context} maximum")


def refuse(error):
    def submit(request, deliver):
        raise error

    return submit


def fail_half_way(codec, finish, error=None, *, num_held=4):
    """A `submit` that delivers all but the end of an answer, and then a failure."""
    ids = tuple(reply_ids(codec)[:-num_held])

    def submit(request, deliver):
        if ids:
            deliver(TokenEvent(request_id=request.request_id, choice=0, token_ids=ids))
        deliver(TokenEvent(request_id=request.request_id, choice=0, token_ids=(), finish=finish, error=error))

    return submit


@pytest.mark.parametrize("is_stream", [False, True])
def test_an_engine_that_is_busy_or_restarting(serve, sdk, is_stream):
    import anthropic

    server = serve()
    server.engine.submit = refuse(Busy("the queue is full"))
    answer = post(server, stream=is_stream)
    check(answer, 429, "rate_limit_error", "queue is full")
    assert answer.headers["retry-after"] == "1"
    server.engine.submit = refuse(Unavailable("the engine is restarting"))
    answer = post(server, stream=is_stream)
    check(answer, 529, "overloaded_error", "restarting")
    assert answer.headers["retry-after"] == "5"
    with sdk(server) as client, pytest.raises(anthropic.APIStatusError, match="restarting"):
        client.messages.create(model="claude", max_tokens=9, messages=[USER], stream=is_stream)
    server.engine.submit = refuse(RuntimeError("secret"))
    check(post(server, stream=is_stream), 500, "api_error", "internal error")


FAILURES = [
    (FinishReason.ERROR, "out of pages", 500, "api_error", "out of pages"),
    (FinishReason.CANCELLED, None, 529, "overloaded_error", "stopping"),
    (FinishReason.INVALID, "no such grammar", 400, "invalid_request_error", "no such grammar"),
]


@pytest.mark.parametrize(("finish", "error", "status", "kind", "words"), FAILURES)
def test_an_engine_that_fails(serve, codec, finish, error, status, kind, words):
    server = serve()
    server.engine.submit = fail_half_way(codec, finish, error)
    check(post(server, tools=[CLOCK], tool_choice={"type": "any"}), status, kind, words)
    answer = post(server, stream=True)
    *events, last = records(answer.text)
    assert answer.status_code == 200 and events[0]["type"] == "message_start"
    assert (last["type"], last["error"]["type"]) == ("error", kind) and words in last["error"]["message"]
    assert last["request_id"] == answer.headers["request-id"]
    server.engine.submit = fail_half_way(codec, finish, error, num_held=len(reply_ids(codec)))
    check(post(server, stream=True), status, kind, words)  # nothing was sent yet: the status says it


def test_an_error_event_is_an_error_of_the_sdk(serve, codec, sdk):
    import anthropic

    server = serve()
    server.engine.submit = fail_half_way(codec, FinishReason.ERROR, "out of pages")
    with (
        sdk(server) as client,
        pytest.raises(anthropic.APIStatusError, match="out of pages"),
        client.messages.stream(model="claude", max_tokens=9, messages=[USER]) as stream,
    ):
        stream.get_final_message()


@pytest.mark.parametrize(
    ("head", "status", "kind"),
    [
        (HEAD + b"Host: b\r\n\r\n", 400, "invalid_request_error"),
        (HEAD + b"X: y\r\n" * 200 + b"\r\n", 431, "invalid_request_error"),
        (HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 501, "api_error"),
        (HEAD + b"Content-Type: application/json\r\nContent-Length: 9\r\n\r\n", 408, "timeout_error"),
    ],
)
def test_a_head_that_is_refused(serve, head, status, kind):
    raw = Raw(serve(limits=ConnectionLimits(receive_s=0.3)))
    with closing(raw.socket):
        found, body = raw.send(head).answer()
    assert (found, body["type"], body["error"]["type"]) == (status, "error", kind) and body["request_id"]


@pytest.fixture
def quick_signs(monkeypatch):
    monkeypatch.setattr(stream, "FIRST_KEEP_ALIVE_S", 0.03)
    monkeypatch.setattr(stream, "KEEP_ALIVE_EVERY_S", 0.06)


def held(server, *, seconds: float) -> None:
    """Let the engine wait before it answers."""
    submit = server.engine.submit

    def late(request, deliver):
        def slowly(event):
            time.sleep(seconds / 2)
            deliver(event)

        submit(request, slowly)

    server.engine.submit = late


def test_pings_in_silence(serve, codec, quick_signs, sdk):
    server = serve(lambda request, choice: reply_ids(codec, content="Hi"), drafts_per_round=20)
    held(server, seconds=0.4)
    events = records(post(server, stream=True).text)
    kinds = [event["type"] for event in events]
    start = kinds.index("message_start")
    assert kinds[:start] == ["ping"] * start and start >= 2 and "ping" in kinds[start:]
    assert folded(events)["content"][-1]["text"] == "Hi"
    with sdk(server) as client, client.messages.stream(model="claude", max_tokens=99, messages=[USER]) as opened:
        assert opened.get_final_text() == "Hi"
    assert "ping" not in post(server).text


def test_an_error_after_a_ping_is_an_event(serve, codec, quick_signs):
    server = serve()
    fail = fail_half_way(codec, FinishReason.CANCELLED, num_held=len(reply_ids(codec)))
    server.engine.submit = lambda request, deliver: Timer(0.3, fail, (request, deliver)).start()
    answer = post(server, stream=True)
    *pings, last = records(answer.text)
    assert answer.status_code == 200 and {event["type"] for event in pings} == {"ping"}
    assert (last["type"], last["error"]["type"]) == ("error", "overloaded_error")
