"""Writes a plan as a Slurm batch script: containers through the pyxis plugin (`srun --container-image`), or processes.

Containers of pyxis share the machine's network, GPUs and limits, so docker's options for these have no counterpart.
"""

from __future__ import annotations

from eyas.base.errors import UserError
from eyas.recipes.emit import blocks, checks, slurm_mpi
from eyas.recipes.emit.shell import LITERAL
from eyas.recipes.emit.words import assignments, heredoc, script_line, shell, slug
from eyas.recipes.engines.common import base_url
from eyas.recipes.plan import Home, Launch, Mount, Node, Plan, Word
from eyas.recipes.records import CPU, METAL

__all__ = ["render"]

IMPLIED = {"--gpus", "--ipc", "--shm-size", "--network", "--ulimit", "--device"}


def render(plan: Plan) -> dict[str, str]:
    """Render the script. Raises UserError for what pyxis cannot express: options of docker, paths with `:` or `,`."""
    choice = plan.choice
    if plan.box.hardware.compute_capability == METAL:
        raise UserError("Slurm runs on Linux, and this plan is for a Mac; use --emit shell")
    if slurm_mpi.is_mpi(plan):
        plan = slurm_mpi.by_slurm(plan)
    if any("mpirun" in launch.argv for launch in plan.emission.launches):
        raise UserError("this plan starts MPI over ssh, which Slurm does itself; use --emit shell or `eyas up`")
    lines = ["#!/bin/bash", *_directives(plan), LITERAL, "set -euo pipefail", "", blocks.BASICS + _hosts(plan)]
    lines += [*blocks.required(blocks.references(plan)), *checks.for_downloads(plan), ""]
    lines.append("# Checks and files on every node, then the downloads into a cache that all of them see")
    for rank in range(len(choice.nodes)):
        script = "\n".join(["set -eu", blocks.BASICS, *checks.in_job(plan, rank), *blocks.files(plan, rank)]) + "\n"
        lines.append(heredoc(f"{_srun(rank)} bash", script, "SCRIPT").removesuffix("\n"))
    lines += [*blocks.fetch(plan), "", "pids=()", "trap 'kill \"${pids[@]}\" 2>/dev/null || :' EXIT", ""]
    for launch in plan.emission.launches:
        lines += [*_launch(plan, launch), ""]
    lines += [*_ask(plan), "wait"]
    return {f"{slug(choice.name)}.sbatch": "\n".join(lines) + "\n"}


def _directives(plan: Plan) -> list[str]:
    nodes = plan.choice.nodes
    settings = {
        "job-name": slug(plan.choice.name),
        "nodes": str(len(nodes)),
        "ntasks-per-node": str(plan.box.gpus if slurm_mpi.is_mpi(plan) else 1),
        "time": "24:00:00",
        "output": "%x-%j.log",
    }
    if plan.box.hardware.compute_capability != CPU:
        settings["gpus-per-node"] = str(plan.box.gpus)
    if len(nodes) > 1 and all(node.ssh for node in nodes):
        settings["nodelist"] = ",".join(map(_host, nodes))
    return [f"#SBATCH --{name}={value}" for name, value in settings.items()] + ["#SBATCH --exclusive"]


def _host(node: Node) -> str:
    """Return the name in `user@host`, by which Slurm should know the machine too. Raises UserError for what is none."""
    host = (node.ssh or "").rpartition("@")[2]
    if slug(host) != host:
        raise UserError(f"Slurm knows no node by the name of {host!r}; name it with --node USER@HOST=ADDRESS")
    return host


def _hosts(plan: Plan) -> str:
    """Write the hosts by rank: those that the plan names and whose addresses it holds, else those that Slurm chose."""
    nodes = plan.choice.nodes
    if len(nodes) > 1 and all(node.ssh for node in nodes):
        return f"hosts=({' '.join(map(_host, nodes))})\n"
    return 'mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")\n'


def _srun(rank: int) -> str:
    return f'srun --overlap --nodes=1 --ntasks=1 --nodelist="${{hosts[{rank}]}}"'


def _ranks(plan: Plan) -> str:
    """Return the step of all ranks of TensorRT-LLM, the first of which is on the first machine."""
    tasks = f"--nodes={len(plan.choice.nodes)} --ntasks={plan.box.num_gpus} --ntasks-per-node={plan.box.gpus}"
    return f'srun --overlap --mpi=pmix {tasks} --nodelist="$(IFS=,; printf %s "${{hosts[*]}}")"'


