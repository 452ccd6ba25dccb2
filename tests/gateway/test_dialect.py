"""A dialect takes one registration: whatever refuses or fails a request on its paths says so in its words."""

import json
import logging
from contextlib import closing

import httpx
import jsonschema_rs
import pytest
from tests.gateway.operation.test_openapi import ask_and_check
from tests.gateway.support.gateway import CONTENT, eventually, reply_ids
from tests.gateway.support.operation import Raw
from tests.gateway.support.toy import ID_HEADER, PATH, TOY

from eyas.base.errors import Busy
from eyas.base.types import FinishReason, TokenEvent
from eyas.gateway.app import DIALECTS
from eyas.gateway.operation.auth import digests
from eyas.gateway.operation.connections import ConnectionLimits
from eyas.gateway.server.dialect import Dialect, Dialects

CHAT = "/v1/chat/completions"
HEAD = b"POST /toy/ask?beta=true HTTP/1.1\r\n"


@pytest.fixture
def toy(serve):
    """Start a server with the dialect; options as of `serve`."""
    return lambda reply=None, **options: serve(reply, dialects=(*DIALECTS, TOY), **options)


def post(server, *, path=PATH, headers=None, **fields):
    return httpx.post(f"{server.url}{path}", json={"question": "Hi"} | fields, headers=headers, timeout=20)


def events(answer) -> list[tuple[str, dict]]:
    """Name and data of each event."""
    found = []
    for block in answer.text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


def check(answer, status, kind, words, field=None):
    """The answer is the toy's own error, which nothing of OpenAI's is in, with the request's id in it."""
    problem = answer.json()["problem"]
    assert answer.json().keys() == {"problem"} and (answer.status_code, problem["kind"]) == (status, kind)
    assert words in problem["what"] and problem["field"] == field
    assert problem["ticket"] == answer.headers[ID_HEADER] == answer.headers["x-request-id"]
    assert answer.headers.get("toy-again") == ("no" if status < 500 else None)


def fail_half_way(codec, finish, error=None):
    """A `submit` that delivers all but the end of an answer, and then a failure."""
    ids = tuple(reply_ids(codec)[:-4])

    def submit(request, deliver):
        deliver(TokenEvent(request_id=request.request_id, choice=0, token_ids=ids))
        deliver(TokenEvent(request_id=request.request_id, choice=0, token_ids=(), finish=finish, error=error))

    return submit


def test_it_answers_whole_and_in_events_of_its_own(toy):
    server = toy()
    assert post(server).json() == {"text": CONTENT}
    *said, end = events(post(server, stream=True))
    assert {name for name, _ in said} == {"said"} and "".join(data["text"] for _, data in said) == CONTENT
    assert end == ("end", {})


def test_a_missing_key(toy):
    server = toy(gateway={"key_digests": digests("secret")})
    answer = post(server)
    check(answer, 401, "who", "API key")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert post(server, headers={"x-api-key": "secret"}).status_code == 200
    assert post(server, path=CHAT).json()["error"]["code"] == "invalid_api_key"


def test_another_host(toy):
    check(post(toy(), headers={"host": "evil.example"}), 403, "where", "evil.example")


def test_a_full_queue(toy):
    server = toy()

    def submit(request, deliver):
        raise Busy("the queue is full; try again later")

    server.engine.submit = submit
    answer = post(server, stream=True)
    check(answer, 429, "later", "queue is full")
    assert answer.headers["retry-after"] == "1"


def test_a_body_that_is_too_large(toy):
    server = toy(gateway={"max_body": 1000})
    check(post(server, question="x" * 2000), 413, "much", "larger than")
    parts = (b"x" * 300 for _ in range(10))
    headers = {"content-type": "application/json"}
    check(httpx.post(f"{server.url}{PATH}", content=parts, headers=headers), 413, "much", "larger than")


