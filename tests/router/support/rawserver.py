"""A server that answers each request with the same bytes, cut as the test says: what no HTTP library would write."""

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress

__all__ = ["RawServer", "chunked", "handling", "stream_head"]

LINGER_0 = struct.pack("ii", 1, 0)  # close() resets the connection


def stream_head(*headers: str) -> bytes:
    """The head of an event stream in chunks."""
    lines = ["HTTP/1.1 200 OK", "Content-Type: text/event-stream", "Transfer-Encoding: chunked", *headers]
    return "\r\n".join([*lines, "", ""]).encode()


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data) if data else b""


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def handling(handler: Handler, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Let `handler` have each connection, and yield the port; at the end all connections are waited for."""
    tasks: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await handler(reader, writer)
        writer.close()
        with suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=tls)
    async with server:
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            await asyncio.gather(*tasks)


class RawServer:
    """`answer` is written piece by piece, with `pause_s` between them; then the connection is closed, or reset."""

    def __init__(self, answer: Sequence[bytes], *, pause_s: float = 0.0, resets: bool = False) -> None:
        self.answer = answer
        self.pause_s = pause_s
        self.resets = resets
        self.heads: list[bytes] = []
        self.url = ""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["RawServer"]:
        async with handling(self._serve) as port:
            self.url = f"http://127.0.0.1:{port}"
            yield self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        length = next((line.split(b":")[1] for line in head.lower().split(b"\r\n") if b"length:" in line), b"0")
        await reader.readexactly(int(length))
        for piece in self.answer:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(self.pause_s)
        if self.resets:
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_0)
