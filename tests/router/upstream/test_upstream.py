"""Requests to backends: what passes in both directions, and what each kind of failure is called."""

import asyncio
from collections.abc import Sequence

import pytest
from tests.router.support.rawserver import RawServer, chunked, handling, stream_head
from tests.router.support.scripted import free_port

from eyas.router.upstream.address import Address
from eyas.router.upstream.errors import UpstreamError
from eyas.router.upstream.upstream import Upstream

KEY = "sk-of-the-backend"
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
CLIENT_HEADERS = [
    (b"authorization", b"Bearer sk-of-the-client"),
    (b"x-api-key", b"sk-of-the-client"),
    (b"cookie", b"a=sk-of-the-client"),
    (b"proxy-authorization", b"sk-of-the-client"),
    (b"x-forwarded-for", b"10.0.0.1"),
    (b"anthropic-version", b"2023-06-01"),
    (b"x-session-id", b"s1"),
]


async def asked(pieces: Sequence[bytes], *, timeout_s: float | None = None, **server: object):
    """Status, headers and body of an answer to a request with CLIENT_HEADERS, and the head that the server got."""
    async with RawServer(pieces, **server).serving() as raw:
        address = Address(name="a", url=raw.url, key=KEY)
        async with Upstream({"a": address}) as upstream:
            sending = upstream.send("a", "POST", "/v1/x", body=b"{}", headers=CLIENT_HEADERS, timeout_s=timeout_s)
            async with sending as reply:
                return reply.status, reply.headers, await reply.read(), raw.heads[0]


def test_headers_pass_by_a_list_in_both_directions() -> None:
    answer = OK + b"Set-Cookie: a=b\r\nServer: secret\r\nX-Other: 1\r\nRetry-After: 7\r\nContent-Length: 2\r\n\r\n{}"
    status, headers, body, head = asyncio.run(asked([answer]))
    assert (status, body) == (200, b"{}")
    assert sorted(headers) == [(b"content-type", b"application/json"), (b"retry-after", b"7")]
    assert head.startswith(b"POST /v1/x HTTP/1.1\r\n")
    assert b"sk-of-the-client" not in head
    assert b"10.0.0.1" not in head
    assert f"Authorization: Bearer {KEY}".encode() in head
    assert b"anthropic-version: 2023-06-01" in head
    assert b"x-session-id: s1" in head
    assert b"Accept-Encoding: identity" in head


@pytest.mark.parametrize(
    ("pieces", "kind"),
    [
        ([], "broken"),
        ([b"HTTP/1.1 200 OK\r\nContent-Le"], "broken"),
        ([OK + b"Content-Length: 10\r\n\r\n{}"], "broken"),
        ([stream_head() + chunked(b"data: 1\n\n")], "broken"),
        ([b"SSH-2.0-OpenSSH_9.6\r\n\r\n"], "malformed"),
        ([b"HTTP/1.1 307 Elsewhere\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"], "malformed"),
        ([OK + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}"], "malformed"),
        ([OK + b"X-Long: " + 100_000 * b"x" + b"\r\nContent-Length: 2\r\n\r\n{}"], "malformed"),
    ],
)
def test_kinds_of_failures(pieces: list[bytes], kind: str) -> None:
    with pytest.raises(UpstreamError) as caught:
        asyncio.run(asked(pieces))
    assert caught.value.kind == kind
    assert KEY not in str(caught.value)


def test_a_reset_is_broken() -> None:
    with pytest.raises(UpstreamError) as caught:
        asyncio.run(asked([stream_head() + chunked(b"data: 1\n\n")], resets=True, pause_s=0.05))
    assert caught.value.kind == "broken"


def test_time_is_up() -> None:
    with pytest.raises(UpstreamError) as caught:
        asyncio.run(asked([stream_head(), b""], pause_s=0.3, timeout_s=0.1))
    assert caught.value.kind == "budget"


def test_nobody_listens() -> None:
    async def main() -> None:
        address = Address(name="a", url=f"http://127.0.0.1:{free_port()}")
        async with Upstream({"a": address}) as upstream, upstream.send("a", "GET", "/v1/models"):
            pass

    with pytest.raises(UpstreamError) as caught:
        asyncio.run(main())
    assert caught.value.kind == "refused"


def test_a_large_body_arrives() -> None:
    async def main() -> bytes:
        seen = bytearray()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            seen.extend(await reader.readexactly(3 << 20))
            writer.write(OK + b"Content-Length: 2\r\n\r\n{}")
            await writer.drain()

        upstream = Upstream({})
        async with handling(serve) as port, upstream:
            upstream.set_address(Address(name="a", url=f"http://127.0.0.1:{port}"))
            async with upstream.send("a", "POST", "/v1/x", body=b"ab" * (3 << 19)) as reply:
                assert await reply.read() == b"{}"
        return bytes(seen)

    assert asyncio.run(main()) == b"ab" * (3 << 19)


def test_whole_answers_have_a_limit() -> None:
    async def main() -> None:
        async with RawServer([OK + b"Content-Length: 100\r\n\r\n" + 100 * b"x"]).serving() as raw:
            upstream = Upstream({"a": Address(name="a", url=raw.url)})
            async with upstream, upstream.send("a", "GET", "/") as reply:
                await reply.read(limit=99)

    with pytest.raises(UpstreamError, match="more than 99 bytes"):
        asyncio.run(main())


def test_an_address_keeps_its_key_to_itself() -> None:
    assert KEY not in repr(Address(name="a", url="http://127.0.0.1:1", key=KEY))
    with pytest.raises(ValueError, match="without a '/'"):
        Address(name="a", url="http://127.0.0.1:1/")
