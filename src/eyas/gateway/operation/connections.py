"""What one connection may take: bytes of headers, time to send a request and to read an answer; and how many there are.

A thin layer over uvicorn's HTTP protocol, which bounds none of these. Who sends slowly only ever holds a connection,
and when there are no more, those that are still sending or idle go first: they cannot keep others out.
"""

from __future__ import annotations

import asyncio
import resource
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from eyas.gateway.errors import envelope

__all__ = ["ON_REFUSED", "ConnectionLimits", "GuardedProtocol", "guarded", "uvicorn_options"]

ON_REFUSED = "on_refused"  # in the state that the app's lifespan gives: hears the status of each refusal
OTHER_FILES = 128  # descriptors that are not connections: libraries, logs, the engine's socket


@dataclass(frozen=True, kw_only=True, slots=True)
class ConnectionLimits:
    """`receive_s` is for a whole request, headers and body; `stalled_s` for a reader that takes nothing."""

    connections: int = 2048
    headers: int = 100
    header_bytes: int = 32 << 10  # request line and headers; one read may bring more before it is refused
    receive_s: float = 60.0
    idle_s: float = 60.0  # between requests; longer than clients keep a connection, so that they close it
    stalled_s: float = 120.0


class GuardedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with `limits`. What breaks them gets OpenAI's error envelope and loses its connection."""

    limits: ClassVar[ConnectionLimits] = ConnectionLimits()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._refusal: tuple[int, str] | None = None
        self._num_read = 0  # bytes since the message began, while its headers are incomplete
        self._in_headers = True
        self._is_sending = True  # no request of this connection is complete and unanswered
        self._since = self.loop.time()
        self._receive_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        if len(self.connections) > self.limits.connections and not self._make_room():
            self._refuse(503, "this server has as many connections as it takes; try again later")
            return
        self._start_receiving()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_receiving()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self._in_headers:
            self._num_read += len(data)
            if self._num_read > self.limits.header_bytes and not self.transport.is_closing():
                self._refuse(431, self._too_many_headers())

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._num_read, self._in_headers = 0, True
        if self._receive_timer is None:
            self._start_receiving()

    def on_headers_complete(self) -> None:
        self._in_headers = False
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if len(self.headers) > self.limits.headers or size > self.limits.header_bytes:
            self._refusal = (431, self._too_many_headers())
            raise ValueError  # the parser stops, and `send_400_response` is called
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._stop_receiving()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.pipeline:
            self._is_sending = True
            self._since = self.loop.time()

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn for whatever the parser refuses."""
        self._refuse(*(self._refusal or (400, "this is not an HTTP/1.1 request")))

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall_timer = self.loop.call_later(self.limits.stalled_s, self.transport.abort)

    def resume_writing(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        super().resume_writing()

    def _start_receiving(self) -> None:
        self._receive_timer = self.loop.call_later(self.limits.receive_s, self._receive_late)

    def _stop_receiving(self) -> None:
        self._is_sending = False
        if self._receive_timer is not None:
            self._receive_timer.cancel()
            self._receive_timer = None

    def _receive_late(self) -> None:
        if self.pipeline:  # we do not read on before the request in front of it is answered
            self._start_receiving()
            return
        self._receive_timer = None
        self._refuse(408, f"the request was not complete after {self.limits.receive_s:g} s")

    def _make_room(self) -> bool:
        """Close the connection that has been sending or idle for longest, if there is one."""
        waiting = [one for one in self.connections if isinstance(one, GuardedProtocol) and one._is_sending]
        victim = min((one for one in waiting if one is not self), key=lambda one: one._since, default=None)
        if victim is None:
            return False
        self.connections.discard(victim)
        victim._refuse(408, "the connection was closed in favour of others: it was the one waited for longest")
        return True

    def _too_many_headers(self) -> str:
        return f"a request may have {self.limits.headers} headers of {self.limits.header_bytes} bytes in all"

    def _refuse(self, status: int, message: str) -> None:
        """Answer without asking the application, if nothing of an answer was sent yet, and close."""
        if ON_REFUSED in self.app_state:
            self.app_state[ON_REFUSED](status)
        is_idle = self.cycle is None or self.cycle.response_complete
        if is_idle or not self.cycle.response_started:
            kind = "server_error" if status >= 500 else "invalid_request_error"
            body = envelope(message, kind)
            head = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", "content-type: application/json"]
            head += [f"content-length: {len(body)}", "connection: close"] + ["retry-after: 1"] * (status == 503)
            self.transport.write("\r\n".join([*head, "", ""]).encode() + body)
        self.transport.close()


def guarded(limits: ConnectionLimits) -> type[GuardedProtocol]:
    """The protocol with other limits than the usual ones."""
    return type("GuardedProtocol", (GuardedProtocol,), {"limits": limits})


def uvicorn_options(limits: ConnectionLimits | None = None) -> dict[str, Any]:
    """Keyword arguments for `uvicorn.Config` that make these limits hold. Raises the process's limit of open files."""
    limits = limits or ConnectionLimits()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.connections + OTHER_FILES
    if soft < wanted:
        soft = min(wanted, hard) if hard != resource.RLIM_INFINITY else wanted
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    room = max(soft - OTHER_FILES, 1)
    return {
        "http": guarded(replace(limits, connections=min(limits.connections, room))),
        "ws": "none",
        "timeout_keep_alive": limits.idle_s,
        "access_log": False,
        "proxy_headers": False,
        "log_config": None,
        "server_header": False,
    }
