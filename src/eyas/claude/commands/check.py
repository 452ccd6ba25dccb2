"""`eyas claude check`: tries on a server what Claude Code needs of it."""

from __future__ import annotations

import argparse

from eyas.claude.check import check
from eyas.claude.commands.options import add_server, ask_server
from eyas.claude.server import connect

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_server(parser, is_key_written=False)


def run(args: argparse.Namespace) -> int:
    server = ask_server(args, args.api_key)
    version = f"eyas {server.version}" if server.version else "not eyas"
    _show("server", f"{server.model} at {server.url} ({version})")
    _show("key", "ok: " + ("accepted" if args.api_key else "none is asked for"))
    is_good = True
    with connect(server.url, args.api_key) as http:
        for finding in check(http, server):
            _show(finding.name, f"{'ok' if finding.is_good else 'FAILED'}: {finding.text}")
            is_good &= finding.is_good
    return 0 if is_good else 1


def _show(name: str, text: str) -> None:
    print(f"{name:<9}{text}", flush=True)
