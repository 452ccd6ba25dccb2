"""Arguments that several commands of `eyas claude` have."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path

from eyas.base.serving.address import address
from eyas.base.settings.config import argument, key_from
from eyas.base.settings.home import home
from eyas.claude.server import Server, ask
from eyas.claude.settings import make_settings
from eyas.claude.settings_file import SettingsFile

__all__ = ["add_file", "add_server", "ask_server", "settings_file", "written_settings"]

DEFAULT_URL = "http://127.0.0.1:8000"


def add_server(parser: argparse.ArgumentParser, *, is_key_written: bool) -> None:
    """Add what says which server and model. `is_key_written`: the key would end in a file, so a variable names it."""
    parser.add_argument(
        "--url",
        type=argument(address),
        default=DEFAULT_URL,
        metavar="URL",
        help=f"address of the server (default: {DEFAULT_URL})",
    )
    parser.add_argument(
        "--model", metavar="NAME", help="name of the model (default: the server's first for Claude Code)"
    )
    if is_key_written:
        help = "environment variable that holds the API key of the server; the client reads it, the key is not written"
        parser.add_argument("--api-key", type=_variable, metavar="env:NAME", help=help)
    else:
        help = "API key of the server, or env:NAME for one in an environment variable"
        parser.add_argument("--api-key", type=argument(key_from), metavar="KEY", help=help)


def add_file(parser: argparse.ArgumentParser) -> None:
    """Add what says which settings file."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--settings", metavar="FILE", help="settings file (default: ~/.claude/settings.json)")
    group.add_argument("--project", action="store_true", help="the file .claude/settings.json in this folder")


def ask_server(args: argparse.Namespace, key: str | None) -> Server:
    return ask(args.url, key=key, model=args.model)


def written_settings(args: argparse.Namespace) -> dict[str, object]:
    """Return the settings of the server that `args` names, without its key. Raises UserError."""
    key = None if args.api_key is None else key_from(f"env:{args.api_key}")
    return make_settings(ask_server(args, key), os.environ, key_variable=args.api_key)


def settings_file(args: argparse.Namespace) -> SettingsFile:
    """Return the file that `args` names, or the person's own."""
    path = Path(".claude", "settings.json") if args.project else args.settings
    if path is None:
        path = Path(os.environ.get("CLAUDE_CONFIG_DIR") or Path.home() / ".claude", "settings.json")
    return SettingsFile(Path(path), home(os.environ))


def _variable(text: str) -> str:
    """Return NAME of `env:NAME`, a variable that is set."""
    name = text.removeprefix("env:")
    if not text.startswith("env:") or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise argparse.ArgumentTypeError("wants env:NAME, the name of an environment variable, not the key itself")
    argument(key_from)(text)
    return name
