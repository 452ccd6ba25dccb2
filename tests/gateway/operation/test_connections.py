"""Several requests on one connection: answers in turn, none in another's place, and a client that leaves."""

import http.client
import json
import socket
import time

import httpx
import pytest
from tests.gateway.conftest import stub_server
from tests.gateway.support.gateway import CONTENT, eventually, reply_ids
from tests.gateway.support.operation import GOOD, POST

from eyas.gateway.operation.connections import ConnectionLimits

GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
GARBAGE = b"GET / HTTP/9.9\r\n\r\n"


def ask(*, padding: int = 0, **fields) -> bytes:
    body = json.dumps(json.loads(GOOD) | fields).encode() + b" " * padding
    return POST + b"Content-Length: %d\r\n\r\n" % len(body) + body


def rest_of(one) -> bytes:
    """All that comes until the server closes."""
    data = b""
    try:
        while part := one.socket.recv(1 << 16):
            data += part
    except ConnectionResetError:
        pass
    return data


@pytest.fixture(scope="module")
def slow(codec):
    """Answers of at least 20 s."""
    reply = reply_ids(codec, content="Hello there, user. " * 40)
    limits = ConnectionLimits(pipelined=3, receive_s=0.3, probe_s=0.1)
    with stub_server(codec, lambda request, choice: reply, limits=limits, round_s=0.2) as server:
        yield server


def is_idle(server) -> bool:
    return eventually(lambda: server.engine.stats().num_running == 0)


def is_running(server, number: int = 1) -> bool:
    return eventually(lambda: server.engine.stats().num_running == number)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "ahead",
    [b"", GET, GET * 2, GET + ask() + GET[:9], POST + b"Content-Length: 10\r\n\r\n{", ask()],
    ids=["nothing", "one", "two", "part of a head", "part of a body", "a chat"],
)
def test_who_asks_ahead_and_leaves_is_noticed(connect, slow, stream, ahead, caplog):
    one = connect(slow).send(ask(stream=stream))
    assert is_running(slow)
    one.send(ahead)
    time.sleep(0.05)
    one.socket.close()
    assert is_idle(slow)
    assert httpx.get(f"{slow.url}/health").status_code == 200 and is_idle(slow)  # what was asked ahead does not start
    assert not [record for record in caplog.records if record.exc_info or record.levelname == "ERROR"]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("ahead", [b"", GET], ids=["alone", "queued"])
def test_a_refusal_is_not_written_into_the_answer_to_another(connect, slow, stream, ahead):
    one = connect(slow).send(ask(stream=stream))
    assert is_running(slow) and (not stream or one.socket.recv(15) == b"HTTP/1.1 200 OK")
    one.send(ahead)
    time.sleep(0.05)
    one.send(GARBAGE)
    rest = rest_of(one)
    assert b"HTTP/1.1" not in rest and is_idle(slow)


def test_a_refusal_does_not_follow_an_answer_to_the_same_request(connect, slow):
    one = connect(slow).send(
        b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"
    )
    assert one.answer()[0] == 404
    assert rest_of(one.send(b"zz\r\n")) == b""


def test_what_comes_late_waits_for_the_answer_in_front(connect, codec):
    reply = reply_ids(codec, content="Hello there, user. " * 2)
    limits = ConnectionLimits(receive_s=0.2)
    with stub_server(codec, lambda request, choice: reply, limits=limits, round_s=0.05) as server:
        one = connect(server).send(ask(), GET[:9])
        data = rest_of(one)
        assert data.startswith(b"HTTP/1.1 200 ") and data.count(b"HTTP/1.1 408 ") == 1
        assert data.index(b"chat.completion") < data.index(b"HTTP/1.1 408 ")


