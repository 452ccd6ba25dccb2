"""`eyas ps`: lists deployments, their status and machines; it looks there for what a dead supervisor left running."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path

import msgspec

from eyas.base.errors import EyasError, UserError
from eyas.base.settings.home import home
from eyas.client.endpoint.acceptance.adapters import read
from eyas.fleet.commands.terminal import plain
from eyas.fleet.running.control import nodes_of
from eyas.fleet.running.deployment import Deployment, client
from eyas.fleet.running.state import Row, Standing, Store, is_supervised
from eyas.fleet.running.supervisor import limits_of
from eyas.recipes.engines import front

__all__ = ["add_arguments", "run"]

HEADERS = ("NAME", "MODEL", "ENGINE", "BOX", "STATUS", "UPTIME", "RESTARTS", "ACCEPTANCE", "URL")
MAX_AT_ONCE = 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help="list stopped deployments too")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")


def run(args: argparse.Namespace) -> int:
    folder = home(os.environ)
    with ThreadPoolExecutor(MAX_AT_ONCE) as pool:
        items = pool.map(partial(_describe, folder, os.environ, args.all), Store(folder).names())
    found = [item for item in items if item is not None]
    if args.json:
        for item in found:
            print(msgspec.json.encode(item).decode())
        return 0
    if not found:
        print("nothing is up; start something: eyas up MODEL")
        return 0
    table = [HEADERS, *(tuple(str(item[header.lower()]) for header in HEADERS) for item in found)]
    widths = [max(len(line[column]) for line in table) for column in range(len(HEADERS))]
    for line in table:
        print("  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip())
    for item in found:
        if item["note"] not in ("", item["status"]):
            print(f"{item['name']}: {plain(str(item['note']))}")
    return 0


def _describe(folder: Path, environ: Mapping[str, str], is_all: bool, name: str) -> dict[str, object] | None:
    """Return a row for the table; None for a stopped deployment, unless all are wanted."""
    with closing(Store(folder)) as store:
        found = store.standing(name)
        if found is None or (found.status == "stopped" and not is_all and not store.launches(name)):
            return None
        item: dict[str, object] = dict.fromkeys((header.lower() for header in HEADERS), "-")
        item |= {"name": name, "uptime": _uptime(found), "restarts": found.restarts}
        try:
            row = store.get(name)
        except UserError as error:
            return {**item, "status": "unreadable", "note": str(error)}
        status, note = (
            (row.status, row.note)
            if not row.is_active or is_supervised(folder, name)
            else _unsupervised(store, store.get(name), environ)
        )
    choice = row.plan.choice
    ssh = choice.nodes[0].ssh
    return {
        **item,
        "model": choice.model,
        "engine": f"{choice.engine} {choice.version}",
        "box": row.plan.box.name,
        "status": status,
        "acceptance": _acceptance(row, environ) if status in ("ready", "unsupervised") else "-",
        "url": f"{front.url(row.plan)}/v1" + (f" on {ssh}" if ssh is not None else ""),
        "note": note,
    }


def _unsupervised(store: Store, row: Row, environ: Mapping[str, str]) -> tuple[str, str]:
    """Look at a deployment whose supervisor was killed; return its status and what to do about it."""
    if not row.is_active:  # it ended while we looked
        return row.status, row.note
    deployment = Deployment(row, nodes_of(row.plan, environ), store, limits_of(environ), {})
    found = deployment.look()
    deployment.close()
    if found.silent:
        return "unreachable", f"{'; '.join(found.silent)}; it has no supervisor; take it over: eyas up {row.name}"
    if found.num_alive == len(row.plan.emission.launches):
        return "unsupervised", f"runs without a supervisor to restart it; take it over: eyas up {row.name}"
    if found.num_alive:
        return "broken", f"part of it has ended and it has no supervisor; start it again: eyas up {row.name}"
    return "dead", f"nothing of it runs any more; start it again: eyas up {row.name}"


def _uptime(row: Standing) -> str:
    if row.ready_since is None:
        return "-"
    seconds = max(0, int(time.time() - row.ready_since))  # a clock may be set back
    for size, unit, rest, small in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if seconds >= size:
            return f"{seconds // size}{unit}{seconds % size // rest}{small}"
    return f"{seconds}s"


def _acceptance(row: Row, environ: Mapping[str, str]) -> str:
    """Return tokens per target pass, bonus included, by the engine's own count."""
    if row.plan.choice.method == "none":
        return "-"
    key = environ.get(row.plan.choice.api_key_env or "")
    try:
        with client(row.plan, nodes_of(row.plan, environ)[0], key) as http:
            length = read(row.plan.choice.engine, http).acceptance_length
    except EyasError:
        return "-"
    return "-" if length is None else f"{length:.2f}"
