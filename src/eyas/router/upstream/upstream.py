"""Sends requests to backends: one pool of connections, no redirects, no cookies, nothing decompressed."""

from __future__ import annotations

import io
from collections.abc import AsyncGenerator, Iterable, Mapping
from types import TracebackType

import aiohttp

from eyas.router.upstream.address import Address
from eyas.router.upstream.errors import UpstreamError
from eyas.router.upstream.headers import Headers, for_backend, for_client

__all__ = ["MAX_WHOLE", "Reply", "Sending", "Upstream"]

MAX_WHOLE = 64 << 20  # bytes of an answer that is read as a whole
CONNECT_S = 5.0
KEEP_ALIVE_S = 3.0  # less than servers keep an idle connection (uvicorn and llama-server: 5), so that we close it first
HEADER_BYTES = 32 << 10
LARGE = 1 << 20  # a body of more bytes is written piece by piece
WITHOUT_LIMIT = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S)


class Reply:
    """An answer whose head has come. Its body is read once, by `chunk`, `chunks` or `read`."""

    __slots__ = ("_content", "_response", "headers", "media_type", "retry_after_s", "status")

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self._content = response.content
        self.status = response.status
        self.headers: Headers = for_client(response.raw_headers)
        self.media_type = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        self.retry_after_s = _seconds(response.headers.get("Retry-After"))

    async def chunk(self) -> bytes:
        """Return the bytes that have come, or those that come next; none at the end. Raises UpstreamError."""
        try:
            return await self._content.readany()
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _error_of(error) from error

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
    """A request on its way: `async with` yields its Reply. What has not been read when it ends, is never sent.

    Entering raises UpstreamError: refused if there is no connection, broken if it ends before an answer, malformed for
    what is no HTTP, redirects and compressed bodies, budget after `timeout_s`.
    """

    __slots__ = ("_address", "_body", "_headers", "_method", "_response", "_session", "_timeout_s", "_url")

    def __init__(
        self,
        session: aiohttp.ClientSession,
        address: Address,
        method: str,
        url: str,
        body: bytes | None,
        headers: Iterable[tuple[bytes, bytes]],
        timeout_s: float | None,
    ) -> None:
        self._session, self._address = session, address
        self._method, self._url, self._body, self._headers = method, url, body, headers
        self._timeout_s = timeout_s
        self._response: aiohttp.ClientResponse | None = None

    async def __aenter__(self) -> Reply:
        headers = for_backend(self._address, self._headers)
        body: bytes | io.BytesIO | None = self._body
        if body is not None:
            headers["Content-Type"] = "application/json"
            if len(self._body or b"") > LARGE:
                body = io.BytesIO(self._body or b"")
        timeout = WITHOUT_LIMIT
        if self._timeout_s is not None:
            timeout = aiohttp.ClientTimeout(total=self._timeout_s, sock_connect=min(CONNECT_S, self._timeout_s))
        try:
            self._response = await self._session.request(
                self._method, self._url, data=body, headers=headers, allow_redirects=False, timeout=timeout
            )
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _error_of(error) from error
        self._body = None  # it may be large, and the answer long
        problem = _problem_of(self._response)
        if problem is not None:
            self._close()
            raise UpstreamError("malformed", problem)
        return Reply(self._response)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        """Give the connection back if the answer was read to its end, else close it at once: the backend notices."""
        if self._response is None:
            return
        if (connection := self._response.connection) is not None and (transport := connection.transport) is not None:
            transport.abort()
        self._response.close()
        self._response = None


class Upstream:
    """Connections to the backends of `addresses`, inside one event loop, from `start` to `close`."""

    def __init__(self, addresses: Mapping[str, Address]) -> None:
        self._addresses = dict(addresses)
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Make the session; does nothing if there is one."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                timeout=WITHOUT_LIMIT,
                max_line_size=HEADER_BYTES,
                max_field_size=HEADER_BYTES,
            )

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

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
    ) -> Sending:
        """Return a request to `backend`, to be entered. `path` begins with a slash.

        `headers` are the client's: what a backend may see of them is sent. `timeout_s` is for all of the answer.
        """
        if self._session is None:
            raise RuntimeError("the connections to backends are not started")
        address = self._addresses[backend]
        return Sending(self._session, address, method, address.url + path, body, headers, timeout_s)


def _error_of(error: Exception) -> UpstreamError:
    """Return what an error of the HTTP client says of the backend; its own words may quote what was sent."""
    match error:
        case aiohttp.ConnectionTimeoutError() | aiohttp.ClientConnectorError() | aiohttp.ServerFingerprintMismatch():
            reason = getattr(error, "strerror", None) or "it took too long"
            return UpstreamError("refused", f"no connection: {reason}")
        case TimeoutError():
            return UpstreamError("budget", "no answer in time")
        case aiohttp.ClientConnectionError() | aiohttp.ClientPayloadError() | OSError():
            return UpstreamError("broken", "the connection ended before the answer")
    return UpstreamError("malformed", "its answer is not HTTP")


def _problem_of(response: aiohttp.ClientResponse) -> str | None:
    if 300 <= response.status < 400:
        return f"it answered with a redirect ({response.status})"
    if not 200 <= response.status < 600:
        return f"it answered with the status {response.status}"
    coding = response.headers.get("Content-Encoding", "identity").lower()
    return None if coding == "identity" else "its answer is compressed, which was not asked for"


def _seconds(text: str | None) -> float | None:
    """Return the seconds of a Retry-After header; dates are rare and not read."""
    if text is None or not text.isascii() or not text.isdigit():
        return None
    return float(text[:9])
