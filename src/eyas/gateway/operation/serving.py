"""Serves an app on a port until SIGINT or SIGTERM: running answers get time to finish, a second signal ends them."""

from __future__ import annotations

import asyncio
import errno
import logging
import signal
import socket
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass

import uvicorn
from starlette.types import ASGIApp

from eyas.base.errors import UserError
from eyas.gateway.operation.connections import uvicorn_options

__all__ = ["SAME_SIGNAL_S", "Draining", "bind", "serve", "url_of"]

POLL_S = 0.05
SAME_SIGNAL_S = 0.5  # Ctrl-C signals the whole process group, and make then signals its children again
LAST_WORDS_S = 5  # for answers on their way out after everything has been ended
log = logging.getLogger(__name__)


def bind(host: str, port: int) -> socket.socket:
    """Take the port before anything is loaded; clients that connect early wait. Raises UserError."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError as error:
        raise UserError(f"'{host}' is no address of this machine ({error.strerror}); try --host 127.0.0.1") from error
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen()
        return listener
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise UserError(f"port {port} on {host} is in use; choose another with --port, or --port 0") from error
        raise UserError(
            f"cannot listen on {host}:{port} ({error.strerror}); choose another --host or --port"
        ) from error


def url_of(listener: socket.socket) -> str:
    """Return the URL of a server on this socket."""
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Draining:
    """The way to an end. `drain` refuses new requests; `end` ends the running ones, `drain_s` seconds later at most."""

    drain: Callable[[], None]
    num_in_flight: Callable[[], int]
    end: Callable[[], Awaitable[None]]
    drain_s: float


async def serve(app: ASGIApp, listener: socket.socket, draining: Draining) -> None:
    """Serve `app` until a signal; return when all answers are over or ended."""

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Generator[None, None, None]:
            # uvicorn's own stops listening at once; ours answers until the drain is over.
            loop, stop = asyncio.get_running_loop(), _Stop(draining)
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, stop.signalled)
            self.stopping = asyncio.create_task(self._stop_after(stop))
            yield
            self.stopping.cancel()

        async def _stop_after(self, stop: _Stop) -> None:
            try:
                await stop.wait()
            except Exception:
                log.exception("waiting for the running answers failed")
            finally:
                self.should_exit = True

    await Server(uvicorn.Config(app, timeout_graceful_shutdown=LAST_WORDS_S, **uvicorn_options())).serve([listener])


class _Stop:
    """Graceful shutdown: refuses new requests, lets running answers finish, then ends each open stream."""

    def __init__(self, draining: Draining) -> None:
        self._draining = draining
        self._first = asyncio.Event()
        self._second = asyncio.Event()
        self._first_s = 0.0

    def signalled(self) -> None:
        now = asyncio.get_running_loop().time()
        if not self._first.is_set():
            self._first.set()
            self._first_s = now
        elif now > self._first_s + SAME_SIGNAL_S:
            self._second.set()

    async def wait(self) -> None:
        """Return when everything has ended; a second signal ends it at once."""
        await self._first.wait()
        draining, loop = self._draining, asyncio.get_running_loop()
        draining.drain()
        if draining.num_in_flight():
            log.warning("stopping: running answers get %g s; Ctrl-C once more stops at once", draining.drain_s)
        end = loop.time() + draining.drain_s
        while draining.num_in_flight() and loop.time() < end and not self._second.is_set():
            await asyncio.sleep(POLL_S)
        await draining.end()
