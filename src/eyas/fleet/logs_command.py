"""`eyas logs`: what the engines of a deployment wrote, on whatever machine, and what is known about its errors."""

from __future__ import annotations

import argparse
import os
import sys
import time

from eyas.base.errors import EyasError, UserError
from eyas.fleet import scripts
from eyas.fleet.control import nodes_of
from eyas.fleet.node import NodeRunner
from eyas.fleet.scripts import Owner
from eyas.fleet.state import Row, Store, home, is_supervised
from eyas.recipes.plan import Launch
from eyas.recipes.symptoms import explain

__all__ = ["add_arguments", "run"]

SHOWN_BYTES = 64 << 10
READ_BYTES = 4 << 20
FOLLOW_S = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="a deployment, as eyas ps lists it")
    parser.add_argument("-f", "--follow", action="store_true", help="go on as long as it is up")
    parser.add_argument("--explain", action="store_true", help="say what is known about what stands there")
    parser.add_argument("--launch", metavar="LAUNCH", help="only this one of its processes")
    parser.add_argument("--events", action="store_true", help="what its supervisor did, instead")


def run(args: argparse.Namespace) -> int:
    folder = home(os.environ)
    store = Store(folder)
    row = store.get(args.name)
    if args.events:
        for event in store.events(row.name):
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.time))
            print(f"{when}  {event.status:<12}{event.text}")
        return 0
    launches = [launch for launch in row.plan.emission.launches if args.launch in (None, launch.name)]
    if not launches:
        names = ", ".join(launch.name for launch in row.plan.emission.launches)
        raise UserError(f"{row.name} has no launch {args.launch}; it has: {names}")
    reader = _Reader(row, nodes_of(row.plan, os.environ))
    if args.explain:
        return _explain(reader, row, launches)
    _show(reader, launches, SHOWN_BYTES)
    while args.follow and is_supervised(folder, row.name):
        time.sleep(FOLLOW_S)
        _show(reader, launches, READ_BYTES)
    return 0


class _Reader:
    """Reads on in the log of each launch, from where it last was."""

    def __init__(self, row: Row, nodes: list[NodeRunner]) -> None:
        self._owner = Owner(token=row.token, directory=row.plan.choice.directory)
        self._nodes = nodes
        self._cursors: dict[str, str] = {}

    def read(self, launch: Launch, max_bytes: int) -> str:
        cursor = self._cursors.get(launch.name, "0")
        script = scripts.log(self._owner, launch, cursor, max_bytes)
        self._cursors[launch.name], text = self._run(launch, script)
        return text

    def read_all(self, launch: Launch, max_bytes: int) -> str:
        """With what it wrote before it was last restarted."""
        return self._run(launch, scripts.last_log(self._owner, launch, max_bytes))[1] + self.read(launch, max_bytes)

    def _run(self, launch: Launch, script: str) -> tuple[str, str]:
        node = self._nodes[launch.node]
        result = node.run(script)
        if result.code != 0:
            raise UserError(f"{node.name}: {result.err.strip() or 'its log cannot be read'}")
        cursor, _, text = result.out.partition("\n")
        return cursor, text


def _show(reader: _Reader, launches: list[Launch], max_bytes: int) -> None:
    for launch in launches:
        try:
            text = reader.read(launch, max_bytes)
        except EyasError as error:
            print(f"eyas: {error}", file=sys.stderr)
            continue
        for line in text.splitlines():
            print(f"{launch.name} | {line}" if len(launches) > 1 else line)
    sys.stdout.flush()


def _explain(reader: _Reader, row: Row, launches: list[Launch]) -> int:
    """Findings of all logs; of what stood there before the last restart, too."""
    num_found = 0
    for launch in launches:
        for finding in explain(reader.read_all(launch, READ_BYTES), row.plan.choice.engine):
            num_found += 1
            print(f"{launch.name} | {finding.line.strip()}\n  means  {finding.meaning}\n  do     {finding.remedy}")
            if finding.issue is not None:
                print(f"  known  {finding.issue}: {'; '.join(finding.sources)}")
    if row.status != "ready":
        print(f"{row.status}: {row.note}")
    if not num_found:
        print("nothing in the logs is a known symptom")
    return 0
