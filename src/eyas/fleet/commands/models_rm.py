"""`eyas models rm`: deletes repositories from this machine's Hugging Face cache."""

from __future__ import annotations

import argparse
import os
import sys

from eyas.base.errors import UserError
from eyas.base.settings.home import home
from eyas.base.units import readable
from eyas.fleet.commands.terminal import plain
from eyas.fleet.models.cache import entries, find, hub_folder, remove
from eyas.fleet.running.state import Store

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("repos", nargs="+", metavar="REPO", help="repository, as eyas models list shows it")
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")


def run(args: argparse.Namespace) -> int:
    found = entries(hub_folder(os.environ), Store(home(os.environ)).rows())
    chosen = [find(found, repo) for repo in args.repos]
    for entry in chosen:
        if entry.used_by:
            raise UserError(f"{entry.repo} is in use by {', '.join(entry.used_by)}; stop that first")
    for entry in dict.fromkeys(chosen):
        users = f", known to {', '.join(entry.known_to)}" if entry.known_to else ""
        if not args.yes and not _agrees(f"remove {plain(entry.repo)} ({readable(entry.disk_bytes)}{users})?"):
            continue
        print(f"removed {plain(entry.repo)}, freed {readable(remove(entry))}")
    return 0


def _agrees(question: str) -> bool:
    if not sys.stdin.isatty():
        raise UserError(f"{question} There is no terminal to answer on; give --yes")
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
