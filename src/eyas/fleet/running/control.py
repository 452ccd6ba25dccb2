"""Brings a deployment up under a supervisor, follows it and takes it down, for the commands. Prints nothing."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from eyas.base.errors import UserError
from eyas.fleet.machines.node import NodeRunner, runner
from eyas.fleet.running.deployment import secrets_of, stop_launches
from eyas.fleet.running.policy import Limits
from eyas.fleet.running.state import Event, Row, StateError, Store, holder, is_supervised, lock, sign
from eyas.fleet.running.supervisor import limits_of, log_path, spawn
from eyas.recipes.plan import Node, Plan

__all__ = ["bring_up", "follow", "nodes_of", "take_down"]

LOOK_S = 0.1  # between two looks at what a supervisor recorded

Show = Callable[[Event], None]
Ready = Callable[[Plan, list[NodeRunner]], None]


def nodes_of(plan: Plan, environ: Mapping[str, str]) -> list[NodeRunner]:
    return [runner(node, environ) for node in plan.choice.nodes]


def bring_up(
    folder: Path,
    store: Store,
    plan: Plan,
    environ: Mapping[str, str],
    make_ready: Ready,
    *,
    begin: Callable[[Path, str, int], None] = spawn,
) -> bool:
    """Start a supervisor for `plan`, from scratch or over what already runs. Returns False if there is one already.

    `begin` starts the supervisor. `make_ready` checks the machines and downloads; it is called for a new start only.
    Nothing is recorded or started when it raises. Raises UserError where another plan of the name runs or a secret is
    not set.
    """
    name = plan.choice.name
    secrets_of(plan, environ)
    limits_of(environ)
    nodes = nodes_of(plan, environ)
    held = lock(folder, name)
    try:
        row = store.find(name)
        is_there = row is not None and (row.is_active or bool(store.launches(name)))
        if row is not None and not _starts_the_same(row.plan, plan) and (is_there or held is None):
            raise UserError(f"{name} is up with another plan; stop it first: eyas down {name}")
        if held is None:
            if row is None or not row.is_active:
                raise UserError(f"another eyas is about to start {name}; wait for it: eyas ps")
            return False
        sign(held, os.getpid())
        if row is None or not is_there:
            make_ready(plan, nodes)
            row = store.put(plan)
        elif row.is_active:
            store.record(name, "starting", "taking over")
        else:
            store.renew(name)
        begin(folder, name, held)
    finally:
        if held is not None:
            os.close(held)
    return True


def follow(folder: Path, store: Store, name: str, show: Show, after: int, *, within_s: float = math.inf) -> Row:
    """Show events until the deployment is ready or has ended; return how it then is.

    Raises UserError if its supervisor is gone, or if neither has come within `within_s`.
    """
    end = time.monotonic() + within_s
    while True:
        is_alive = is_supervised(folder, name)
        for event in store.events(name, after):
            show(event)
            after = event.id
        row = store.get(name)
        if row.status == "ready" or (not row.is_active and not is_alive):
            return row
        if not is_alive:
            raise UserError(
                f"the supervisor of {name} has ended; the reason may be in {log_path(folder, name)}; "
                f"take over what runs: eyas up {name}"
            )
        if time.monotonic() >= end:
            raise UserError(f"{name} is not ready within {max(within_s, 0.0):.0f} s")
        time.sleep(LOOK_S)


def take_down(
    folder: Path, store: Store, name: str, environ: Mapping[str, str], show: Show, *, is_forgotten: bool = False
) -> None:
    """Stop everything of a deployment on all machines, and its supervisor or a command that is about to start it.

    With `is_forgotten`, what cannot be stopped is given up. Raises UserError for what could not be stopped.
    """
    limits = limits_of(environ)
    news = _News(store, name, show)
    held = _take_over(folder, store, name, limits, news)
    try:
        found, launches = store.standing(name), store.launches(name)
        if found is None or (found.status == "stopped" and not launches):
            return
        if launches:
            with suppress(StateError):  # first of all it is stopped
                store.record(name, "stopping", "stopping")
            news.show()
        left = stop_launches(
            store, name, launches, lambda row: runner(Node(name=row.node, ssh=row.ssh), environ), limits
        )
        if left and not is_forgotten:
            text = f"still to be stopped: {'; '.join(left.values())}; run eyas down again"
            with suppress(StateError):
                store.record(name, "failed", text)
            raise UserError(f"{name}: {text} (--forget gives up what is gone for good)")
        try:
            for position in left:
                store.stopped(name, position)
            store.record(name, "stopped", f"given up: {'; '.join(left.values())}" if left else "stopped")
        except StateError as error:
            raise UserError(f"{name} is stopped, but that could not be recorded: {error}") from None
    finally:
        news.show()
        os.close(held)


def _take_over(folder: Path, store: Store, name: str, limits: Limits, news: _News) -> int:
    """Return the lock of a deployment, once the process that holds it has finished its clean-up."""
    asked: int | None = None
    patience_s = (limits.grace_s + limits.stop_s) * (1 + len(store.launches(name)))
    deadline = time.monotonic() + patience_s
    while (held := lock(folder, name)) is None:
        pid = holder(folder, name)
        if pid is not None and pid != asked:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            asked = pid
        if time.monotonic() > deadline and asked is None:
            raise UserError(f"another eyas down stops {name} since {patience_s:g} s; wait for it or end that one")
        if time.monotonic() > deadline:
            raise UserError(
                f"{name}: process {asked} looks after it and has not stopped it within {patience_s:g} s; "
                f"end that one, then stop it: kill -9 {asked}; eyas down {name}"
            )
        news.show()
        time.sleep(LOOK_S)
    return held


class _News:
    """Shows what is recorded of a deployment from its creation on."""

    def __init__(self, store: Store, name: str, show: Show) -> None:
        self._store = store
        self._name = name
        self._show = show
        self._after = max((event.id for event in store.events(name)), default=0)

    def show(self) -> None:
        for event in self._store.events(self._name, self._after):
            self._show(event)
            self._after = event.id


def _starts_the_same(one: Plan, other: Plan) -> bool:
    """Whether two plans start the same things; the rest, such as what is known to have run, may differ."""
    return (one.choice, one.emission) == (other.choice, other.emission)
