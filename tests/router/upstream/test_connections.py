"""Connections are used again when that is safe, and every form of an HTTP answer is read."""

import asyncio
import ssl
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.router.support.rawserver import RawServer, chunked, handling

from eyas.router.upstream import pool as pools
from eyas.router.upstream.address import Address
from eyas.router.upstream.connection import Connection
from eyas.router.upstream.errors import UpstreamError
from eyas.router.upstream.upstream import Upstream

BODY = b"data: one\n\ndata: two\n\n"
FORMS = {
    "length": b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY),
    "chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    + chunked(BODY[:5])
    + chunked(BODY[5:])
    + b"0\r\n\r\n",
    "trailers": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(BODY) + b"0\r\nX-Sum: 1\r\n\r\n",
    "continue": b"HTTP/1.1 100 Continue\r\nX-A: b\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY),
    "close": b"HTTP/1.1 200 OK\r\n\r\n" + BODY,
    "old": b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\n" + BODY,
}


class Transport(asyncio.Transport):
    """A transport that only remembers whether it was aborted."""

    def __init__(self) -> None:
        super().__init__()
        self.is_aborted = False

    def write(self, data: object) -> None:
        pass

    def is_closing(self) -> bool:
        return self.is_aborted

    def abort(self) -> None:
        self.is_aborted = True

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=25)
@given(st.lists(st.integers(0, 200), max_size=8))
def test_an_answer_is_the_same_for_any_segments(form: str, places: list[int]) -> None:
    answer = FORMS[form]
    ends = sorted({min(place, len(answer)) for place in places} | {len(answer)})
    starts = [0, *ends[:-1]]

    async def main() -> tuple[int, bytes, list[tuple[bytes, bytes]], bool]:
        connection = Connection(asyncio.get_running_loop())
        connection.connection_made(Transport())
        connection.ask(b"GET / HTTP/1.1\r\n\r\n", None)
        for start, end in zip(starts, ends, strict=True):
            connection.data_received(answer[start:end])
        reusable = connection.is_reusable
        connection.connection_lost(None)
        await connection.head()
        body = b""
        while chunk := await connection.chunk():
            body += chunk
        return connection.status, body, connection.headers, reusable

    status, body, headers, reusable = asyncio.run(main())
    assert (status, body) == (200, BODY)
    assert b"x-sum" not in dict(headers) and b"link" not in dict(headers)
    assert reusable == (form not in ("close", "old"))


@pytest.mark.parametrize("form", ["length", "chunks"])
def test_more_than_was_asked_for_is_not_taken_for_the_next_answer(form: str) -> None:
    async def main() -> None:
        for parts in ([FORMS[form] * 2], [FORMS[form], FORMS[form]]):
            transport, connection = Transport(), Connection(asyncio.get_running_loop())
            connection.connection_made(transport)
            connection.ask(b"GET / HTTP/1.1\r\n\r\n", None)
            for part in parts:
                connection.data_received(part)
            assert await connection.chunk() in BODY
            assert not connection.is_reusable
            assert transport.is_aborted

    asyncio.run(main())


def test_what_has_come_is_read_before_the_error() -> None:
    async def main() -> None:
        connection = Connection(asyncio.get_running_loop())
        connection.connection_made(Transport())
        connection.ask(b"GET / HTTP/1.1\r\n\r\n", None)
        connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nabc")
        connection.connection_lost(ConnectionResetError())
        await connection.head()
        assert await connection.chunk() == b"abc"
        with pytest.raises(UpstreamError) as caught:
            await connection.chunk()
        assert caught.value.kind == "broken"

    asyncio.run(main())


def test_a_connection_that_has_stopped_reading_is_not_used_again() -> None:
    async def main() -> None:
        connection = Connection(asyncio.get_running_loop())
        connection.connection_made(Transport())
        connection.ask(b"GET / HTTP/1.1\r\n\r\n", None)
        size = 1 << 20
        connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size)
        assert connection.is_complete and not connection.is_reusable
        while await connection.chunk():
            pass
        assert connection.is_reusable

    asyncio.run(main())


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer each request on a connection with the port of its client."""
    port = str(writer.get_extra_info("peername")[1]).encode()
    while True:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(port), port))
        await writer.drain()


def at(port: int, origin: str = "http://127.0.0.1") -> Upstream:
    return Upstream({"a": Address(name="a", url=f"{origin}:{port}")})


async def port_of(upstream: Upstream, *, reads: bool = True) -> bytes:
    async with upstream.send("a", "GET", "/") as reply:
        return await reply.read() if reads else b""


def test_connections_are_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with handling(serve) as port, at(port) as upstream:
            first = await port_of(upstream)
            assert await port_of(upstream) == first
            both = await asyncio.gather(port_of(upstream), port_of(upstream))
            assert first in both
            assert len(set(both)) == 2
            monkeypatch.setattr(pools, "KEEP_ALIVE_S", 0.0)  # all are too old now
            assert await port_of(upstream) not in both

    asyncio.run(main())


def test_a_connection_that_the_backend_has_closed_is_not_used() -> None:
    async def main() -> None:
        server = RawServer([FORMS["length"]])
        upstream = Upstream({})
        async with server.serving() as raw, upstream:
            upstream.set_address(Address(name="a", url=raw.url))
            for _ in range(3):
                assert await port_of(upstream) == BODY
                await asyncio.sleep(0.02)
            assert len(raw.heads) == 3

    asyncio.run(main())


def test_a_fast_backend_waits_for_a_slow_reader() -> None:
    size, written = 64 << 20, 0

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        while written < size:
            writer.write(b"x" * (1 << 20))
            await writer.drain()
            written += 1 << 20

    async def main() -> None:
        async with handling(pour) as port, at(port) as upstream, upstream.send("a", "GET", "/") as reply:
            await asyncio.sleep(0.3)
            assert written < size // 2
            assert len(await reply.read(size)) == size

    asyncio.run(main())


def test_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    more = ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    try:
        subprocess.run([*command, *more], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no openssl")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)

    async def main() -> None:
        async with handling(serve, tls=context) as port:
            async with at(port, "https://localhost") as upstream:
                with pytest.raises(UpstreamError) as caught:
                    await port_of(upstream)
                assert caught.value.kind == "refused"  # nobody vouches for this certificate
            monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
            async with at(port, "https://localhost") as upstream:
                assert await port_of(upstream) == await port_of(upstream)

    asyncio.run(main())
