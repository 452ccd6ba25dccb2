"""Sends requests to backends: one pool of connections, no redirects, no cookies, nothing decompressed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from types import TracebackType

from eyas.base.serving.retry_after import retry_after_s
from eyas.router.upstream.address import Address
from eyas.router.upstream.connection import Connection
from eyas.router.upstream.errors import UpstreamError
from eyas.router.upstream.headers import Headers, for_client, request_head
from eyas.router.upstream.pool import Origin, Pool

__all__ = ["MAX_WHOLE", "Reply", "Sending", "Upstream"]

MAX_WHOLE = 64 << 20  # bytes of an answer that is read as a whole


class Reply:
    """An answer whose head has come. Its body is read once, by `chunk`, `chunks` or `read`."""

    __slots__ = ("chunk", "headers", "media_type", "status")

    def __init__(self, connection: Connection) -> None:
        self.chunk = connection.chunk  # returns the next bytes of the body, none at its end; raises UpstreamError
        self.status = connection.status
        self.headers: Headers = for_client(connection.headers)
        kind = dict(self.headers).get(b"content-type", b"")
        self.media_type = kind.partition(b";")[0].strip().lower().decode("latin-1")

    @property
    def retry_after_s(self) -> float | None:
        """Seconds until it wants the next request; None if it names none."""
        return retry_after_s({name.decode("latin-1"): value.decode("latin-1") for name, value in self.headers})

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the body as it comes. Raises UpstreamError."""
        while chunk := await self.chunk():
            yield chunk

    async def read(self, limit: int = MAX_WHOLE) -> bytes:
        """Return the whole body. Raises UpstreamError, also for more than `limit` bytes."""
        parts, size = [], 0
        while chunk := await self.chunk():
            size += len(chunk)
            if size > limit:
                raise UpstreamError("malformed", f"its answer has more than {limit} bytes")
            parts.append(chunk)
        return b"".join(parts)


class Sending:
    """A request on its way: `async with` yields its Reply. An answer that is left before its end is ended at once.

    Entering raises UpstreamError: refused if there is no connection, broken if it ends before an answer, malformed for
    what is no HTTP, redirects and compressed bodies, budget after `timeout_s`.
    """

    __slots__ = ("_body", "_connection", "_head", "_on_wait", "_origin", "_pool", "_timeout_s", "_timer")

    def __init__(
        self,
        pool: Pool,
        origin: Origin,
        head: bytes,
        body: bytes | None,
        timeout_s: float | None,
        on_wait: Callable[[], None] | None,
    ) -> None:
        self._pool, self._origin, self._head, self._body = pool, origin, head, body
        self._timeout_s, self._on_wait = timeout_s, on_wait
        self._timer: asyncio.TimerHandle | None = None
        self._connection: Connection | None = None

    async def __aenter__(self) -> Reply:
        connection = self._pool.take(self._origin)
        if connection is None:
            self._waits()
            connection = await self._pool.connect(self._origin, self._timeout_s)
        self._connection = connection
        try:
            if self._timeout_s is not None:
                late = UpstreamError("budget", f"no answer within {self._timeout_s} s")
                self._timer = asyncio.get_running_loop().call_later(self._timeout_s, connection.fail, late)
            connection.ask(self._head, self._body)
            self._body = None  # it may be large, and the answer long
            self._waits()
            await connection.head()
            _check(connection)
        except BaseException:
            self._close()
            raise
        return Reply(connection)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close()

    def _waits(self) -> None:
        if self._on_wait is not None:
            on_wait, self._on_wait = self._on_wait, None
            on_wait()

    def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._connection is not None:
            self._pool.give_back(self._origin, self._connection)
            self._connection = None


class Upstream:
    """Connections to the backends of `addresses`, inside one event loop, from `start` to `close`."""

    def __init__(self, addresses: Mapping[str, Address]) -> None:
        self._addresses: dict[str, Address] = {}
        self._origins: dict[str, Origin] = {}
        for address in addresses.values():
            self.set_address(address)
        self._pool: Pool | None = None

    async def start(self) -> None:
        """Take requests from here on."""
        if self._pool is None:
            self._pool = Pool()

    async def close(self) -> None:
        """Close all connections."""
        if self._pool is not None:
            pool, self._pool = self._pool, None
            pool.close()
            await asyncio.sleep(0)  # their transports are closed in the loop's next round

    async def __aenter__(self) -> Upstream:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def address(self, backend: str) -> Address:
        """Return the address of a backend. Raises KeyError."""
        return self._addresses[backend]

    def set_address(self, address: Address) -> None:
        """Add a backend, or change where it is; requests on their way go on."""
        self._origins[address.name] = Origin.of(address.url)
        self._addresses[address.name] = address

    def send(
        self,
        backend: str,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        headers: Iterable[tuple[bytes, bytes]] = (),
        timeout_s: float | None = None,
        on_wait: Callable[[], None] | None = None,
    ) -> Sending:
        """Return a request to `backend`, to be entered. `path` begins with a slash, and is sent as it is.

        `headers` are the client's: what a backend may see of them is sent. `timeout_s` is for all of the answer.
        `on_wait` is called before the first wait: what need not be done before the request is on its way.
        """
        if self._pool is None:
            raise RuntimeError("the connections to backends are not started")
        address, origin = self._addresses[backend], self._origins[backend]
        size = None if body is None else len(body)
        head = request_head(address, origin.authority, method, origin.prefix + path, headers, size)
        return Sending(self._pool, origin, head, body, timeout_s, on_wait)


def _check(connection: Connection) -> None:
    """Raises UpstreamError for an answer that cannot be passed on."""
    status = connection.status
    if 300 <= status < 400:
        raise UpstreamError("malformed", f"it answered with a redirect ({status})")
    if status >= 600:
        raise UpstreamError("malformed", f"it answered with the status {status}")
    coding = dict(connection.headers).get(b"content-encoding", b"identity")
    if coding.strip().lower() != b"identity":
        raise UpstreamError("malformed", "its answer is compressed, which was not asked for")
