"""Checks whether a plan could start now: looks at all of its machines, changes nothing, reports everything at once."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from eyas.fleet.machines.node import NodeError, NodeRunner
from eyas.fleet.preflight.findings import Findings, find
from eyas.fleet.preflight.rules import RULES, Check, Site
from eyas.recipes.emit import blocks
from eyas.recipes.knowledge.tables import knowledge
from eyas.recipes.plan import Plan

__all__ = ["Check", "check"]

SAME_USER = ("mpi", "ray")  # torch does not care


def check(plan: Plan, nodes: Sequence[NodeRunner], environ: Mapping[str, str] | None = None) -> tuple[Check, ...]:
    """Run all checks of `plan` on `nodes` (rank 0 first), machine by machine; each failed one has its next step.

    `environ` is where the plan's references are looked up (default: this process's). Raises nothing for what a check
    can say.
    """
    environ = os.environ if environ is None else environ
    with ThreadPoolExecutor(len(nodes)) as pool:
        others = [pool.submit(_find, plan, rank, node) for rank, node in enumerate(nodes) if rank]
        found = [_find(plan, 0, nodes[0]), *(look.result() for look in others)]  # Ctrl-C ends what this thread does
    checks: list[Check] = [*_environment(plan, nodes[0].name, environ)]
    for rank, one in enumerate(found):
        if isinstance(one, Check):
            checks.append(one)
        else:
            checks += [item for rule in RULES for item in rule(Site(plan, rank, one))]
    checks += _same_user(plan, [one for one in found if isinstance(one, Findings)])
    return tuple(checks)


def _find(plan: Plan, rank: int, node: NodeRunner) -> Findings | Check:
    try:
        return find(plan, rank, node)
    except NodeError as error:
        problem, _, step = str(error).partition("; ")
        return Check(name="reach", node=plan.choice.nodes[rank].name, level="fail", message=problem, next_step=step)


def _environment(plan: Plan, node: str, environ: Mapping[str, str]) -> Iterator[Check]:
    """Check that every variable that the plan refers to is set where eyas runs."""
    for name in blocks.secrets(plan):
        if environ.get(name):
            yield Check(name="environment", node=node, level="ok", message=f"{name} is set")
            continue
        hint = " (a new one: eyas key)" if name == plan.choice.api_key_env else ""
        message, step = f"the plan refers to ${name}, which is not set", f"export {name}=...{hint}"
        yield Check(name="environment", node=node, level="fail", message=message, next_step=step)


def _same_user(plan: Plan, found: Sequence[Findings]) -> Iterator[Check]:
    """Check that the user name is the same on all machines, as MPI and Ray expect."""
    joined_by = knowledge().engines[plan.choice.engine].joined_by
    if len(plan.choice.nodes) == 1 or not found or joined_by not in SAME_USER:
        return
    users = {one.machine.user for one in found}
    node = plan.choice.nodes[0].name
    if len(users) > 1:
        named = " and ".join(sorted(users))
        step = "use the same one on all: --node USER@HOST"
        yield Check(name="user", node=node, level="fail", message=f"user names differ: {named}", next_step=step)
    else:
        yield Check(name="user", node=node, level="ok", message=f"{users.pop()} on all machines")