def test_no_more_than_some_may_be_asked_ahead(connect, slow):
    assert rest_of(connect(slow).send(ask(), GET * 4)) == b"" and is_idle(slow)
    one = connect(slow).send(
        ask(max_tokens=1), GET * 2, GET.replace(b"Host: localhost", b"Host: localhost\r\nConnection: close")
    )
    assert rest_of(one).count(b"HTTP/1.1 200 ") == 4


def test_a_queued_body_is_read_whole(connect, slow):
    long = ask(max_tokens=1, padding=500_000).replace(b"Host: localhost", b"Host: localhost\r\nConnection: close")
    data = rest_of(connect(slow).send(ask(max_tokens=1), long))
    assert data.count(b"HTTP/1.1 200 ") == 2, data


def test_pipelined_requests_are_answered_in_turn(connect, slow):
    last = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    data = rest_of(connect(slow).send(GET, last))
    assert data.index(b'{"status":"ok"}') < data.index(b'"object":"list"') and data.count(b"HTTP/1.1 200 ") == 2


CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@pytest.fixture(scope="module")
def medium(codec):
    """Answers of about half a second."""
    with stub_server(codec, None, limits=ConnectionLimits(probe_s=0.1), round_s=0.02) as server:
        yield server


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "ahead",
    [b"", GET, ask() + GET[:9], GET + POST + b"Content-Length: 10\r\n\r\n{"],
    ids=["nothing", "one", "a chat and part of a head", "one and part of a body"],
)
def test_a_client_that_half_closes_gets_the_whole_answer(connect, medium, stream, ahead, caplog):
    one = connect(medium).send(ask(stream=stream), ahead)
    one.socket.shutdown(socket.SHUT_WR)
    data = rest_of(one)
    assert data.count(b"HTTP/1.1 200 OK") == 1 + ahead.count(b" HTTP/1.1\r\n") - ahead.endswith(b"{"), data
    assert data.count(CONTINUE) <= 1 and b"HTTP/1.1 4" not in data
    first = data.removeprefix(CONTINUE).partition(b"HTTP/1.1 200 OK")[2].partition(b"HTTP/1.1 ")[0]
    assert (b"data: [DONE]" in first) is stream and is_idle(medium)
    if not stream:
        assert (
            json.loads(first[first.index(b"{") : first.rindex(b"}") + 1])["choices"][0]["message"]["content"] == CONTENT
        )
    assert not [record for record in caplog.records if record.levelname != "INFO"]


def test_an_interim_response_is_skipped_by_clients(medium):
    connection = http.client.HTTPConnection(httpx.URL(medium.url).netloc.decode(), timeout=10)
    connection.request("POST", "/v1/chat/completions", GOOD, {"Content-Type": "application/json"})
    connection.sock.shutdown(socket.SHUT_WR)
    answer = connection.getresponse()
    assert answer.status == 200 and json.loads(answer.read())["choices"][0]["message"]["content"] == CONTENT
    connection.close()


def test_an_answer_that_comes_soon_has_no_interim_response_in_front(connect, server):
    one = connect(server).send(ask())
    one.socket.shutdown(socket.SHUT_WR)
    assert rest_of(one).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_half_closes_and_leaves_is_noticed(connect, slow, stream):
    one = connect(slow).send(ask(stream=stream))
    assert is_running(slow)
    one.socket.shutdown(socket.SHUT_WR)
    one.socket.close()
    assert is_idle(slow)


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_a_client_that_half_closes_within_a_request_has_left(connect, slow, version):
    one = connect(slow).send(POST.replace(b"1.1", version), b"Content-Length: 10\r\n\r\n{")
    one.socket.shutdown(socket.SHUT_WR)
    assert rest_of(one) == b""


def test_a_client_of_http_1_0_that_half_closes_has_left(connect, slow):
    one = connect(slow).send(ask().replace(b"HTTP/1.1", b"HTTP/1.0"))
    assert is_running(slow)
    one.socket.shutdown(socket.SHUT_WR)
    assert rest_of(one) == b"" and is_idle(slow)
