"""What the commands do to deployments: bring one up under a supervisor, follow it, take it down. Prints nothing."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from eyas.base.errors import UserError
from eyas.fleet.deployment import Deployment, secrets_of
from eyas.fleet.node import NodeRunner, runner
from eyas.fleet.state import Event, Row, Store, is_supervised, lock
from eyas.fleet.supervisor import limits_of, log_path, spawn
from eyas.recipes.plan import Plan

__all__ = ["bring_up", "follow", "nodes_of", "take_down"]

LOOK_S = 0.1  # between two looks at what a supervisor recorded
PID_S = 5.0  # until whoever holds a deployment says which process it is

Show = Callable[[Event], None]
Ready = Callable[[Plan, list[NodeRunner]], None]


def nodes_of(plan: Plan, environ: Mapping[str, str]) -> list[NodeRunner]:
    return [runner(node, environ) for node in plan.choice.nodes]


def bring_up(folder: Path, store: Store, plan: Plan, environ: Mapping[str, str], make_ready: Ready) -> bool:
    """Have a supervisor look after `plan`: a new start, or of what runs already. False if one does so already.

    `make_ready` checks the machines and downloads; it is called for a new start only. Nothing is recorded or started
    when it raises. Raises UserError where another plan of the name runs or a secret is not set.
    """
    name = plan.choice.name
    secrets_of(plan, environ)
    limits_of(environ)
    nodes = nodes_of(plan, environ)
    held = lock(folder, name)
    row = store.find(name)
    is_there = row is not None and (row.is_active or bool(store.launches(name)))
    try:
        if row is not None and row.plan != plan and (is_there or held is None):
            raise UserError(f"{name} is up with another plan; stop it first: eyas down {name}")
        if held is None:
            if row is None or not row.is_active:
                raise UserError(f"another eyas is about to start {name}; wait for it: eyas ps")
            return False
        if row is None or not is_there:
            make_ready(plan, nodes)
            row = store.put(plan)
        elif row.is_active:
            store.record(name, "starting", "taking over")
        else:
            store.renew(name)
        store.set_supervisor(name, None)
        store.set_supervisor(name, spawn(folder, name, held))
    finally:
        if held is not None:
            os.close(held)
    return True


def follow(folder: Path, store: Store, name: str, show: Show, after: int) -> Row:
    """Show events until the deployment is ready or has ended; returns how it then is. Raises UserError if nobody
    looks after it any more."""
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
                f"nobody looks after {name} any more, why may stand in {log_path(folder, name)}; "
                f"take over what runs: eyas up {name}"
            )
        time.sleep(LOOK_S)


def take_down(folder: Path, store: Store, row: Row, environ: Mapping[str, str], show: Show) -> None:
    """Stop everything of a deployment on all machines. Raises UserError for what could not be stopped."""
    name = row.name
    after = max((event.id for event in store.events(name)), default=0)
    was_supervised = False
    while (held := lock(folder, name)) is None:
        was_supervised = True
        os.kill(_supervisor(store, name), signal.SIGTERM)
        while is_supervised(folder, name):
            for event in store.events(name, after):
                show(event)
                after = event.id
            time.sleep(LOOK_S)
    try:
        row = store.get(name)
        if not was_supervised and (row.is_active or store.launches(name)):
            store.record(name, "stopping", "stopping")
            deployment = Deployment(row, nodes_of(row.plan, environ), store, limits_of(environ), {})
            left = deployment.stop()
            deployment.close()
            text = f"still to be stopped: {'; '.join(left)}; run eyas down again" if left else "stopped"
            store.record(name, "failed" if left else "stopped", text)
        if store.launches(name):
            raise UserError(f"{name}: {store.get(name).note}")
    finally:
        os.close(held)


def _supervisor(store: Store, name: str) -> int:
    """The process that holds the deployment, once it has said so."""
    deadline = time.monotonic() + PID_S
    while (pid := store.get(name).supervisor) is None:
        if time.monotonic() > deadline:
            raise UserError(f"another eyas is about to start {name}; end that one first, with Ctrl-C")
        time.sleep(LOOK_S)
    return pid
