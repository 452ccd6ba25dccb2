"""Finds what preflight needs to know of a machine in addition to the probe: ports, images, programs, folders.

It only looks: no image is pulled, nothing is written.
"""

from __future__ import annotations

import re

from msgspec import Struct

from eyas.fleet.machines.listeners import LISTENERS, Listener, read_listeners
from eyas.fleet.machines.machine import Machine
from eyas.fleet.machines.node import NodeRunner
from eyas.fleet.machines.probe import look
from eyas.fleet.machines.sections import ask
from eyas.fleet.models.download import HubError, Need, needs
from eyas.fleet.models.vocabulary import lacking, wants_vocabulary
from eyas.recipes.emit.words import shell
from eyas.recipes.engines import front, ray, sglang
from eyas.recipes.engines.mpi import SSH_PORT
from eyas.recipes.knowledge.tables import knowledge
from eyas.recipes.plan import Plan

__all__ = [
    "Findings",
    "find",
    "images_of",
    "ports_of",
    "program_of",
    "read_image",
    "read_version",
]

FIND_S = 180
REGISTRY_S = 30
CONTAINER_S = 60
MEETING_PORTS = {"torch": sglang.RENDEZVOUS_PORT, "ray": ray.PORT}  # on the first of several machines


class Findings(Struct, frozen=True, kw_only=True):
    """Findings on one machine. Empty where the plan does not ask for them."""

    machine: Machine
    listeners: tuple[Listener, ...]
    images: dict[str, str]  # image: "here", "available" or what the registry answered
    gpu_in_container: dict[str, str]  # image that is here: "" or what went wrong
    program: str = ""  # path of a native engine
    version: str = ""
    needs: tuple[Need, ...] = ()
    hub_error: str = ""
    vocabulary_lacks: tuple[str, ...] = ()
    ssh_errors: dict[str, str] = {}  # address of another node: what ssh said


def find(plan: Plan, rank: int, node: NodeRunner) -> Findings:
    """Look at `node` as machine `rank` of `plan`. Raises NodeError: it cannot be reached."""
    machine = look(node, cache=plan.choice.cache)
    images = images_of(plan, rank) if machine.docker.state == "usable" else ()
    script = LISTENERS + "".join(_image_script(number, image, plan) for number, image in enumerate(images))
    script += _program_script(plan, rank) + _ssh_script(plan, rank)
    sections = ask(node, script, timeout_s=FIND_S)
    found: tuple[Need, ...] = ()
    hub_error = ""
    try:
        found = needs(plan, node)
    except HubError as error:
        hub_error = str(error)
    version = sections.get("version", "")
    return Findings(
        machine=machine,
        listeners=read_listeners(sections["listeners"]),
        images={image: read_image(sections[f"image-{number}"]) for number, image in enumerate(images)},
        gpu_in_container={
            image: read_exit(sections[f"gpu-{number}"])
            for number, image in enumerate(images)
            if f"gpu-{number}" in sections
        },
        program=sections.get("program", "").strip(),
        version=read_version(version),
        needs=found,
        hub_error=hub_error,
        vocabulary_lacks=lacking(node) if wants_vocabulary(plan) else (),
        ssh_errors={
            other.address: read_exit(sections[f"ssh-{number}"])
            for number, other in enumerate(plan.choice.nodes)
            if f"ssh-{number}" in sections
        },
    )


def images_of(plan: Plan, rank: int) -> tuple[str, ...]:
    launches = plan.emission.launches
    found = [launch.container.image for launch in launches if launch.node == rank and launch.container is not None]
    return tuple(dict.fromkeys(found))


def ports_of(plan: Plan, rank: int) -> tuple[int, ...]:
    """Return ports that must be free on machine `rank`: the server's, those of launches, and rendezvous ports."""
    choice = plan.choice
    waits = [launch.wait.port for launch in plan.emission.launches if launch.node == rank]
    own = [*front.ports(plan)] if rank == 0 else []
    joined_by = knowledge().engines[choice.engine].joined_by if len(choice.nodes) > 1 else None
    if joined_by == "mpi":
        own.append(SSH_PORT)
    if rank == 0 and joined_by in MEETING_PORTS:
        own.append(MEETING_PORTS[joined_by])
    return tuple(dict.fromkeys([*own, *(port for port in waits if port is not None)]))


def program_of(plan: Plan, rank: int) -> str | None:
    """Return the program of a native engine on machine `rank`; None where all of it runs in containers."""
    for launch in plan.emission.launches:
        is_native = launch.container is None and launch.inside is None and not launch.is_once
        is_native &= launch.name != front.LAUNCH
        if launch.node == rank and is_native and isinstance(launch.argv[0], str):
            return launch.argv[0]
    return None


def _image_script(number: int, image: str, plan: Plan) -> str:
    """Write sh that checks that the image is here and sees the GPU, or that the registry would give it to this user."""
    name = shell(image)
    gpu = f"timeout {CONTAINER_S} docker run --rm --network none --gpus all --entrypoint nvidia-smi {name} -L"
    seen = f"section gpu-{number}; {gpu} 2>&1; printf '\\nexit %s\\n' $?" if plan.box.hardware.is_cuda else ":"
    return f"""
section image-{number}
if docker image inspect {name} >/dev/null 2>&1; then
  echo here
  {seen}
else
  timeout {REGISTRY_S} docker manifest inspect {name} 2>&1 >/dev/null && echo available
fi
"""


def _program_script(plan: Plan, rank: int) -> str:
    program = program_of(plan, rank)
    if program is None:
        return ""
    name = shell(program)
    script = f"section program; command -v {name}\nsection version\n"
    distribution = knowledge().engines[plan.choice.engine].distribution
    if not distribution:
        return script + f"timeout 20 {name} --version 2>&1\n"
    # Importing the engine takes many seconds; its metadata do not. A program's interpreter is on its first line.
    return (
        script
        + f"""
python=$(sed -n '1s/^#! *//p' "$(command -v {name})" 2>/dev/null)
"${{python:-{name}}}" -c 'import importlib.metadata as m; print(m.version("{distribution}"))' 2>/dev/null
"""
    )


def _ssh_script(plan: Plan, rank: int) -> str:
    """Write sh that checks ssh from the first machine, by which MPI starts its ranks with this user's keys."""
    if rank != 0 or knowledge().engines[plan.choice.engine].joined_by != "mpi":
        return ""
    options = "-o BatchMode=yes -o ConnectTimeout=5 -o StrictHostKeyChecking=yes -o LogLevel=ERROR"
    return "".join(
        f"section ssh-{number}; asked ssh {options} -- {shell(node.address)} :\n"
        for number, node in enumerate(plan.choice.nodes)
        if number != 0
    )


def read_image(text: str) -> str:
    lines = text.split("\n")
    return lines[-1] if lines[-1] in ("here", "available") else " ".join(text.split())[-300:]


def read_exit(text: str) -> str:
    """Return what a command printed if it failed; nothing if it did not."""
    *lines, last = text.split("\n")
    return "" if last == "exit 0" else " ".join(" ".join(lines).split())[-300:] or last


def read_version(text: str) -> str:
    """Find the version in some output: `0.5.23`, `eyas 0.1.0`, `version: 10158 (abc)`, `ollama version is 1.2`."""
    build = re.search(r"^version: (\d+) \(", text, re.MULTILINE)
    if build:
        return f"b{build[1]}"
    number = re.search(r"\b\d+\.\d+[\w.+-]*", text)
    return number[0] if number else ""
