"""One OpenAI endpoint: its address, key and breaker, the connections to it, and how it is asked."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import SplitResult, urlsplit
from weakref import WeakSet

import aiohttp

from eyas.base.errors import UserError
from eyas.base.serving.breaker import Breaker, Ticket
from eyas.base.serving.connections import KEEP_ALIVE_S
from eyas.base.serving.failures import BREAKING
from eyas.client.errors import Broken, CircuitOpen, ClientError, Refused
from eyas.client.refusals import error_of, hidden

__all__ = ["ENDED", "Server"]

ENDED = "the connection ended before the answer"
CONNECT_S = 10.0
PROBE_S = 1.0  # when to look again whether the one request that an open breaker let in has closed it
MAX_ERROR = 1 << 20  # bytes of an error's body
MAX_WHOLE = 64 << 20  # bytes of an answer that is read as a whole


class Server:
    """An endpoint. Connections are opened at the first request, and closed by `close`; a later request opens others.

    They belong to the event loop of that request. `takes_usage`: it has not refused to be asked for usage.
    """

    def __init__(self, base_url: str, *, key: str | None, name: str | None, breaker: Breaker | None) -> None:
        url = base_url.rstrip("/")
        parts = _parts_of(url)
        if parts is None:
            shown = base_url.rpartition("@")[2].partition("?")[0]
            raise UserError(f"base_url must be http://HOST:PORT or https://HOST, with /v1 or without, not '{shown}'")
        if key and parts.username is not None:
            raise UserError("base_url has a user, and there is an api_key: a request can carry one of them")
        if key and not (key.isascii() and key.isprintable()):
            raise UserError("api_key has characters that no header may have: copy it again, without line ends")
        self.url = url if parts.path.strip("/") else f"{url}/v1"
        self.key = key or None
        self._address = parts.netloc.rpartition("@")[2]  # without a password
        self.name = name or self._address
        self.breaker = Breaker() if breaker is None else breaker
        self.takes_usage = True
        self.first_model: str | None = None
        self.num_closed = 0  # times that `close` was called
        self._loop: asyncio.AbstractEventLoop | None = None
        self._session: aiohttp.ClientSession | None = None
        self._responses: WeakSet[aiohttp.ClientResponse] = WeakSet()

    def enter(self) -> Ticket:
        """Let a request in. Raises CircuitOpen."""
        now = asyncio.get_running_loop().time()
        ticket = self.breaker.enter(now)
        if ticket is None:
            until = self.breaker.open_until
            wait_s = PROBE_S if until is None else max(0.0, until - now)
            raise CircuitOpen(wait_s, failures=self.breaker.failures, endpoint=self.name)
        return ticket

    def settle(self, ticket: Ticket, error: BaseException | None) -> None:
        """Count how a request went: a whole answer, or what ended it."""
        if error is None or (isinstance(error, Refused) and error.kind is None):
            self.breaker.succeeded(ticket)
        elif isinstance(error, ClientError) and error.kind in BREAKING:
            self.breaker.failed(ticket, asyncio.get_running_loop().time())
        else:
            self.breaker.give_back(ticket)

    async def send(self, method: str, path: str, body: bytes | None, *, until: float) -> aiohttp.ClientResponse:
        """Send a request and return its answer, one of success, once its head has come.

        `until` is a time of the loop. Raises TimeoutError then, and ClientError for every other answer.
        """
        async with _until(until):
            with self.errors():
                response = await self._opened().request(
                    method, self.url + path, data=body, headers=self._headers(body), allow_redirects=False
                )
                if 200 <= response.status < 300:
                    self._responses.add(response)
                    return response
                try:
                    said = await _read(response, MAX_ERROR)
                except (aiohttp.ClientError, OSError, ValueError):
                    said = b""
                finally:
                    response.close()
                raise error_of(response.status, response.headers, hidden(said, self.key), self.name)

    async def whole(self, method: str, path: str, body: bytes | None, *, until: float) -> bytes:
        """Return the whole body of an answer. Raises as `send` does."""
        return await self.rest(await self.send(method, path, body, until=until), until=until)

    async def rest(self, response: aiohttp.ClientResponse, *, until: float) -> bytes:
        """Return the whole body of an answer whose head has come. Raises as `send` does."""
        try:
            async with _until(until):
                with self.errors():
                    return await _read(response, MAX_WHOLE)
        except ValueError:
            what = f"its answer has more than {MAX_WHOLE} bytes"
            raise Broken(what, kind="malformed", endpoint=self.name) from None
        finally:
            response.close()

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Raise errors of connections as those of the client."""
        try:
            yield
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            what = f"no connection to {self._address} ({_reason(error)})"
            raise Broken(what, kind="refused", endpoint=self.name) from None
        except (aiohttp.ClientResponseError, aiohttp.InvalidURL):
            raise Broken("its answer is not HTTP", kind="malformed", endpoint=self.name) from None
        except (aiohttp.ClientError, OSError) as error:
            if isinstance(error, ClientError):
                raise
            raise Broken(ENDED, kind="broken", endpoint=self.name) from None

    async def close(self) -> None:
        """Close all connections, and end what is being answered."""
        self.num_closed += 1
        session, self._session = self._of_this_loop(), None
        if session is not None:
            for response in self._responses:  # aiohttp does not wake a reader
                response.content.set_exception(aiohttp.ClientConnectionError())
            await session.close()
            await asyncio.sleep(0)  # their transports are closed in the loop's next round

    def _opened(self) -> aiohttp.ClientSession:
        if self._of_this_loop() is None:
            self._loop = asyncio.get_running_loop()
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(sock_connect=CONNECT_S),
            )
        assert self._session is not None
        return self._session

    def _of_this_loop(self) -> aiohttp.ClientSession | None:
        """Return the connections, unless their loop is over. Raises UserError if it is another one that runs."""
        if self._loop is None or self._loop is asyncio.get_running_loop():
            return self._session
        if self._session is not None:
            if not self._loop.is_closed():
                raise UserError(f"the client of {self.name} is used in two event loops at once: make one for each")
            self._session.detach()  # nothing of it can be closed any more
            self._session = None
        return None

    def _headers(self, body: bytes | None) -> dict[str, str]:
        headers = {"Accept-Encoding": "identity"}
        if self.key is not None:
            headers["Authorization"] = f"Bearer {self.key}"
        if body is not None:
            headers["Content-Type"] = "application/json"
        return headers


def _parts_of(url: str) -> SplitResult | None:
    """Return the parts of an address; None if it is none, or has more than a path."""
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").encode("idna")
        is_whole = parts.port != 0 and bool(host) and not parts.query and not parts.fragment
    except ValueError:  # a UnicodeError is one
        return None
    return parts if is_whole and parts.scheme in ("http", "https") else None


def _until(until: float) -> asyncio.Timeout:
    return asyncio.timeout_at(None if until == math.inf else until)


def _reason(error: aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError) -> str:
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return f"none in {CONNECT_S:g} s"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return "its certificate is not trusted"
    number = error.os_error.errno
    return os.strerror(number) if number is not None and number > 0 else str(error.os_error.strerror or "unknown")


async def _read(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """Return the rest of a body. Raises ValueError if it has more than `limit` bytes."""
    parts, size = [], 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > limit:
            raise ValueError
        parts.append(part)
    return b"".join(parts)
