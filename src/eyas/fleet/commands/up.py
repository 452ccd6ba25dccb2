"""`eyas up`: starts a plan, a model by its name or a known deployment, and waits until it answers sensibly."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec

from eyas.base.errors import UserError
from eyas.base.settings.home import home
from eyas.base.units import readable
from eyas.fleet.commands.down import show_event
from eyas.fleet.commands.plan import add_ask_arguments, ask_of, plan_of
from eyas.fleet.commands.signals import sigterm_like_ctrl_c
from eyas.fleet.machines.node import NodeRunner
from eyas.fleet.models.download import Progress
from eyas.fleet.preflight.check import Check
from eyas.fleet.preflight.make_ready import make_ready, text_of
from eyas.fleet.preflight.plan_file import check_plan, read_plan
from eyas.fleet.running.control import bring_up, follow, take_down
from eyas.fleet.running.state import Event, Store, is_supervised
from eyas.recipes.engines import front
from eyas.recipes.plan import Node, Plan
from eyas.recipes.planning.ask import Ask

__all__ = ["add_arguments", "address", "run"]

SUFFIXES = (".yaml", ".yml", ".json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_ask_arguments(
        parser,
        model_help="a model's name, hub id or folder (gpt-oss-120b, ...), the file of a plan, or a known deployment",
    )
    parser.add_argument("--detach", action="store_true", help="return without waiting until it is ready")
    parser.add_argument("--force", action="store_true", help="start even if checks of the machines fail")


def run(args: argparse.Namespace) -> int:
    with sigterm_like_ctrl_c():
        return _run(args)


def _run(args: argparse.Namespace) -> int:
    folder = home(os.environ)
    store = Store(folder)
    plan = _plan(args, store)
    name = plan.choice.name
    after = max((event.id for event in store.events(name)), default=0)
    try:
        if not bring_up(folder, store, plan, os.environ, partial(_make_ready, is_forced=args.force)):
            print(f"{name} is up already")
            after = 0 if store.get(name).status == "ready" else after
        if args.detach:
            print(f"{name} is starting; see: eyas ps, eyas logs {name} -f")
            return 0
        row = follow(folder, store, name, _show, after)
    except KeyboardInterrupt:
        found = store.standing(name)
        if is_supervised(folder, name) or (found is not None and found.is_active):
            print(f"\nstopping what was started of {name}", file=sys.stderr)
            take_down(folder, store, name, os.environ, _show)
        raise
    if row.status != "ready":
        raise UserError(f"{name}: {row.note}; what its engine wrote: eyas logs {name} --explain")
    print(address(plan))
    return 0


def _plan(args: argparse.Namespace, store: Store) -> Plan:
    """Return the plan of a file or of a known deployment, or make one for a model."""
    target = str(args.model)
    path = Path(target)
    is_file = path.is_file() or path.suffix in SUFFIXES
    row = None if is_file else store.find(target)
    has_flags = ask_of(args) != Ask(model=args.model, nodes=tuple(args.node))
    is_there = row is not None and (row.is_active or bool(store.launches(target)))
    if not is_file and (row is None or (has_flags and not is_there)):
        plan = plan_of(ask_of(args))
        check_plan(plan)
        return plan
    if has_flags:
        raise UserError(f"{target} is a plan already; only --node, --detach and --force go with it")
    plan = row.plan if row is not None else read_plan(path)
    return _on_nodes(plan, args.node) if args.node else plan


def _on_nodes(plan: Plan, destinations: list[str]) -> Plan:
    """Return `plan` on other machines: USER@HOST or USER@HOST=ADDRESS each, `local` for this one."""
    nodes = plan.choice.nodes
    if len(destinations) != len(nodes):
        raise UserError(f"the plan has {len(nodes)} node{'s' * (len(nodes) > 1)}, --node names {len(destinations)}")
    moved: list[Node] = []
    for node, destination in zip(nodes, destinations, strict=True):
        ssh, _, address = destination.partition("=")
        where = None if ssh == "local" else ssh
        moved.append(msgspec.structs.replace(node, ssh=where, address=address or node.address))
    return msgspec.structs.replace(plan, choice=msgspec.structs.replace(plan.choice, nodes=tuple(moved)))


def _make_ready(plan: Plan, nodes: list[NodeRunner], *, is_forced: bool) -> None:
    """Make the machines ready, and print what is done. Raises UserError before anything is started."""
    make_ready(plan, nodes, _Printer(is_forced), is_forced=is_forced)
    if plan.emission.downloads and sys.stdout.isatty():
        print()


class _Printer:
    """Prints what is done before a start."""

    def __init__(self, is_forced: bool) -> None:
        self._is_forced = is_forced

    def checked(self, checks: Sequence[Check]) -> None:
        bad = [item for item in checks if not item.ok]
        for item in checks:  # the first failure is the error of the command, unless it is forced
            if item.level == "warn" or (item.level == "fail" and (self._is_forced or item is not bad[0])):
                print(f"{item.level:<10}{text_of(item)}", file=sys.stderr)
        if not bad or self._is_forced:
            print(f"{'preflight':<10}{len(checks) - len(bad)} of {len(checks)} checks passed")

    def pulling(self, image: str, node: str) -> None:
        print(f"{'image':<10}{image} on {node}", flush=True)

    def downloading(self, progress: Progress) -> None:
        done = f"{readable(progress.done_bytes)} of {readable(progress.total_bytes)}"
        end = "" if sys.stdout.isatty() else "\n"
        start = "\r\033[K" if sys.stdout.isatty() else ""
        print(f"{start}{'download':<10}{progress.repo} to {progress.node}: {done}", end=end, flush=True)


def _show(event: Event) -> None:
    if event.status != "failed":  # that is the error of the command
        show_event(event)


def address(plan: Plan) -> str:
    """Return lines on where a plan is reached, and what to type next."""
    choice, url = plan.choice, front.url(plan)
    ssh = choice.nodes[0].ssh
    lines = [f"{'url':<10}{url}/v1   model {front.model(plan)}"]
    if ssh is not None:
        lines.append(f"{'from here':<10}ssh -N -L {url.rpartition(':')[2]}:{url.removeprefix('http://')} {ssh}")
    lines.append(f"{'next':<10}eyas ps, eyas logs {choice.name}, eyas down {choice.name}")
    return "\n".join(lines)
