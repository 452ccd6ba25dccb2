"""Heads that two servers could read in two ways, or that name no host, are refused before anything else."""

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gateway.support.operation import GOOD, POST, chunked

from eyas.gateway.operation.head import fault_of, host_and_port, with_target_host

CHUNKS = chunked(GOOD) + b"0\r\n\r\n"


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (b"Transfer-Encoding: gzip, chunked", 501),
        (b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked", 501),
        (b"Transfer-Encoding: gzip, deflate , CHUNKED", 501),
        (b"Transfer-Encoding: gzip", 400),
        (b"Transfer-Encoding: identity", 400),
        (b"Transfer-Encoding: chunked, gzip", 400),
        (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: gzip", 400),
        (b"Transfer-Encoding: chunked, chunked", 400),
        (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", 400),
        (b"Transfer-Encoding: ,chunked", 400),
        (b"Transfer-Encoding:", 400),
        (b"Transfer-Encoding: xchunked", 400),
        (b"Transfer-Encoding: chunked;q=1", 400),
        (b"Transfer-Encoding: chunked\r\nContent-Length: 5", 400),
        (b"Content-Length: 5\r\nTransfer-Encoding: chunked", 400),
        (b"Content-Length: 5\r\nContent-Length: 5", 400),
    ],
    ids=lambda value: repr(value),
)
def test_only_chunked_is_known(connect, server, lines, status):
    before = server.engine.stats().num_generated_tokens
    one = connect(server).send(POST, lines, b"\r\n\r\n", CHUNKS)
    assert one.answer()[0] == status and b"connection: close" in one.head and one.socket.recv(1) == b""
    assert server.engine.stats().num_generated_tokens == before


def test_http_1_0_has_no_chunks(connect, server):
    one = connect(server).send(POST.replace(b"HTTP/1.1", b"HTTP/1.0"), b"Transfer-Encoding: chunked\r\n\r\n", CHUNKS)
    assert one.answer()[0] == 400


@pytest.mark.parametrize("value", [b"chunked", b" CHUNKED"])
def test_chunks_are_read(connect, server, value):
    assert connect(server).send(POST, b"Transfer-Encoding:", value, b"\r\n\r\n", CHUNKS).answer()[0] == 200


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health HTTP/1.1\r\n",
        b"GET http://localhost/health HTTP/1.1\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n",
        b"GET /health HTTP/1.0\r\nHost: localhost\r\nHost: evil.example\r\n",
        b"GET http://me@localhost/health HTTP/1.1\r\nHost: localhost\r\n",
        *(
            b"GET /health HTTP/1.1\r\nHost: %s\r\n" % host
            for host in (
                b"",
                b":8000",
                b".",
                b"a b",
                b"me@localhost",
                b"localhost/",
                b"localhost:8000:1",
                b"::1",
                b"[]",
            )
        ),
        *(b"GET /health HTTP/1.1\r\nHost: %s\r\n" % host for host in (b"[::1", b"localhost:x", b"a,b", b"h\xc3\xa9")),
    ],
    ids=lambda head: head.decode("latin-1").partition(" ")[2],
)
def test_one_host_is_wanted_and_well_formed(connect, server, head):
    one = connect(server).send(head, b"\r\n")
    status, body = one.answer()
    assert status == 400 and body["error"]["type"] == "invalid_request_error", body
    assert "ost" in body["error"]["message"] and one.socket.recv(1) == b""


def test_before_http_1_1_a_host_is_not_wanted(connect, server):
    assert connect(server).send(b"GET /health HTTP/1.0\r\n\r\n").answer()[0] == 200  # HAProxy's health check


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Localhost:8000", ("localhost", "8000")),
        ("box.example.", ("box.example", "")),
        ("my_service:", ("my_service", "")),
        ("[::1]:80", ("::1", "80")),
        ("127.0.0.1", ("127.0.0.1", "")),
        ("[a]b", None),
        ("a:123456", None),
    ],
)
def test_host_and_port(text, expected):
    assert host_and_port(text) == expected


headers = st.lists(
    st.tuples(
        st.sampled_from([b"host", b"transfer-encoding", b"content-length", b"accept"]),
        st.sampled_from([b"localhost", b"a:1", b"chunked", b"gzip, chunked", b"gzip", b"5", b"", b"a b", b"[::1]:1"]),
    ),
    max_size=5,
)


@given(st.sampled_from(["1.0", "1.1"]), headers)
def test_what_is_taken_h11_takes_too(version, lines):
    if fault_of(version, b"/", lines) is not None:
        return
    coding = [value for name, value in lines if name == b"transfer-encoding"]
    assert coding in ([], [b"chunked"]) and len([1 for name, _ in lines if name == b"host"]) <= 1
    text = b"".join(b"%s: %s\r\n" % line for line in lines if line[0] != b"content-length")
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(b"POST / HTTP/%s\r\n%s\r\n" % (version.encode(), text))
    assert isinstance(connection.next_event(), h11.Request)


def test_the_target_has_the_last_word_on_the_host():
    lines = [(b"accept", b"*/*"), (b"host", b"localhost")]
    assert with_target_host(b"/a?b=http://c", lines) == lines == with_target_host(b"*", lines)
    assert sorted(with_target_host(b"HTTP://evil.example:1?x", lines)) == [lines[0], (b"host", b"evil.example:1")]
