"""`eyas serve`: the composition root, the only file that knows the engine and the HTTP side."""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from eyas.base import logs
from eyas.base.bundled import random_shape
from eyas.base.errors import UserError
from eyas.base.settings import config as settings
from eyas.base.settings.config import ServeConfig
from eyas.base.settings.defaults import sampling_defaults
from eyas.base.standard_streams import discard_unwritten_output, open_standard_streams, say, standard_error
from eyas.local import describe, progress_line

if TYPE_CHECKING:
    from eyas.engine.ports.process import EngineProcess
    from eyas.gateway.server.context import GatewayOptions

__all__ = ["add_arguments", "check_random", "gateway_options", "run", "start_engine"]

SWITCH_S = 0.0005  # a thread's turn; with Python's own 5 ms three that read bodies made streams 0.2 s late


def add_arguments(parser: argparse.ArgumentParser) -> None:
    settings.add_arguments(parser, ServeConfig, positional="model")


def run(args: argparse.Namespace) -> int:
    """Take the port, start the engine's process, serve until SIGINT or SIGTERM."""
    import uvloop

    from eyas.gateway.operation.auth import digests, origins
    from eyas.gateway.operation.serving import bind
    from eyas.gateway.operation.trace import check_writable
    from eyas.gateway.server.hosts import allowed_hosts

    open_standard_streams()
    sys.setswitchinterval(SWITCH_S)
    config = settings.load(ServeConfig, args, os.environ)
    check_random(config)
    # Complain before anything is loaded.
    digests(config.api_key), origins(config.cors), allowed_hosts(config.allowed_hosts)
    if config.trace is not None:
        check_writable(Path(config.trace))
    with closing(bind(config.host, config.port)) as listener, closing(start_engine(config)) as engine:
        options = gateway_options(config, engine.model_folder)
        say(describe(engine))
        logs.setup(config.log_format, stream=standard_error())
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(engine, listener, config, options))
    discard_unwritten_output()
    return 0


def check_random(config: ServeConfig) -> None:
    """Raises UserError for random weights that others than this machine's users would meet, or without need."""
    from eyas.gateway.server.hosts import is_loopback

    is_random = random_shape(config.model) is not None
    if is_random and not is_loopback(config.host):
        raise UserError(
            f"random weights answer nonsense, and are served to this machine alone; leave out --host {config.host}"
        )
    if config.simulate_acceptance is not None and not is_random:
        raise UserError(
            f"--simulate-acceptance is for random weights, whose answers mean nothing; '{config.model}' has its own"
        )


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


async def _serve(engine: EngineProcess, listener: socket.socket, config: ServeConfig, options: GatewayOptions) -> None:
    from eyas.gateway.app import create_app
    from eyas.gateway.operation.auth import public_warning
    from eyas.gateway.operation.serving import Draining, serve, url_of

    async def end() -> None:
        await asyncio.to_thread(engine.close)

    app = create_app(engine, engine.tokenizer, options)
    if (warning := public_warning(config.host, options.key_digests)) is not None:
        say(f"\n{warning}\n")
    url = url_of(listener)
    say(f"ready    {url}/v1    (Ctrl-C stops)\n\ntry {url}/ in a browser, or:\n  {_example(url)}")
    draining = Draining(drain=engine.drain, num_in_flight=lambda: engine.num_in_flight, end=end, drain_s=config.drain)
    try:
        await serve(app, listener, draining)
    finally:
        await end()  # while the loop still runs: the engine's last events go to it


def _example(url: str) -> str:
    body = '{"stream": true, "messages": [{"role": "user", "content": "Hello, who are you?"}]}'
    return f"curl -N {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'"
