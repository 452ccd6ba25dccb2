"""`eyas serve`: the composition root, the only file that knows the engine and the HTTP side."""

from __future__ import annotations

import argparse
import asyncio
import errno
import io
import logging
import os
import signal
import socket
import sys
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from eyas.base import config as settings
from eyas.base import logs
from eyas.base.config import ServeConfig
from eyas.base.defaults import sampling_defaults
from eyas.base.errors import UserError
from eyas.local import describe, progress_line

if TYPE_CHECKING:
    from eyas.engine.ports.process import EngineProcess
    from eyas.gateway.server.context import GatewayOptions

__all__ = ["add_arguments", "gateway_options", "run", "start_engine"]

POLL_S = 0.05
STDERR = 2
SWITCH_S = 0.0005  # a thread's turn; with Python's own 5 ms three that read bodies made streams 0.2 s late
SAME_SIGNAL_S = 0.5  # Ctrl-C signals the whole process group, and make then signals its children again
LAST_WORDS_S = 5  # for answers on their way out after the engine has stopped
log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    settings.add_arguments(parser, ServeConfig, positional="model")


def run(args: argparse.Namespace) -> int:
    """Take the port, start the engine's process, serve until SIGINT or SIGTERM."""
    import uvloop

    from eyas.gateway.operation.auth import digests, origins
    from eyas.gateway.operation.trace import check_writable
    from eyas.gateway.server.hosts import allowed_hosts

    _open_standard_streams()
    sys.setswitchinterval(SWITCH_S)
    config = settings.load(ServeConfig, args, os.environ)
    # Complain before anything is loaded.
    digests(config.api_key), origins(config.cors), allowed_hosts(config.allowed_hosts)
    if config.trace is not None:
        check_writable(Path(config.trace))
    with closing(_bind(config.host, config.port)) as listener, closing(start_engine(config)) as engine:
        options = gateway_options(config, engine.model_folder)
        _say(describe(engine))
        logs.setup(config.log_format, stream=_standard_error())
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(engine, listener, config, options))
    _discard_unwritten_output()
    return 0


def start_engine(config: ServeConfig) -> EngineProcess:
    """Start the engine in its own process, with a progress line on a terminal. Raises UserError."""
    from eyas.engine.ports.process import EngineProcess

    with progress_line() as show:
        return EngineProcess(
            config,
            max_queue=config.max_queue,
            step_timeout=config.step_timeout,
            log_format=config.log_format,
            progress=lambda done, total: show(f"loading {100 * done // max(total, 1)} %"),
        )


def gateway_options(config: ServeConfig, folder: Path) -> GatewayOptions:
    """Return the HTTP side's options; `folder` is the model's. Raises UserError."""
    from eyas.gateway.operation.auth import digests, origins
    from eyas.gateway.server.context import GatewayOptions
    from eyas.gateway.server.hosts import hosts_of, is_loopback

    keys = digests(config.api_key)
    live = config.live
    if live == "auto":
        live = "text" if is_loopback(config.host) else "blank"
    return GatewayOptions(
        served_name=config.served_name,
        key_digests=keys,
        hosts=hosts_of(config.host, config.allowed_hosts, has_keys=bool(keys)),
        cors_origins=origins(config.cors),
        max_body=config.max_body,
        live=live,
        keep_reasoning=config.keep_reasoning,
        defaults=sampling_defaults(folder),
        tokenizer_json=folder / "tokenizer.json",
        trace=None if config.trace is None else Path(config.trace),
    )


def _bind(host: str, port: int) -> socket.socket:
    """Take the port before the model is loaded; clients that connect early wait. Raises UserError."""
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


async def _serve(engine: EngineProcess, listener: socket.socket, config: ServeConfig, options: GatewayOptions) -> None:
    import uvicorn

    from eyas.gateway.app import create_app
    from eyas.gateway.operation.auth import public_warning
    from eyas.gateway.operation.connections import uvicorn_options

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Generator[None, None, None]:
            # uvicorn's own stops listening at once; ours answers until the drain is over.
            loop, stop = asyncio.get_running_loop(), _Stop(engine, config.drain)
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

    server = Server(
        uvicorn.Config(
            create_app(engine, engine.tokenizer, options), timeout_graceful_shutdown=LAST_WORDS_S, **uvicorn_options()
        )
    )
    host, port = listener.getsockname()[:2]
    if (warning := public_warning(config.host, options.key_digests)) is not None:
        _say(f"\n{warning}\n")
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    _say(f"ready    {url}/v1    (Ctrl-C stops)\n\ntry {url}/ in a browser, or:\n  {_example(url)}")
    try:
        await server.serve(sockets=[listener])
    finally:
        # While the loop still runs: the engine's last events go to it.
        await asyncio.to_thread(engine.close)


class _Stop:
    """Graceful shutdown: refuses new requests, lets running answers finish, then ends each open stream."""

    def __init__(self, engine: EngineProcess, drain_s: float) -> None:
        self._engine = engine
        self._drain_s = drain_s
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
        """Return when the engine has ended; a second signal ends it at once."""
        await self._first.wait()
        engine, loop = self._engine, asyncio.get_running_loop()
        engine.drain()
        if engine.num_in_flight:
            log.warning("stopping: running answers get %g s; Ctrl-C once more stops at once", self._drain_s)
        end = loop.time() + self._drain_s
        while engine.num_in_flight and loop.time() < end and not self._second.is_set():
            await asyncio.sleep(POLL_S)
        await asyncio.to_thread(engine.close)


def _open_standard_streams() -> None:
    """Open descriptors 0 to 2 where the parent process closed them: sockets must not get their numbers."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        os.set_inheritable(number, True)
    os.close(number)
    sys.stderr = sys.stderr or _standard_error()


def _say(text: str) -> None:
    """Print to standard output. The server goes on if that is closed or full."""
    with suppress(OSError):
        print(text, flush=True)


def _discard_unwritten_output() -> None:
    """Drop what cannot be flushed: the interpreter would try again at exit and fail with another exit code."""
    try:
        print(end="", flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _standard_error() -> TextIO:
    """Open standard error unbuffered: a writer that hangs would hold a buffer's lock for ever, even at exit."""
    return io.TextIOWrapper(io.FileIO(STDERR, "w", closefd=False), "utf-8", "backslashreplace", write_through=True)


def _example(url: str) -> str:
    body = '{"stream": true, "messages": [{"role": "user", "content": "Hello, who are you?"}]}'
    return f"curl -N {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'"
