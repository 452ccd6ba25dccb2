"""`eyas serve`: the composition root, the only file that knows the engine and the HTTP side."""

from __future__ import annotations

import argparse
import asyncio
import errno
import os
import signal
import socket
from collections.abc import Generator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from eyas.base import config as settings
from eyas.base.config import ServeConfig
from eyas.base.errors import UserError
from eyas.local import describe, load_engine

if TYPE_CHECKING:
    from eyas.engine.engine import Engine

__all__ = ["add_arguments", "run"]

DRAIN_S = 5  # how long running answers may go on after a signal to stop


def add_arguments(parser: argparse.ArgumentParser) -> None:
    settings.add_arguments(parser, ServeConfig, positional="model")


def run(args: argparse.Namespace) -> int:
    """Take the port, load the engine, serve until SIGINT or SIGTERM."""
    config = settings.load(ServeConfig, args, os.environ)
    with closing(_bind(config.host, config.port)) as listener, closing(load_engine(config)) as engine:
        print(describe(engine))
        asyncio.run(_serve(engine, listener, config.served_name))
    return 0


def _bind(host: str, port: int) -> socket.socket:
    """Take the port before the model is loaded; whoever connects early waits. Raises UserError."""
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


async def _serve(engine: Engine, listener: socket.socket, served_name: str | None) -> None:
    import uvicorn

    from eyas.gateway.app import create_app
    from eyas.gateway.context import GatewayOptions

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Generator[None, None, None]:
            # uvicorn's own raises the signal once more when it is done, which would skip closing the engine.
            loop = asyncio.get_running_loop()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, self.handle_exit, number, None)
            yield

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            if self.server_state.tasks:
                print(f"stopping: running answers get {DRAIN_S} s; Ctrl-C once more stops at once", flush=True)
            closing_engine = asyncio.create_task(_close_later(engine))
            await super().shutdown(sockets)
            closing_engine.cancel()

    server = Server(
        uvicorn.Config(
            create_app(engine, engine.tokenizer, GatewayOptions(served_name=served_name)),
            log_level="warning",
            access_log=False,
        )
    )
    host, port = listener.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    print(f"ready    {url}/v1    (Ctrl-C stops)\n\ntry:\n  {_example(url)}", flush=True)
    try:
        await server.serve(sockets=[listener])
    finally:
        # While the loop still runs: the engine's last events go to it.
        await asyncio.to_thread(engine.close)


async def _close_later(engine: Engine) -> None:
    """End what still runs after the time to drain: each open stream is told that the server is stopping."""
    await asyncio.sleep(DRAIN_S)
    await asyncio.to_thread(engine.close)


def _example(url: str) -> str:
    body = '{"stream": true, "messages": [{"role": "user", "content": "Hello, who are you?"}]}'
    return f"curl -N {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'"
