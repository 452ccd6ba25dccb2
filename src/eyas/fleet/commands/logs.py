"""`eyas logs`: shows the logs of a deployment's engines on all of its machines, and explains known errors."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable

from eyas.base.errors import EyasError, UserError
from eyas.base.settings.home import home
from eyas.fleet.commands.terminal import plain
from eyas.fleet.machines.node import NodeRunner
from eyas.fleet.running import scripts
from eyas.fleet.running.control import nodes_of
from eyas.fleet.running.scripts import Owner
from eyas.fleet.running.state import Row, Store, is_supervised
from eyas.recipes.advice.symptoms import explain
from eyas.recipes.plan import Launch

__all__ = ["add_arguments", "run"]

SHOWN_BYTES = 64 << 10
READ_BYTES = 4 << 20
MAX_LINE = 64 << 10  # characters, of one that does not end
FOLLOW_S = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of a deployment, as eyas ps lists it")
    parser.add_argument("-f", "--follow", action="store_true", help="keep printing new lines as long as it is up")
    parser.add_argument(
        "--explain", action="store_true", help="explain the known errors in the logs instead of showing the logs"
    )
    parser.add_argument("--launch", metavar="LAUNCH", help="show the log of this process only")
    parser.add_argument("--events", action="store_true", help="show what its supervisor did instead of the logs")


def run(args: argparse.Namespace) -> int:
    folder = home(os.environ)
    store = Store(folder)
    row = store.get(args.name)
    if args.events:
        for event in store.events(row.name):
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.time))
            print(f"{when}  {event.status:<12}{plain(event.text)}")
        return 0
    launches = [launch for launch in row.plan.emission.launches if args.launch in (None, launch.name)]
    if not launches:
        names = ", ".join(launch.name for launch in row.plan.emission.launches)
        raise UserError(f"{row.name} has no launch {args.launch}; it has: {names}")
    reader = _Reader(row, nodes_of(row.plan, os.environ))
    if args.explain:
        return _explain(reader, row, launches)
    screen = _Screen(launches)
    screen.show(reader.read_all, SHOWN_BYTES, is_last=not args.follow)
    is_up = args.follow
    while is_up:
        time.sleep(FOLLOW_S)
        is_up = is_supervised(folder, row.name)
        screen.show(reader.read, READ_BYTES, is_last=not is_up)
    return 1 if screen.problems else 0


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
        """Read everything, including what it wrote before its last restart or log rotation where that still fits."""
        text = self.read(launch, max_bytes)
        room = max_bytes - len(text.encode())
        before = self._run(launch, scripts.last_log(self._owner, launch, room))[1] if room > 0 else ""
        return before + text

    def _run(self, launch: Launch, script: str) -> tuple[str, str]:
        node = self._nodes[launch.node]
        result = node.run(script)
        if result.code != 0:
            raise UserError(f"{node.name}: {result.err.strip() or 'its log cannot be read'}")
        cursor, _, text = result.out.partition("\n")
        return cursor, text


class _Screen:
    """Prints whole lines of several logs; a line that is still being written waits for its end."""

    def __init__(self, launches: list[Launch]) -> None:
        self._launches = launches
        self._unfinished = dict.fromkeys((launch.name for launch in launches), "")
        self.problems: dict[str, str] = {}  # of the last look

    def show(self, read: Callable[[Launch, int], str], max_bytes: int, *, is_last: bool) -> None:
        before, self.problems = self.problems, {}
        for launch in self._launches:
            name = launch.name
            try:
                text = self._unfinished[name] + read(launch, max_bytes)
            except EyasError as error:
                self.problems[name] = str(error)
                if before.get(name) != str(error):
                    print(f"eyas: {error}", file=sys.stderr)
                text = self._unfinished[name]
            end = len(text) if is_last or len(text) > MAX_LINE else max(text.rfind("\n"), text.rfind("\r")) + 1
            self._unfinished[name] = text[end:]
            for line in text[:end].splitlines():
                print(f"{name} | {plain(line)}" if len(self._launches) > 1 else plain(line))
        sys.stdout.flush()


def _explain(reader: _Reader, row: Row, launches: list[Launch]) -> int:
    """Return the findings of all logs, those from before the last restart included."""
    num_found = 0
    for launch in launches:
        for finding in explain(reader.read_all(launch, READ_BYTES), row.plan.choice.engine):
            num_found += 1
            print(
                f"{launch.name} | {plain(finding.line.strip())}\n  means  {finding.meaning}\n  do     {finding.remedy}"
            )
            if finding.issue is not None:
                print(f"  known  {finding.issue}: {'; '.join(finding.sources)}")
    if row.status != "ready":
        print(f"{row.status}: {row.note}")
    if not num_found:
        print("nothing in the logs is a known symptom")
    return 0
