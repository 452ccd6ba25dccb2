"""Trailers are no headers, and offers to change the protocol are as if they were not there."""

import shutil
import subprocess
import time
from contextlib import suppress
from itertools import pairwise

import httptools
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gateway.conftest import stub_server
from tests.gateway.support.operation import GOOD, POST, chunked

from eyas.gateway.operation.auth import digests
from eyas.gateway.operation.connections import ConnectionLimits
from eyas.gateway.operation.parser import RequestParser

H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAAAAMAAAAA\r\n"
WITH_LENGTH = b"Content-Length: %d\r\n\r\n" % len(GOOD) + GOOD
IN_CHUNKS = b"Transfer-Encoding: chunked\r\n\r\n" + chunked(GOOD[:7], GOOD[7:]) + b"0\r\n\r\n"
GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"


class Recorder:
    """Keeps requests as uvicorn's protocol does."""

    def __init__(self):
        self.requests = []

    def on_message_begin(self):
        self.url, self.headers, self.body = b"", [], b""

    def on_url(self, url):
        self.url += url

    def on_header(self, name, value):
        self.headers.append((name.lower(), value))

    def on_headers_complete(self):
        self.head = (self.parser.get_method(), self.parser.get_http_version(), self.parser.should_keep_alive())
        self.head += (self.url, [one for one in self.headers if one[0] != b"upgrade"])

    def on_body(self, body):
        self.body += body

    def on_message_complete(self):
        self.requests.append((*self.head, self.body))

    def parse(self, parser, *parts):
        self.parser = parser
        for part in parts:
            parser.feed_data(part)
        return self.requests


messages = st.lists(
    st.tuples(
        st.sampled_from([b"GET / HTTP/1.1\r\n", b"POST /a?b=c HTTP/1.1\r\nEmpty:\r\n", b"PUT /x HTTP/1.0\r\n"]),
        st.sampled_from([b"", H2C, b"Upgrade: websocket\r\nConnection: upgrade\r\n", b"Upgrade: h2c\r\n"]),
        st.sampled_from([b"\r\n", WITH_LENGTH, IN_CHUNKS, b"Content-Length: 0\r\n\r\n"]),
    ),
    max_size=4,
)


@given(messages, st.lists(st.integers(0, 2000)))
def test_an_offer_changes_nothing_but_itself(requests, cuts):
    """Against httptools given the same requests without the line that makes the offer."""
    lines = [b"Upgrade: h2c\r\n", b"Upgrade: websocket\r\n"]
    plain = [(first, offer.replace(lines[0], b"").replace(lines[1], b""), rest) for first, offer, rest in requests]
    oracle, expected = Recorder(), b"".join(map(b"".join, plain))
    parser = httptools.HttpRequestParser(oracle)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    oracle.parse(parser, expected)
    assert len(oracle.requests) == len(requests) or any(b"HTTP/1.0" in first for first, _, _ in requests)
    sent, ours = b"".join(map(b"".join, requests)), Recorder()
    edges = [0, *sorted(min(cut, len(sent)) for cut in cuts), len(sent)]
    parts = [sent[start:end] for start, end in pairwise(edges)]
    assert ours.parse(RequestParser(ours), *parts) == oracle.requests


@pytest.mark.parametrize("rest", [WITH_LENGTH, IN_CHUNKS], ids=["length", "chunked"])
@pytest.mark.parametrize("step", [1, 7, 100, 10_000])
def test_java_may_offer_http2(connect, server, rest, step):
    one = connect(server)
    for _ in range(2):  # and the connection is kept
        request = POST + H2C + rest
        for start in range(0, len(request), step):
            one.send(request[start : start + step])
        status, body = one.answer()
        assert status == 200 and body["object"] == "chat.completion", body


