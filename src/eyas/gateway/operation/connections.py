"""Limits of connections: bytes of headers, time to send a request and to read an answer, and the number of connections.

This is a thin layer over uvicorn's HTTP protocol, which bounds none of these. A slow client only occupies a connection,
and when there are no more, those that are still sending or idle are closed first: they cannot keep others out.
"""

from __future__ import annotations

import asyncio
import resource
import select
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from eyas.gateway.http.errors import Failure
from eyas.gateway.http.stream import PROBE
from eyas.gateway.operation.head import fault_of, path_of, with_target_host
from eyas.gateway.operation.parser import RequestParser

__all__ = ["ON_REFUSED", "REFUSAL", "ConnectionLimits", "GuardedProtocol", "guarded", "uvicorn_options"]

ON_REFUSED = "on_refused"  # key in the lifespan state: a function that receives the status of each refusal
REFUSAL = "refusal"  # key in the lifespan state: returns status, headers and body, from the path and the failure
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
PHRASES = {int(status): status.phrase for status in HTTPStatus}
OTHER_FILES = 128  # descriptors that are not connections: libraries, logs, the engine's socket


@dataclass(frozen=True, kw_only=True, slots=True)
class ConnectionLimits:
    """Limits. `receive_s` is for a whole request, headers and body; `stalled_s` for a client that reads nothing.

    Bytes are counted by reads: one read may bring more than `header_bytes` before the request is refused.
    """

    connections: int = 2048
    headers: int = 100
    header_bytes: int = 32 << 10  # request line and headers; any other bytes but a body's between two parts of it
    pipelined: int = 16  # requests that wait on a connection for earlier answers
    receive_s: float = 60.0
    idle_s: float = 60.0  # between requests; longer than clients keep a connection, so that they close it
    stalled_s: float = 120.0
    probe_s: float = 0.25  # between two checks whether a half-closed connection was reset


class GuardedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with `limits`. A request beyond them gets an error in its dialect, and its connection closes.

    The end of a client's bytes is a half-close (RFC 9112, 9.6) or a close. TCP does not distinguish them until data is
    sent: the peer of a closed socket answers with a reset. A streamed answer sends data. Before an answer, 100 Continue
    is sent once: clients of HTTP/1.1 skip interim responses (RFC 9110, 15.2).
    """

    limits: ClassVar[ConnectionLimits] = ConnectionLimits()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.parser = RequestParser(self)  # type: ignore[assignment]
        self.url = b""  # until a request line has come
        self._refusal: tuple[int, str] | None = None
        self._num_read = 0  # bytes since the message began or a part of its body came
        self._running: RequestResponseCycle | None = None  # the newest that the app has; uvicorn's `cycle` may wait
        self._in_body = False  # the app is receiving the body of `cycle`
        self._is_sending = True  # no request of this connection is complete and unanswered
        self._since = self.loop.time()
        self._receive_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._probe_timer: asyncio.TimerHandle | None = None
        if len(self.connections) > self.limits.connections and not self._make_room():
            self._refuse(503, "this server has as many connections as it takes; try again later")
            return
        self._start_receiving()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_receiving()
        if self._probe_timer is not None:
            self._probe_timer.cancel()
        for cycle in self._unanswered():  # uvicorn notifies the newest only
            cycle.disconnected = True
            cycle.message_event.set()
        self.pipeline.clear()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._num_read += len(data)
        super().data_received(data)
        if self._num_read > self.limits.header_bytes and not self.transport.is_closing():
            self._refuse(431, self._too_many_headers())

    def eof_received(self) -> bool:  # type: ignore[override]
        """Whether the connection stays open: it does until complete requests are answered."""
        if self._probe_timer is not None:
            return True
        if self._in_body:  # which will not be completed
            if self._is_its_turn():
                return False
            self.pipeline.popleft()
            self._in_body = False
        unanswered = list(self._unanswered())
        # HTTP/1.0 has no interim responses: a client, often a proxy, that half-closes is taken to have left.
        if not unanswered or any(cycle.scope["http_version"] != "1.1" for cycle in unanswered):
            return False
        newest = self.pipeline[0][0] if self.pipeline else unanswered[0]
        newest.keep_alive = False  # after its answer the connection is closed
        self._stop_receiving()
        self._probe_timer = self.loop.call_later(self.limits.probe_s, partial(self._probe, is_first=True))
        return True

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._num_read = 0
        if self._receive_timer is None:
            self._start_receiving()

    def on_headers_complete(self) -> None:
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if len(self.headers) > self.limits.headers or size > self.limits.header_bytes:
            self._refusal = (431, self._too_many_headers())
            raise ValueError  # the parser stops, and `send_400_response` is called
        if len(self.pipeline) >= self.limits.pipelined:
            self._refusal = (400, f"at most {self.limits.pipelined} requests may wait on a connection for answers")
            raise ValueError
        self._refusal = fault_of(self.parser.get_http_version(), self.url, self.headers)
        if self._refusal is not None:
            raise ValueError
        self.headers[:] = with_target_host(self.url, self.headers)  # the scope has this very list
        super().on_headers_complete()
        self._in_body = True
        if self.pipeline:
            self.flow.resume_reading()  # without reading, a disconnect is not seen

    def on_body(self, body: bytes) -> None:
        self._num_read = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body = False
        self._stop_receiving()
        super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.pipeline:
            self._is_sending = True
            self._since = self.loop.time()

    def send_400_response(self, msg: str) -> None:
        """Answer a request that the parser refuses; uvicorn calls this."""
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
        if self._is_busy() and not self._is_its_turn():  # not before earlier requests are answered
            self._start_receiving()
            return
        self._receive_timer = None
        self._refuse(408, f"the request was not complete after {self.limits.receive_s:g} s")

    def _probe(self, *, is_first: bool = False) -> None:
        """Close a half-closed connection if it was reset. The first call sends data, which a closed client resets.

        Inside an answer that is only possible if the app has left a PROBE; else the next piece of it is the data.
        """
        if _is_reset(self.transport):
            self.transport.abort()
            return
        if is_first and self._running is not None:
            if not self._running.response_started:
                self.transport.write(CONTINUE)
            elif self._running.chunked_encoding and (data := self._running.scope["state"].get(PROBE)):
                self.transport.write(b"%x\r\n%s\r\n" % (len(data), data))
        self._probe_timer = self.loop.call_later(self.limits.probe_s, self._probe)

    def _make_room(self) -> bool:
        """Close the connection that has been sending or idle for longest, if there is one."""
        waiting = [one for one in self.connections if isinstance(one, GuardedProtocol) and one._is_sending]
        victim = min((one for one in waiting if one is not self), key=lambda one: one._since, default=None)
        if victim is None:
            return False
        self.connections.discard(victim)
        victim._refuse(408, "too many connections: the one that had been sending or idle for longest was closed")
        return True

    def _unanswered(self) -> Iterator[RequestResponseCycle]:
        if self._running is not None and not self._running.response_complete:
            yield self._running
        yield from (cycle for cycle, _ in self.pipeline)

    def _is_busy(self) -> bool:
        return self._running is not None and not self._running.response_complete

    def _is_its_turn(self) -> bool:
        """Whether the app already has the request that is being received, and waits for its body."""
        return self._in_body and self.cycle is self._running

    def _too_many_headers(self) -> str:
        return f"a request may have {self.limits.headers} headers of {self.limits.header_bytes} bytes in all"

    def _refuse(self, status: int, message: str) -> None:
        """Answer in place of the app, unless that would be in or before an answer to another request, and close."""
        if ON_REFUSED in self.app_state:
            self.app_state[ON_REFUSED](status)
        if not (self.cycle.response_started if self._is_its_turn() else self._is_busy()):
            answer = self.app_state.get(REFUSAL, lambda path, failure: (failure.status, {}, b""))
            shown, headers, body = answer(path_of(self.url), Failure(status=status, message=message))
            head = [f"HTTP/1.1 {shown} {PHRASES.get(shown, 'Refused')}", "content-type: application/json"]
            head += [f"content-length: {len(body)}", "connection: close"] + ["retry-after: 1"] * (status == 503)
            head += [f"{name}: {value}" for name, value in headers.items()]
            self.transport.write("\r\n".join([*head, "", ""]).encode() + body)
        self.transport.close()


def _is_reset(transport: asyncio.Transport) -> bool:
    """Whether the peer has reset a connection that is not read from, which event loops do not report."""
    poll = select.poll()
    poll.register(transport.get_extra_info("socket"), 0)
    return bool(poll.poll(0))  # POLLERR and POLLHUP are always reported


def guarded(limits: ConnectionLimits) -> type[GuardedProtocol]:
    """Return the protocol with limits other than the defaults."""
    return type("GuardedProtocol", (GuardedProtocol,), {"limits": limits})


def uvicorn_options(limits: ConnectionLimits | None = None) -> dict[str, Any]:
    """Return arguments of `uvicorn.Config` that apply these limits; raises the process's limit of open files."""
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
