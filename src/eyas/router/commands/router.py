"""`eyas router`: one address in front of many engines, as a file says; `--check` says what is wrong with the file."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from eyas.base.errors import UserError
from eyas.base.settings.config import argument, int_from
from eyas.base.standard_streams import discard_unwritten_output, open_standard_streams, say, standard_error

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

    from eyas.recipes.plan import Plan
    from eyas.router.app import Router
    from eyas.router.settings.reader import Examined

__all__ = ["add_arguments", "run"]

SWITCH_S = 0.0005  # a thread's turn: those that ask fleet must not make streams late


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "config", metavar="CONFIG", type=Path, help="YAML file: backends, models, routes (docs/router.md)"
    )
    parser.add_argument(
        "--check", action="store_true", help="say what the file means and all that is wrong with it; start nothing"
    )
    parser.add_argument(
        "--host", metavar="ADDR", default=argparse.SUPPRESS, help="address to listen on, instead of the file's"
    )
    parser.add_argument(
        "--port",
        metavar="PORT",
        type=argument(int_from(0, 65535)),
        default=argparse.SUPPRESS,
        help="port to listen on, instead of the file's",
    )


def run(args: argparse.Namespace) -> int:
    """Start what the file says and serve until SIGINT or SIGTERM. Nothing is started if anything is wrong with it."""
    from eyas.router.settings.reader import examine

    overrides = {name: value for name, value in vars(args).items() if name in ("host", "port")}
    found = examine(args.config, os.environ, overrides)
    if args.check:
        return _check(args.config, found)
    if found.problems:
        _complain(args.config, found.problems)
        return 1
    return _serve(found)


def _check(path: Path, found: Examined) -> int:
    from eyas.router.app import Router
    from eyas.router.commands.meaning import meaning

    problems = list(found.problems)
    if not problems:
        try:
            Router(found.settings).backends.release()  # its plans: does another router run them
        except UserError as error:
            problems.append(str(error))
    print(meaning(found.settings, found.plans))
    _complain(path, problems)
    if not problems:
        print(f"\n{path} is good")
    return 1 if problems else 0


def _complain(path: Path, problems: list[str] | tuple[str, ...]) -> None:
    sys.stdout.flush()
    for problem in problems:
        print(f"eyas: error: {path}: {problem}", file=sys.stderr)


def _serve(found: Examined) -> int:
    import uvloop

    from eyas.base import logs
    from eyas.gateway.operation.serving import bind
    from eyas.router.app import Router

    open_standard_streams()
    sys.setswitchinterval(SWITCH_S)
    server = found.settings.server
    with closing(bind(server.host, server.port)) as listener:
        router = Router(found.settings)
        logs.setup(server.log_format, stream=standard_error())
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(router, listener, found.plans))
    discard_unwritten_output()
    return 0


async def _run(router: Router, listener: socket.socket, plans: Mapping[str, Plan]) -> None:
    from eyas.gateway.operation.auth import digests, public_warning
    from eyas.gateway.operation.serving import Draining, serve, url_of
    from eyas.router.commands.meaning import meaning

    server = router.settings.server
    say(meaning(router.settings, plans))
    if (warning := public_warning(server.host, digests(server.api_key))) is not None:
        say(f"\n{warning}\n")
    url = url_of(listener)
    say(f"\nready    {url}/v1    (Ctrl-C stops; engines go on)\npage     {url}/")
    async with router.running():
        await serve(
            router.app,
            listener,
            Draining(drain=router.drain, num_in_flight=router.num_in_flight, end=router.end, drain_s=server.drain_s),
        )
