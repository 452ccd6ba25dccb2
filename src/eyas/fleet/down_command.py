"""`eyas down`: stops everything of a deployment on all of its machines, the last launch first."""

from __future__ import annotations

import argparse
import os

from eyas.base.errors import UserError
from eyas.fleet.control import take_down
from eyas.fleet.state import Event, Store, home

__all__ = ["add_arguments", "run", "show_event"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="*", metavar="NAME", help="deployments, as eyas ps lists them")
    parser.add_argument("--all", action="store_true", help="every deployment that is up")


def run(args: argparse.Namespace) -> int:
    folder = home(os.environ)
    store = Store(folder)
    if bool(args.name) == args.all:
        raise UserError("say which to stop: eyas down NAME, or eyas down --all; eyas ps lists them")
    rows = [store.get(name) for name in dict.fromkeys(args.name)]
    if args.all:
        rows = [row for row in reversed(store.rows()) if row.is_active or store.launches(row.name)]
    problems: list[str] = []
    for row in rows:
        if not row.is_active and not store.launches(row.name):
            print(f"{row.name} is not up")
            continue
        try:
            take_down(folder, store, row, os.environ, show_event)
            print(f"{row.name} is down")
        except UserError as error:
            problems.append(str(error))
    if problems:
        raise UserError("; ".join(problems))
    return 0


def show_event(event: Event) -> None:
    print(f"{event.status:<10}{event.text if event.text != event.status else ''}".rstrip(), flush=True)
