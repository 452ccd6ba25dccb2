"""Limits of bodies, headers, time and connections, against a real server with raw sockets."""

import json
import time
from contextlib import suppress

import httpx
import pytest
from tests.gateway.conftest import stub_server
from tests.gateway.support.gateway import eventually, reply_ids
from tests.gateway.support.operation import GOOD, POST, Raw, chunked

from eyas.gateway.operation.connections import ConnectionLimits

MAX_BODY = 4096
LIMITS = ConnectionLimits(connections=8, headers=20, header_bytes=2000, receive_s=0.6, idle_s=0.6, stalled_s=0.4)


@pytest.fixture(scope="module")
def small(codec):
    with stub_server(codec, None, gateway={"max_body": MAX_BODY}, limits=LIMITS) as server:
        yield server


@pytest.fixture
def raw(small):
    opened = []
    yield lambda: opened.append(Raw(small)) or opened[-1]
    for one in opened:
        one.socket.close()
    assert eventually(lambda: httpx.get(f"{small.url}/health").status_code == 200)


def test_a_long_body_is_refused_before_it_comes(raw):
    status, body = raw().send(POST, b"Content-Length: %d\r\n\r\n" % (MAX_BODY + 1)).answer()
    assert status == 413 and body["error"]["code"] == "body_too_large" and "4.0 KiB" in body["error"]["message"]


def test_a_body_without_a_length_is_refused_once_it_is_too_long(raw):
    one = raw().send(POST, b"Transfer-Encoding: chunked\r\n\r\n", chunked(b'{"messages": "' + b"x" * MAX_BODY))
    status, body = one.answer()
    assert status == 413 and body["error"]["code"] == "body_too_large" and "4.0 KiB" in body["error"]["message"]
    assert body["error"]["type"] == "invalid_request_error" and eventually(one.is_closed)


def test_a_body_of_just_the_limit_is_read(small):
    body = GOOD + b" " * (MAX_BODY - len(GOOD))
    headers = {"content-type": "application/json"}
    assert httpx.post(f"{small.url}/v1/chat/completions", content=body, headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [b"a: b\r\n" * 21, b"a: " + b"x" * 2001 + b"\r\n", b"a" * 3000 + b": b\r\n", b"a: " + b"x" * 300_000 + b"\r\n"],
    ids=["many", "long value", "long name", "very long"],
)
def test_too_many_headers(raw, headers):
    status, body = raw().send(POST, headers, b"Content-Length: 2\r\n\r\n{}").answer()
    assert status == 431 and "20 headers" in body["error"]["message"]


def test_headers_that_never_end(raw):
    one = raw().send(b"GET / HTTP/1.1\r\na: ")
    with suppress(BrokenPipeError, ConnectionResetError):
        for _ in range(200):
            one.send(b"x" * 100)
            time.sleep(0.001)
        raise AssertionError("20,000 bytes of one header were taken")


