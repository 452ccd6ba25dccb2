"""`eyas claude`: starts the installed Claude Code on a server; nothing of the person's settings is changed."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any

from eyas.base.errors import nearest
from eyas.claude.commands.options import add_server, ask_server
from eyas.claude.launch import find_client, start
from eyas.claude.settings import make_settings

__all__ = ["add_arguments", "run"]

OTHERS = ("print", "write", "undo", "check")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = f"See also: {', '.join(f'eyas claude {name}' for name in OTHERS)}."
    add_server(parser, is_key_written=False)
    parser.add_argument("--binary", metavar="PATH", help="program of Claude Code, where it is not on the path")
    parser.add_argument(
        "args",
        nargs=argparse.REMAINDER,
        action=_AfterDashes,
        metavar="-- ARGS",
        help="arguments for Claude Code itself",
    )


def run(args: argparse.Namespace) -> int:
    program = find_client(args.binary, os.environ)
    settings = make_settings(ask_server(args, args.api_key), os.environ, key=args.api_key)
    start(program, args.args, settings, os.environ)


class _AfterDashes(argparse.Action):
    """Takes what follows `--`, so that no misspelt command becomes a prompt."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        words = list(values or ())
        if words and words[0] != "--":
            parser.error(f"unexpected '{words[0]}'{nearest(words[0], OTHERS)}; what is for Claude Code follows --")
        setattr(namespace, self.dest, words[1:])