def _launch(plan: Plan, launch: Launch) -> list[str]:
    is_ranks = slurm_mpi.is_mpi(plan) and launch.name == slurm_mpi.SERVER
    words = [*assignments(launch.env), _ranks(plan) if is_ranks else _srun(launch.node)]
    if launch.container is not None:
        words += ["--no-container-mount-home", f"--container-name={slug(launch.container.name)}"]
        words.append(f"--container-image={shell(_image(launch.container.image))}")
        if launch.container.mounts:
            words.append(f"--container-mounts={_mounts(launch.container.mounts)}")
    elif launch.inside is not None:
        name = slug(blocks.container_of(plan, launch.inside))
        words += ["--no-container-mount-home", f"--container-name={name}:exec"]
    if launch.env and (launch.container is not None or launch.inside is not None):
        words.append(f"--container-env={','.join(variable.name for variable in launch.env)}")
    if launch.container is not None:  # pyxis runs no entry point by itself
        words += map(shell, _entry_point(launch.container.options))
    words += map(shell, launch.argv)
    if launch.is_once:
        return [f"say {shell(f'{launch.name} ...')}", f"{script_line(words)} || fail {shell(f'{launch.name} failed')}"]
    log = f"{slug(launch.name)}-$SLURM_JOB_ID.log"
    lines = [f"say {shell(f'starting {launch.name}')}", script_line([*words, f'>"{log}" 2>&1 &'])]
    lines += ["pid=$!", 'pids+=("$pid")']
    test = None
    if launch.wait.log is not None:
        test = f'grep -Eq -e {shell(launch.wait.log)} "{log}"'
    elif launch.wait.port is not None:
        test = f"{_srun(launch.node)} {blocks.listens(plan, launch.wait.port)}"
    if test is not None:
        lines += [
            f"deadline_in {launch.wait.timeout_s:.0f}",
            f"until {test}; do",
            *_while_alive(launch.name, f"was not up within {launch.wait.timeout_s:.0f} s"),
            "done",
        ]
    return lines


def _while_alive(name: str, late: str) -> list[str]:
    ended = shell(f"{name} ended")
    return [f'    kill -0 "$pid" || fail {ended}', f"    in_time || fail {shell(f'{name} {late}')}", "    sleep 1"]


def _entry_point(options: tuple[str, ...]) -> list[str]:
    """Return the entry point among docker's options. Raises UserError for options that have no counterpart."""
    found = []
    rest = list(options)
    while rest:
        flag, has_value, setting = rest.pop(0).partition("=")
        if flag not in IMPLIED and flag != "--entrypoint":
            raise UserError(f"docker's option {flag} cannot be written for Slurm; use --emit shell")
        if not has_value:
            setting = rest.pop(0)
        if flag == "--entrypoint":
            found = [setting]
    return found


def _image(name: str) -> str:
    """Return the image's name for enroot, which separates the registry from the rest by `#`."""
    registry, slash, rest = name.partition("/")
    return f"{registry}#{rest}" if slash and ("." in registry or ":" in registry) else name


def _mounts(mounts: tuple[Mount, ...]) -> str:
    parts: list[Word] = []
    for mount in mounts:
        for text in (mount.source.path if isinstance(mount.source, Home) else mount.source, mount.target):
            if isinstance(text, str) and any(mark in text for mark in ":,\n"):
                raise UserError(f"pyxis cannot mount {text!r}: a path with a colon, a comma or a line end")
        parts += [*([","] if parts else []), mount.source, f":{mount.target}{':ro' if mount.read_only else ''}"]
    return shell(*parts)


def _ask(plan: Plan) -> list[str]:
    """Write the question to the server on its machine, which need not be the one where the batch script runs."""
    ready = plan.emission.readiness
    curl = [*([_srun(0)] if len(plan.choice.nodes) > 1 else []), "curl"]
    url = shell(base_url(plan.choice) + ready.path)
    return [
        f"say {shell(f'waiting for {base_url(plan.choice)}{ready.path}')}",
        f"deadline_in {ready.timeout_s:.0f}",
        f"until {' '.join(curl)} {blocks.CURL} --fail --output /dev/null --max-time 30 {url}; do",
        *_while_alive("the server", f"was not ready within {ready.timeout_s:.0f} s"),
        "done",
        *blocks.sample(plan, curl),
    ]