def test_a_long_address(raw):
    assert raw().send(b"GET /" + b"a" * 2500 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n").answer()[0] == 431


@pytest.mark.parametrize(
    "request_line",
    [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET / HTTP/9.9\r\n\r\n", b"GET /\xff HTTP/1.1\r\n\r\n",
     b"CONNECT a:1 HTTP/1.1\r\n\r\n", b"NONSENSE / HTTP/1.1\r\n\r\n",
     b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
     b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
     b"POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
     b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"],
)  # fmt: skip
def test_what_is_not_http(raw, request_line, caplog):
    status, body = raw().send(request_line).answer()
    assert status in (400, 404, 405) and body["error"]["type"] == "invalid_request_error"
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize(
    "sent", [b"", b"GET /hea", POST + b"Content-Length: 100\r\n\r\n{"], ids=["nothing", "line", "body"]
)
def test_a_request_that_does_not_become_complete(raw, sent, caplog):
    one = raw().send(sent)
    start = time.monotonic()
    status, body = one.answer()
    assert status == 408 and "0.6 s" in body["error"]["message"] and time.monotonic() - start < 5
    assert not [record for record in caplog.records if record.exc_info]


def test_what_the_app_never_sees_is_counted_too(small, raw):
    def count():
        lines = httpx.get(f"{small.url}/metrics").text.splitlines()
        return [float(line.split()[1]) for line in lines if "eyas:http_errors_total" in line and 'status="431"' in line]

    before = count() or [0.0]
    assert raw().send(b"GET /" + b"a" * 2500 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n").answer()[0] == 431
    assert count() == [before[0] + 1]


def test_trickling_does_not_buy_time(raw):
    one = raw().send(POST, b"Content-Length: 100000\r\n\r\n")
    num_sent = 0
    with suppress(BrokenPipeError, ConnectionResetError):
        while not one.is_closed() and num_sent < 500:
            one.send(b" ")
            num_sent += 1
            time.sleep(0.01)
    assert num_sent < 400


def test_an_idle_connection_is_closed_and_a_used_one_is_not(raw):
    one = raw()
    for _ in range(8):
        one.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert one.answer()[0] == 200
        time.sleep(0.1)
    assert eventually(one.is_closed)


def test_an_answer_may_take_longer_than_a_request(codec):
    with stub_server(codec, None, limits=LIMITS, round_s=0.1) as server:
        assert len(list(server.chat("Hi", stream=True))) > 6


def test_slow_senders_do_not_keep_others_out(small, raw):
    httpx.get(f"{small.url}/health")
    slow = [raw().send(POST, b"Content-Length: 100\r\n\r\n" if i % 2 else b"") for i in range(8)]
    answers = [httpx.get(f"{small.url}/health") for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200] * 4
    assert slow[0].answer()[0] == 408


def test_running_answers_are_not_given_up_for_new_connections(codec):
    ask = POST + b"Content-Length: %d\r\n\r\n" % len(GOOD) + GOOD
    with stub_server(codec, None, limits=LIMITS, round_s=0.1) as server:
        running = [Raw(server).send(ask) for _ in range(8)]
        assert eventually(lambda: server.engine.stats().num_running == 8)
        late = Raw(server)
        assert late.answer()[0] == 503
        assert [one.answer()[0] for one in running] == [200] * 8
        for one in (*running, late):
            one.socket.close()


def test_a_reader_that_takes_nothing_is_given_up(codec):
    wordy = {"stream": True, "n": 16, "logprobs": True, "top_logprobs": 20}
    body = json.dumps({"messages": [{"role": "user", "content": "Hi"}]} | wordy).encode()
    endless = reply_ids(codec, content="Hello there, user. " * 500)
    with stub_server(codec, lambda request, choice: endless, limits=LIMITS) as server:
        # Four times, 4 MB each: more than the kernel keeps for a reader.
        one = Raw(server).send(*(POST, b"Content-Length: %d\r\n\r\n" % len(body), body) * 4)
        assert eventually(lambda: "eyas:requests_total{" in httpx.get(f"{server.url}/metrics").text)
        num_bytes = 0
        with suppress(ConnectionResetError):
            while part := one.socket.recv(1 << 20):
                num_bytes += len(part)
        assert num_bytes < 12 << 20
        one.socket.close()


def test_a_body_cut_off(raw, small, caplog):
    for cut in (POST + b"Content-Length: 100\r\n\r\n{", POST + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{"):
        one = raw().send(cut)
        one.socket.close()
    assert httpx.get(f"{small.url}/health").status_code == 200
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("given", ["abc-1.2_3:4", "x" * 128])
def test_a_request_keeps_its_id(small, given):
    assert httpx.get(f"{small.url}/health", headers={"x-request-id": given}).headers["x-request-id"] == given


@pytest.mark.parametrize("given", ["a b", "x" * 129, "<script>", "\u00e4".encode("latin-1"), ""])
def test_other_ids_are_replaced(small, given):
    answer = httpx.get(f"{small.url}/health", headers={"x-request-id": given})
    assert len(answer.headers["x-request-id"]) == 32
