"""Starts and stops the engines of a sweep, as `eyas up` and `eyas down` do: preflight, supervisor, canary."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from eyas.base.errors import UserError
from eyas.fleet.machines.node import NodeRunner
from eyas.fleet.models.download import Progress
from eyas.fleet.preflight.check import Check
from eyas.fleet.preflight.make_ready import make_ready
from eyas.fleet.preflight.plan_file import check_plan
from eyas.fleet.running.control import bring_up, follow, take_down
from eyas.fleet.running.state import Event, Store, is_supervised
from eyas.recipes.engines.common import base_url
from eyas.recipes.plan import Plan
from eyas.tune.guard import Guard

__all__ = ["Servers", "free_port"]

Say = Callable[[str], None]


class Servers:
    """Context manager over the deployments of a sweep; at its end, whatever that is, all of them are down."""

    def __init__(self, folder: Path, environ: Mapping[str, str], say: Say) -> None:
        self._folder, self._environ, self._say = folder, environ, say
        self._guard: Guard | None = None
        self._store: Store | None = None
        self._up: list[str] = []

    def __enter__(self) -> Servers:
        self._store = Store(self._folder)
        self._guard = Guard()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            for name in list(self._up)[::-1]:
                self.stop(name)
        finally:
            if self._guard is not None:
                self._guard.close()
            if self._store is not None:
                self._store.close()

    def start(self, plan: Plan, *, within_s: float = math.inf) -> str:
        """Start a plan, and return its URL once it is ready. Raises UserError where it does not become so in time."""
        assert self._store is not None and self._guard is not None
        name, store = plan.choice.name, self._store
        check_plan(plan)
        if is_supervised(self._folder, name) or store.launches(name):  # of a sweep that was killed with its guard
            take_down(self._folder, store, name, self._environ, lambda event: None)
        after = max((event.id for event in store.events(name)), default=0)
        self._guard.tell(f"+{name}")
        self._up.append(name)
        try:
            bring_up(self._folder, store, plan, self._environ, self._make_ready)
            row = follow(self._folder, store, name, _fail_early, after, within_s=within_s)
            if row.status != "ready":
                raise UserError(row.note or "it did not become ready")
        except UserError as error:
            self.stop(name)
            raise UserError(f"{error} (eyas logs {name} --explain)") from None
        return base_url(plan.choice)

    def stop(self, name: str) -> None:
        """Stop a deployment of the sweep."""
        assert self._store is not None and self._guard is not None
        if is_supervised(self._folder, name) or self._store.launches(name):
            take_down(self._folder, self._store, name, self._environ, lambda event: None)
        self._guard.tell(f"-{name}")
        self._up.remove(name)

    def _make_ready(self, plan: Plan, nodes: list[NodeRunner]) -> None:
        make_ready(plan, nodes, _Listener(self._say), environ=self._environ)


class _Listener:
    """Says what takes long before a start."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._said: set[str] = set()

    def checked(self, checks: Sequence[Check]) -> None:
        """Failed ones are errors of the start."""

    def pulling(self, image: str, node: str) -> None:
        self._once(f"pulls {image}")

    def downloading(self, progress: Progress) -> None:
        self._once(f"downloads {progress.repo}")

    def _once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._say(text)


def free_port() -> int:
    """Return a port of the loopback address that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _fail_early(event: Event) -> None:
    """Give an arm up that has ended once; a deployment would be tried again."""
    if event.status == "restarting":
        raise UserError(event.text)
