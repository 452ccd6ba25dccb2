"""Writes a plan as scripts of sh: `start.sh` writes files, downloads, starts and asks; `stop.sh` ends it all.

For this machine alone everything is in these two; otherwise each node has its own script, which they send over ssh.
"""

from __future__ import annotations

from eyas.recipes.emit import blocks, checks, two_nodes
from eyas.recipes.emit.words import shell
from eyas.recipes.plan import Plan

__all__ = ["LITERAL", "render"]

LITERAL = "# shellcheck disable=SC2016  # what stands in single quotes is meant literally"

# On the way out with an error, everything that was started is stopped.
GUARD = """\
cleanup() {
    code=$?
    trap - EXIT
    if [ "$code" -ne 0 ]; then
        say 'stopping what was started'
        sh "$here/stop.sh" || :
    fi
    exit "$code"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM"""

CARRY = """\
carry() { # the variables named, as commands that set them: through a pipe, so that no list of processes shows them
    for name in "$@"; do
        awk -v name="$name" 'BEGIN {
            value = ENVIRON[name]
            gsub(/\\047/, "\\047\\\\\\047\\047", value)
            printf "export %s=\\047%s\\047\\n", name, value
        }'
    done
}"""


def render(plan: Plan) -> dict[str, str]:
    if len(plan.choice.nodes) == 1 and plan.choice.nodes[0].ssh is None:
        return {"start.sh": _start_here(plan), "stop.sh": _stop_here(plan)}
    scripts = {f"node-{rank}.sh": _node(plan, rank) for rank in range(len(plan.choice.nodes))}
    more = two_nodes.render(plan) if len(plan.choice.nodes) > 1 else {}
    return {"start.sh": _start(plan), "stop.sh": _stop(plan), **scripts, **more}


def _head(plan: Plan, does: str) -> list[str]:
    choice = plan.choice
    where = f"{plan.box.name} with {choice.engine} {choice.version}"
    title = " ".join(f"# {does} {choice.name}: {choice.model} on {where}.".split())
    return ["#!/bin/sh", title, LITERAL, "set -eu", "", blocks.LIBRARY]


def _start_here(plan: Plan) -> str:
    lines = _head(plan, "Starts")
    lines += ['here=$(cd -- "$(dirname -- "$0")" && pwd)', *blocks.required(blocks.references(plan)), ""]
    lines += ["# What must be so before", *checks.check(plan, 0), "", GUARD, ""]
    lines += ["# Files and downloads", *blocks.files(plan, 0), *blocks.fetch(plan), ""]
    for launch in plan.emission.launches:
        lines += [*blocks.up(plan, launch), ""]
    return "\n".join([*lines, "# Ready?", *blocks.ask(plan)]) + "\n"


def _stop_here(plan: Plan) -> str:
    lines = _head(plan, "Stops")
    for launch in reversed(plan.emission.launches):
        lines += blocks.down(plan, launch)
    return "\n".join(lines) + "\n"


def _node(plan: Plan, rank: int) -> str:
    """Write all steps of one node; a call runs one. sh reads it whole before running: it may come through a pipe."""
    steps = {
        "check": checks.check(plan, rank),
        "files": blocks.files(plan, rank),
        "fetch": blocks.fetch(plan),
    }
    for number, launch in enumerate(plan.emission.launches):
        if launch.node == rank:
            steps[f"up {number}"] = blocks.up(plan, launch)
            steps[f"down {number}"] = blocks.down(plan, launch) or [":"]
    if rank == 0:
        steps["ask"] = blocks.ask(plan)
    lines = [*_head(plan, f"What node {rank} does for"), "main() {", 'case "$*" in']
    for name, body in steps.items():
        lines += [f"{shell(name)})", *(body or [":"]), ";;"]
    return "\n".join([*lines, '*) fail "no step $*" ;;', "esac", "}", 'main "$@" </dev/null']) + "\n"


def _start(plan: Plan) -> str:
    names = blocks.references(plan)
    lines = [*_head(plan, "Starts"), *_callers(plan, names), *blocks.required(names), ""]
    ranks = range(len(plan.choice.nodes))
    lines += [*(f"on_{rank} check" for rank in ranks), "", GUARD, ""]
    lines += [f"on_{rank} {step}" for step in ("files", "fetch") for rank in ranks]
    lines += [f"on_{launch.node} up {number}" for number, launch in enumerate(plan.emission.launches)]
    return "\n".join([*lines, "on_0 ask"]) + "\n"


def _stop(plan: Plan) -> str:
    """Write `stop.sh`, which goes on where a node cannot be reached, and says so at the end."""
    lines = [*_head(plan, "Stops"), *_callers(plan, ()), "failed="]
    for number, launch in reversed(list(enumerate(plan.emission.launches))):
        if not launch.is_once:
            lines.append(f"on_{launch.node} down {number} || failed=yes")
    return "\n".join([*lines, "[ -z \"$failed\" ] || fail 'not everything could be stopped'"]) + "\n"


def _callers(plan: Plan, names: tuple[str, ...]) -> list[str]:
    lines = ['here=$(cd -- "$(dirname -- "$0")" && pwd)']
    if any(node.ssh for node in plan.choice.nodes) and names:
        lines.append(CARRY)
    for rank, node in enumerate(plan.choice.nodes):
        script = f'"$here/node-{rank}.sh"'
        if node.ssh is None:
            lines.append(f'on_{rank}() {{ sh {script} "$@"; }}')
            continue
        ssh = f'ssh -o BatchMode=yes {shell(node.ssh)} sh -s -- "$@"'
        if names:
            lines.append(f"on_{rank}() {{ {{ carry {' '.join(names)}; cat {script}; }} | {ssh}; }}")
        else:
            lines.append(f"on_{rank}() {{ {ssh} <{script}; }}")
    return lines
