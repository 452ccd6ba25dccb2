"""Process that brings a plan up for a router, so that it can be ended: `python -m eyas.router.backends.starting`.

Its standard input holds the plan as a line of JSON, and stays open as long as the router wants it: it ends with the
router. It prints lines of JSON, `{"note": ...}` for people, and `{"error": ...}` before the exit code 1. Fleet signs
what it is about to start with this process, which `eyas down` then ends, and not the router.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from eyas.base.errors import EyasError
from eyas.base.settings.home import home
from eyas.fleet.machines.node import NodeRunner
from eyas.fleet.models.download import Progress
from eyas.fleet.preflight.check import Check
from eyas.fleet.preflight.make_ready import make_ready
from eyas.fleet.running.control import bring_up
from eyas.fleet.running.state import Store
from eyas.fleet.running.supervisor import fork
from eyas.recipes.plan import Plan

__all__ = ["News", "main"]

STDIN = 0
CHUNK = 1 << 16


class News(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line that this process prints."""

    note: str = ""
    error: str = ""


class _Teller:
    """Says what is done before a start."""

    def __init__(self) -> None:
        self._last = ""

    def checked(self, checks: Sequence[Check]) -> None:
        """Say nothing: a check that fails is the error, and warnings are those of `eyas up`."""

    def pulling(self, image: str, node: str) -> None:
        self._say(f"looks for {image} on {node}")

    def downloading(self, progress: Progress) -> None:
        self._say(f"downloads {progress.repo} to {progress.node}")

    def _say(self, text: str) -> None:
        if text != self._last:
            self._last = text
            _print(News(note=text))


def main() -> int:
    """Bring up the plan on standard input."""
    line = b""
    while not line.endswith(b"\n"):
        if not (part := os.read(STDIN, CHUNK)):
            return 1  # the router has ended
        line += part
    plan = msgspec.json.decode(line, type=Plan)
    threading.Thread(target=_end_with_the_router, daemon=True).start()
    teller = _Teller()

    def ready(plan: Plan, nodes: list[NodeRunner]) -> None:
        make_ready(plan, nodes, teller)

    folder = home(os.environ)
    try:
        store = Store(folder)
        try:
            bring_up(folder, store, plan, os.environ, ready, begin=fork)
        finally:
            store.close()
    except EyasError as error:
        _print(News(error=str(error)))
        return 1
    return 0


def _end_with_the_router() -> None:
    while os.read(STDIN, CHUNK):  # not through a buffer, whose lock a thread must not hold at the end of the process
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _print(news: News) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(news) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())