@pytest.mark.slow
def test_javas_own_client(server, tmp_path):
    if shutil.which("javac") is None:
        pytest.skip("no Java compiler here")
    source = tmp_path / "Ask.java"
    source.write_text(
        """
        import java.net.URI;
        import java.net.http.*;
        public class Ask {
            public static void main(String[] args) throws Exception {
                HttpClient client = HttpClient.newHttpClient();
                for (int i = 0; i < 2; i++) {
                    var body = HttpRequest.BodyPublishers.ofString(args[1]);
                    var ask = HttpRequest.newBuilder(URI.create(args[0])).header("Content-Type", "application/json");
                    var answer = client.send(ask.POST(body).build(), HttpResponse.BodyHandlers.ofString());
                    System.out.println(answer.statusCode());
                }
            }
        }"""
    )
    ask = ["java", "-Xint", str(source), f"{server.url}/v1/chat/completions", GOOD.decode()]
    done = subprocess.run(ask, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["200", "200"], done.stderr


@pytest.mark.parametrize("offer", [H2C, b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n"])
def test_an_offer_without_a_body(connect, server, offer, caplog):
    one = connect(server).send(GET, offer, b"\r\n")
    assert one.answer()[0] == 200 and one.send(GET, b"\r\n").answer()[0] == 200
    assert not caplog.records  # uvicorn would complain


def test_an_offer_does_not_keep_a_connection(connect, server):
    one = connect(server).send(GET, b"Connection: upgrade, close\r\nUpgrade: h2c\r\n\r\n")
    assert one.answer()[0] == 200 and one.socket.recv(1) == b""


def test_a_tunnel_is_refused(connect, server):
    status, body = connect(server).send(b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\n\r\n").answer()
    assert status == 400 and body["error"]["type"] == "invalid_request_error"


def test_a_key_in_a_trailer_is_none(connect, codec):
    trailers = b"Authorization: Bearer k\r\nX-Request-Id: trailer\r\nExpect: 100-continue\r\n"
    with stub_server(codec, None, gateway={"key_digests": digests("k")}) as server:
        one = connect(server).send(POST, IN_CHUNKS.removesuffix(b"\r\n"), trailers, b"\r\n")
        status, body = one.answer()
        assert status == 401, body


def test_trailers_are_dropped(connect, server):
    one = connect(server)
    for _ in range(2):
        one.send(POST, IN_CHUNKS.removesuffix(b"\r\n"), b"X-Request-Id: trailer\r\nExpect: 100-continue\r\n\r\n")
        assert one.answer()[0] == 200 and b"trailer" not in one.head


@pytest.mark.parametrize(
    ("start", "more"),
    [(b"0\r\n", b"a:\r\n" * 25), (b"0\r\na: ", b"x" * 100), (b"1;", b"x" * 100), (b"1\r\n{\r\n0\r\na", b"x" * 100)],
    ids=["trailers", "value", "extension", "name"],
)
@pytest.mark.parametrize("path", [b"/v1/chat/completions", b"/nothing"])
def test_what_is_around_chunks_is_bounded(connect, codec, path, start, more):
    limits = ConnectionLimits(header_bytes=2000)
    with stub_server(codec, None, limits=limits) as server:
        one = connect(server).send(
            b"POST %s HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" % path, start
        )
        with suppress(BrokenPipeError, ConnectionResetError):
            for _ in range(200):
                one.send(more)
                time.sleep(0.001)
            raise AssertionError("20,000 bytes that are no body were taken")
        assert httpx.get(f"{server.url}/health").status_code == 200


def test_a_long_body_in_small_chunks_is_read(connect, codec):
    body = GOOD + b" " * 20_000
    chunks = chunked(*(body[i : i + 50] for i in range(0, len(body), 50)))
    with stub_server(codec, None, limits=ConnectionLimits(header_bytes=500)) as server:
        one = connect(server).send(POST, b"Transfer-Encoding: chunked\r\n\r\n", chunks, b"0\r\n\r\n")
        assert one.answer()[0] == 200
