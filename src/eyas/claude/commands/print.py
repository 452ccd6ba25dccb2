"""`eyas claude print`: prints the settings of Claude Code for a server."""

from __future__ import annotations

import argparse
import json

from eyas.claude.commands.options import add_server, written_settings

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_server(parser, is_key_written=True)


def run(args: argparse.Namespace) -> int:
    print(json.dumps(written_settings(args), indent=2))
    return 0
