"""`eyas claude write`: merges the settings for a server into Claude Code's settings.json."""

from __future__ import annotations

import argparse
import shlex

from eyas.claude.commands.options import add_file, add_server, settings_file, written_settings

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_server(parser, is_key_written=True)
    add_file(parser)


def run(args: argparse.Namespace) -> int:
    file = settings_file(args)
    file.write(written_settings(args))
    which = ["--project"] * args.project + (["--settings", args.settings] if args.settings else [])
    print(f"written into {file.path}; {shlex.join(['eyas', 'claude', 'undo', *which])} takes it out again")
    return 0
