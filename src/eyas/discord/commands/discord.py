"""`eyas discord`: a bot that answers on Discord, as a file says; `--check` says what is wrong with the file."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from eyas.base.errors import UserError

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="CONFIG", type=Path, help="YAML file of the bot (docs/discord.md)")
    parser.add_argument(
        "--check", action="store_true", help="say what the file means and all that is wrong with it; start nothing"
    )


def run(args: argparse.Namespace) -> int:
    """Run the bot until SIGINT or SIGTERM. Raises UserError."""
    if args.check:
        return _check(args.config)
    try:
        from eyas.discord.bot.running import run as run_bot
    except ModuleNotFoundError as error:
        if error.name != "discord":
            raise
        raise UserError("this needs discord.py; install it with: pip install 'eyas[discord]'") from None
    from eyas.base import logs
    from eyas.base.standard_streams import open_standard_streams, standard_error

    open_standard_streams()
    logs.setup("text", stream=standard_error())
    run_bot(args.config, os.environ)
    return 0


def _check(path: Path) -> int:
    """Print what the file means. The token must be there, and is not shown."""
    from eyas.discord.commands.meaning import meaning
    from eyas.discord.settings.reader import read, token

    settings = read(path, os.environ)
    print(meaning(settings))
    token(settings, os.environ)
    print(f"\n{path} is good")
    return 0
