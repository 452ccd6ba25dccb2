"""`eyas down`: stops everything of a deployment on all of its machines, the last launch first."""

from __future__ import annotations

import argparse
import os

from eyas.base.errors import UserError
from eyas.base.settings.home import home
from eyas.fleet.commands.terminal import plain
from eyas.fleet.running.control import take_down
from eyas.fleet.running.state import Event, Store, is_supervised

__all__ = ["add_arguments", "run", "show_event"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="*", metavar="NAME", help="names of deployments, as eyas ps lists them")
    parser.add_argument("--all", action="store_true", help="stop every deployment that is not stopped yet")
    parser.add_argument(
        "--forget", action="store_true", help="forget what cannot be stopped, because its machine is gone"
    )


def run(args: argparse.Namespace) -> int:
    folder = home(os.environ)
    store = Store(folder)
    if bool(args.name) == args.all:
        raise UserError("say which to stop: eyas down NAME, or eyas down --all; eyas ps lists them")
    names = list(dict.fromkeys(args.name)) or store.names()[::-1]
    problems: list[str] = []
    for name in names:
        found = store.standing(name)
        is_stopped = found is None or (found.status == "stopped" and not store.launches(name))
        if is_stopped and not is_supervised(folder, name):
            if found is None:
                store.get(name)  # says what there is
            if not args.all:
                print(f"{name} is not up")
            continue
        try:
            take_down(folder, store, name, os.environ, show_event, is_forgotten=args.forget)
            print(f"{name} is down")
        except UserError as error:
            problems.append(str(error))
    if problems:
        raise UserError("; ".join(problems))
    return 0


def show_event(event: Event) -> None:
    print(f"{event.status:<10}{plain(event.text) if event.text != event.status else ''}".rstrip(), flush=True)
