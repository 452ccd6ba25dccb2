"""Connections to backends that wait for their next request, and new ones."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from eyas.base.serving.connections import KEEP_ALIVE_S
from eyas.router.upstream.connection import Connection
from eyas.router.upstream.errors import UpstreamError

__all__ = ["Origin", "Pool"]

CONNECT_S = 5.0


@dataclass(frozen=True, slots=True)
class Origin:
    """Address at which a backend listens. `prefix` stands before each path."""

    host: str
    port: int
    is_tls: bool
    authority: str = field(compare=False)  # as in the header Host
    prefix: str = field(default="", compare=False)

    @classmethod
    def of(cls, url: str) -> Origin:
        """Return the origin of an http or https URL. Raises ValueError."""
        parts = urlsplit(url)
        if parts.hostname is None:
            raise ValueError(f"no host in '{url}'")
        is_tls = parts.scheme == "https"
        port = parts.port or (443 if is_tls else 80)
        return cls(parts.hostname, port, is_tls, parts.netloc.rpartition("@")[2], parts.path)


class Pool:
    """Hands out connections, the one used last first. All calls are made inside one event loop."""

    def __init__(self) -> None:
        self._idle: dict[Origin, list[Connection]] = {}
        self._used: set[Connection] = set()
        self._tls: ssl.SSLContext | None = None
        self._timer: asyncio.TimerHandle | None = None

    def take(self, origin: Origin) -> Connection | None:
        """Return a connection that waits for a request; None if there is none."""
        if not (idle := self._idle.get(origin)):
            return None
        oldest = asyncio.get_running_loop().time() - KEEP_ALIVE_S
        while idle:
            connection = idle.pop()
            if connection.is_open and connection.idle_since > oldest:
                self._used.add(connection)
                return connection
            connection.abort()
        return None

    async def connect(self, origin: Origin, timeout_s: float | None) -> Connection:
        """Return a new connection. Raises UpstreamError of the kind refused."""
        connection = await self._connect(origin, CONNECT_S if timeout_s is None else min(CONNECT_S, timeout_s))
        self._used.add(connection)
        return connection

    def give_back(self, origin: Origin, connection: Connection) -> None:
        """Keep a connection for the next request if it can be used again, else close it at once."""
        self._used.discard(connection)
        if not connection.is_reusable:
            connection.abort()
            return
        connection.rest()
        self._idle.setdefault(origin, []).append(connection)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(KEEP_ALIVE_S, self._close_old)

    def close(self) -> None:
        """Close all connections."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for connection in [*self._used, *(one for idle in self._idle.values() for one in idle)]:
            connection.abort()
        self._idle.clear()
        self._used.clear()

    async def _connect(self, origin: Origin, timeout_s: float) -> Connection:
        loop = asyncio.get_running_loop()
        if origin.is_tls and self._tls is None:
            self._tls = ssl.create_default_context()
        context = self._tls if origin.is_tls else None
        try:
            async with asyncio.timeout(timeout_s):
                _, connection = await loop.create_connection(
                    lambda: Connection(loop), origin.host, origin.port, ssl=context
                )
        except TimeoutError as error:
            raise UpstreamError("refused", "no connection: it took too long") from error
        except OSError as error:
            raise UpstreamError("refused", f"no connection: {error.strerror or type(error).__name__}") from error
        return connection

    def _close_old(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        oldest = loop.time() - KEEP_ALIVE_S
        for origin, idle in list(self._idle.items()):
            for connection in [one for one in idle if one.idle_since <= oldest or not one.is_open]:
                idle.remove(connection)
                connection.abort()
            if not idle:
                del self._idle[origin]
        if self._idle:
            self._timer = loop.call_later(KEEP_ALIVE_S, self._close_old)