@pytest.mark.parametrize(
    ("fields", "status", "kind", "words", "field"),
    [
        ({"model": "gpt-5"}, 404, "none", "'gpt-5' does not exist", "model"),
        ({"questoin": "x"}, 400, "yours", "did you mean 'question'?", "questoin"),
        ({"question": 5}, 400, "yours", "expected str", "question"),
        ({"question": "\ud83d"}, 400, "yours", "half of a character", "question"),
        ({"limit": -1}, 400, "yours", "max_tokens", "max_tokens"),
        ({"question": "x" * 700}, 400, "yours", "too long: ", "question"),
        ({"question": "x" * 100_000}, 400, "yours", "> 600", "question"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_is_refused(toy, fields, status, kind, words, field, stream):
    body = json.dumps({"question": "Hi", "stream": stream} | fields)
    answer = httpx.post(f"{toy().url}{PATH}", content=body, headers={"content-type": "application/json"})
    check(answer, status, kind, words, field)


def test_an_unknown_path_method_and_kind_of_body(toy):
    server = toy()
    check(post(server, path="/toy/what"), 404, "none", "POST /toy/what")
    check(httpx.get(f"{server.url}{PATH}"), 405, "yours", f"GET {PATH}")
    check(httpx.post(f"{server.url}{PATH}", data={"a": "b"}), 415, "yours", "application/json")
    for path in ("/toys", "/v1/toy", "/nothing", "/health/toy"):
        assert post(server, path=path).json()["error"]["type"] == "invalid_request_error"


def test_an_engine_that_is_dead_fails_or_stops(toy, codec):
    server = toy()
    server.engine.failure = "the engine died"
    answer = post(server)
    check(answer, 599, "later", "the engine died")
    assert answer.headers["retry-after"] == "5"
    server.engine.submit = fail_half_way(codec, FinishReason.ERROR, "out of pages")
    check(post(server), 500, "ours", "out of pages")
    server.engine.submit = fail_half_way(codec, FinishReason.CANCELLED)
    check(post(server), 599, "later", "stopping")
    server.engine.submit = fail_half_way(codec, FinishReason.INVALID, "no such grammar")
    check(post(server), 400, "yours", "no such grammar")


@pytest.mark.parametrize(
    ("finish", "kind", "words"),
    [(FinishReason.ERROR, "ours", "out of pages"), (FinishReason.CANCELLED, "later", "stopping")],
)
def test_a_failure_within_a_stream_is_its_last_event(toy, codec, finish, kind, words):
    server = toy()
    server.engine.submit = fail_half_way(codec, finish, "out of pages")
    answer = post(server, stream=True)
    *said, (name, data) = events(answer)
    assert answer.status_code == 200 and said and {one for one, _ in said} == {"said"}
    assert (name, data["problem"]["kind"]) == ("problem", kind) and words in data["problem"]["what"]
    assert data["problem"]["ticket"] == answer.headers[ID_HEADER]


def test_a_bug_of_ours(toy):
    server = toy()

    def submit(request, deliver):
        raise RuntimeError("secret")

    server.engine.submit = submit
    check(post(server), 500, "ours", "internal error")


def answer_to(server, head: bytes) -> tuple[int, dict, dict]:
    """Return status, body and headers."""
    raw = Raw(server)
    with closing(raw.socket):
        status, body = raw.send(head).answer()
        return status, body, dict(line.split(": ", 1) for line in raw.head.decode().split("\r\n")[1:])


@pytest.mark.parametrize(
    ("head", "status", "kind"),
    [
        (HEAD + b"Host: a\r\nHost: b\r\n\r\n", 400, "yours"),
        (HEAD + b"Host: localhost\r\n" + b"X: y\r\n" * 200 + b"\r\n", 431, "yours"),
        (HEAD + b"Host: localhost\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501, "ours"),
        (HEAD + b"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n", 408, "yours"),
        (HEAD.replace(b"/toy", b"http://localhost/toy"), 408, "yours"),
    ],
)
def test_a_head_that_is_refused_before_any_route(toy, head, status, kind):
    server = toy(limits=ConnectionLimits(receive_s=0.3))
    found, body, answered = answer_to(server, head)
    assert found == status and body["problem"]["kind"] == kind and body["problem"]["what"]
    assert body["problem"]["ticket"] and answered[ID_HEADER] == answered["x-request-id"] == body["problem"]["ticket"]
    assert answered.get("toy-again") == ("no" if status < 500 else None)
    found, body, answered = answer_to(server, head.replace(b"/toy/ask", CHAT.encode()))
    assert found == status and body["error"]["message"] and "toy-again" not in answered and answered["x-request-id"]


def test_its_operations_are_described(toy):
    server = toy()
    description = httpx.get(f"{server.url}/openapi.json").json()
    described = description["paths"][PATH]["post"]
    schemas = description["components"]["schemas"]
    assert described["requestBody"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/ToyBody"}
    assert schemas["ToyBody"]["required"] == ["question"]
    assert "599" in described["responses"] and "503" not in described["responses"]
    error = described["responses"]["429"]["content"]["application/json"]["schema"]
    assert error == {"$ref": "#/components/schemas/toy.Error"}
    assert jsonschema_rs.is_valid(schemas["toy.Error"], post(server, model="x").json())
    assert not jsonschema_rs.is_valid(schemas["toy.Error"], post(server, path=CHAT).json())
    plain = httpx.get(f"{toy().url}/openapi.json").json()["paths"]
    assert plain.keys() - {PATH} == description["paths"].keys() - {PATH}
    ask_and_check(server, description, "post", PATH, num=20)


def test_metrics_and_log_know_its_route(toy, caplog):
    caplog.set_level(logging.INFO)
    server = toy()
    assert post(server).status_code == 200
    lines = [record.fields for record in caplog.records if record.message == "request"]
    assert [(line["route"], line["status"]) for line in lines] == [(PATH, 200)]
    assert eventually(lambda: f'route="{PATH}"' in httpx.get(f"{server.url}/metrics").text)


def named(name: str, *paths: str) -> Dialect:
    return Dialect(name=name, paths=paths, routes=lambda _: [], errors=TOY.errors, error_schema={}, operations=())


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/chat/completions", "first"),
        ("/v1/messages", "second"),
        ("/v1/messages/count_tokens", "second"),
        ("/v1/messagess", "first"),
        ("/v1", "first"),
        ("/other", "first"),
        ("/third/x", "third"),
        ("", "first"),
    ],
)
def test_a_path_belongs_to_the_dialect_with_the_longest_prefix(path, name):
    dialects = Dialects([named("first", "/v1"), named("second", "/v1/messages"), named("third", "/third")])
    assert dialects.of(path).name == name
