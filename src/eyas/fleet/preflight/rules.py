"""Rules of preflight: they compare what is found on one machine with what the plan needs there. Pure.

Each rule is a generator of checks; a failed one says what is wrong in one line and what to do next.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

from msgspec import Struct

from eyas.base.errors import UserError
from eyas.base.units import readable
from eyas.fleet.machines import advice as setup
from eyas.fleet.machines.listeners import holder
from eyas.fleet.preflight.findings import Findings, images_of, ports_of, program_of
from eyas.recipes.engines.install import how_to_install
from eyas.recipes.knowledge.tables import knowledge
from eyas.recipes.plan import Node, Plan
from eyas.recipes.records import CPU, METAL, Engine
from eyas.recipes.versions import satisfies

__all__ = ["RULES", "Check", "Site"]

IMAGE_BYTES = 45 << 30  # room that an engine's image takes while it is unpacked
SWAPPED_OUT = 1 << 30


class Check(Struct, frozen=True, kw_only=True):
    """Result of one check on one machine. A warning (`warn`) does not keep a plan from starting."""

    name: str
    node: str
    level: Literal["ok", "warn", "fail"]
    message: str
    next_step: str = ""

    @property
    def ok(self) -> bool:
        return self.level != "fail"


class Site(NamedTuple):
    """Machine `rank` of a plan and what was found there."""

    plan: Plan
    rank: int
    found: Findings

    @property
    def node(self) -> Node:
        return self.plan.choice.nodes[self.rank]

    @property
    def engine(self) -> Engine:
        return knowledge().engines[self.plan.choice.engine]

    def ok(self, name: str, message: str) -> Check:
        return Check(name=name, node=self.node.name, level="ok", message=message)

    def warn(self, name: str, message: str, next_step: str) -> Check:
        return Check(name=name, node=self.node.name, level="warn", message=message, next_step=next_step)

    def fail(self, name: str, message: str, next_step: str) -> Check:
        return Check(name=name, node=self.node.name, level="fail", message=message, next_step=next_step)


def gpus(site: Site) -> Iterator[Check]:
    """Check that there are as many GPUs of the planned kind as the plan uses."""
    box, machine = site.plan.box, site.found.machine
    if box.hardware.compute_capability == METAL:
        here = "there: eyas plan ... --emit shell --out DIR, then sh start.sh on the Mac"
        yield site.fail("gpu", f"the plan is for a {box.hardware.title}, this machine is none", here)
    if not site.plan.box.hardware.is_cuda:
        return
    alike = [gpu for gpu in machine.gpus if gpu.compute_capability == box.hardware.compute_capability]
    whole = [gpu for gpu in alike if not gpu.is_split]
    again = f"plan for what is here: eyas plan {site.plan.choice.model} --on here"
    if site.node.ssh is None and not box.is_probed:
        again += "; or name the machine that it is for: --node USER@HOST"
    if not machine.gpus:
        problem = machine.problems[0] if machine.problems else "there is no NVIDIA GPU"
        if site.engine.runs_on(CPU) and box.is_probed:
            slow = f"{problem}: {site.plan.choice.engine} will compute on the CPU"
            yield site.warn("gpu", slow, "well enough for a small model; for a large one plan with --on BOX")
        else:
            yield site.fail("gpu", f"{problem}, and the plan is for {box.hardware.title}", again)
    elif not alike:
        found = machine.gpus[0]
        here = f"{found.name} (compute capability {found.compute_capability})"
        planned = f"{box.hardware.title} ({box.hardware.compute_capability})"
        yield site.fail("gpu", f"the plan is for {planned}, here is {here}", again)
    elif len(whole) < box.gpus <= len(alike):
        yield site.fail("gpu", f"{len(alike) - len(whole)} of the GPUs are split by MIG", "sudo nvidia-smi -mig 0")
    elif len(whole) < box.gpus:
        yield site.fail("gpu", f"the plan uses {box.gpus} GPUs, here are {len(whole)}", again)
    elif len(whole) < len(alike):
        says = f"{len(alike) - len(whole)} of the GPUs are split by MIG; the engine may take a part of one"
        yield site.warn("gpu", says, "undo that: sudo nvidia-smi -mig 0, or hide them: export CUDA_VISIBLE_DEVICES=...")
    else:
        yield site.ok("gpu", f"{box.gpus} x {whole[0].name}")


def architecture(site: Site) -> Iterator[Check]:
    """Check the CPU architecture, for which images are built; programs that are here run here."""
    planned, here = site.plan.box.architecture, site.found.machine.architecture
    if images_of(site.plan, site.rank) and planned != here:
        again = f"plan for what is here: eyas plan {site.plan.choice.model} --on here"
        yield site.fail("architecture", f"the image is for {planned}, this machine is {here}", again)


def docker(site: Site) -> Iterator[Check]:
    """Check that docker is there, that this user may use it, and that it can hand GPUs to containers."""
    if not images_of(site.plan, site.rank):
        return
    lack = setup.docker(site.found.machine, for_gpus=site.plan.box.hardware.is_cuda)
    if lack is not None:
        yield site.fail("docker", *lack)
    else:
        yield site.ok("docker", f"docker {site.found.machine.docker.version}")


def images(site: Site) -> Iterator[Check]:
    """Check that each image is here or that its registry would give it to this user."""
    for image, said in site.found.images.items():
        registry = image.partition("/")[0]
        if said == "here":
            error = site.found.gpu_in_container.get(image, "")
            step = "look at: docker run --rm --gpus all --entrypoint nvidia-smi IMAGE"
            is_seen = not error or site.engine.runs_on(CPU)
            yield (
                site.ok("image", f"{image} is here")
                if is_seen
                else site.fail("image", f"no GPU is visible inside {image} ({error})", step)
            )
        elif said == "available":
            yield site.ok("image", f"{image} will be pulled")
        elif any(word in said.lower() for word in ("unauthorized", "denied", "authentication required", "forbidden")):
            step = f"docker login {registry}"
            if registry == "nvcr.io":
                step += " (user $oauthtoken, password: a key from ngc.nvidia.com)"
            yield site.fail("image", f"{registry} does not give {image} without a login", step)
        elif any(word in said.lower() for word in ("no such manifest", "manifest unknown", "not found")):
            yield site.fail("image", f"there is no image {image}", "choose another: eyas plan ... --image IMAGE")
        else:
            said = said or "no answer"
            says = f"{image} is not here and its registry cannot be asked ({said})"
            yield site.warn("image", says, "go online, or pull it first: docker pull IMAGE")


def driver(site: Site) -> Iterator[Check]:
    """Check that the driver supports the GPU and the CUDA of the image."""
    version = site.found.machine.driver
    if not site.plan.box.hardware.is_cuda or not version:
        return
    hardware = site.plan.box.hardware
    lack = setup.driver(version, hardware.compute_capability, hardware.title, images_of(site.plan, site.rank))
    if lack is not None:
        yield site.fail("driver", *lack)
    else:
        firmware = f", firmware {site.found.machine.firmware}" if site.found.machine.firmware else ""
        yield site.ok("driver", f"driver {version}{firmware}")


def memory(site: Site) -> Iterator[Check]:
    """Check that what the engine needs, and what it takes at its start, is free now."""
    machine, wanted = site.found.machine, site.plan.memory
    needed, taken = wanted.needed, wanted.reserved
    whole = [gpu for gpu in machine.gpus if gpu.free_bytes is not None and not gpu.is_split]
    used = whole[: site.plan.box.gpus]
    if used:
        least = min(used, key=lambda gpu: gpu.free_bytes or 0)
        free, where, step = least.free_bytes or 0, f"GPU {least.index}", "end what uses it: nvidia-smi"
    else:
        free, where, step = machine.available_bytes, "this machine", "end what uses it: ps aux --sort=-rss | head"
    if free < needed:
        yield site.fail("memory", f"{readable(needed)} are needed, {where} has {readable(free)} free", step)
    elif free < taken:
        says = f"{site.plan.choice.engine} takes {readable(taken)} at its start, {where} has {readable(free)} free"
        yield site.fail("memory", says, step) if site.engine.claims_share else site.warn("memory", says, step)
    elif machine.is_unified and machine.free_bytes < max(needed, taken):
        yield site.warn("memory", *setup.page_cache(machine))
    else:
        yield site.ok("memory", f"{readable(free)} free of {readable(max(needed, taken))} wanted")


def swap(site: Site) -> Iterator[Check]:
    """Check that a machine of unified memory has swap, and that not much of it is in use."""
    machine = site.found.machine
    out = machine.swap_bytes - machine.swap_free_bytes
    lack = setup.swap(machine)
    if lack is not None:
        yield site.warn("swap", *lack)
    elif machine.is_unified and out > SWAPPED_OUT:
        yield site.warn("swap", f"{readable(out)} are swapped out already", "sudo swapoff -a && sudo swapon -a")


def disk(site: Site) -> Iterator[Check]:
    """Check the disk's room for what is still to be downloaded, the model and the image."""
    machine = site.found.machine
    missing = sum(need.missing_bytes for need in site.found.needs)
    room = "make room (eyas models list, eyas models rm) or give another disk: --cache DIR"
    free, path = machine.disk_free_bytes, machine.disk_path
    if missing > free:
        yield site.fail("disk", f"{readable(missing)} are still to download, {path} has {readable(free)} free", room)
    elif any(said == "available" for said in site.found.images.values()) and free - missing < IMAGE_BYTES:
        says = f"{readable(free - missing)} will be left at {path}; an image takes up to {readable(IMAGE_BYTES)}"
        yield site.warn("disk", says, "make room (docker image prune, eyas models rm)")
    else:
        yield site.ok("disk", f"{readable(missing)} to download, {readable(free)} free")


def models(site: Site) -> Iterator[Check]:
    """Check that the hub gives what is still missing; report vocabulary files that will be downloaded too."""
    if site.found.hub_error:
        problem, _, step = site.found.hub_error.rpartition("; ")
        yield site.fail("models", problem, step)
        return
    names = ", ".join(f"{need.repo}{'' if need.missing_bytes else ' (here)'}" for need in site.found.needs)
    if names:
        yield site.ok("models", names)
    if site.found.vocabulary_lacks:
        yield site.ok("vocabulary", f"{' and '.join(site.found.vocabulary_lacks)} will be fetched")


def ports(site: Site) -> Iterator[Check]:
    """Check that each port is free, the server's at its own address, the others at every address."""
    choice = site.plan.choice
    for port in ports_of(site.plan, site.rank):
        is_server = site.rank == 0 and port == choice.port
        other = holder(site.found.listeners, port, choice.listen if is_server else "")
        if other is not None:
            who = f" by {other.who}" if other.who else ""
            step = "end that (eyas ps shows what eyas started), or plan with another --port"
            yield site.fail("port", f"port {port} is in use{who}", step)
        else:
            yield site.ok("port", f"port {port} is free")


def program(site: Site) -> Iterator[Check]:
    """Check that a native engine is installed, in a version whose flags the plan knows."""
    name = program_of(site.plan, site.rank)
    choice = site.plan.choice
    if name is None:
        return
    engine = site.engine
    where = f"{engine.title} {choice.version}"
    if not site.found.program:
        yield site.fail("program", f"{name} is not installed", how_to_install(choice, engine, site.plan.box))
    elif not site.found.version and engine.distribution:
        yield site.fail("program", f"{site.found.program} has no {engine.title}", f"install {where} there")
    elif not site.found.version:
        yield site.warn("program", f"{site.found.program} does not report its version", f"the plan is for {where}")
    elif not _fits(site.found.version, engine.versions):
        says = f"{name} is {site.found.version}; eyas knows {engine.title} {engine.versions}"
        yield site.fail("program", says, f"install {where}")
    elif site.found.version != choice.version:
        says = f"{name} is {site.found.version}, the plan's flags are those of {choice.version}"
        yield site.warn("program", says, f"plan again with --engine-version {site.found.version}")
    else:
        yield site.ok("program", f"{site.found.program} {site.found.version}")


def _fits(version: str, versions: str) -> bool:
    try:
        return satisfies(version, versions)
    except UserError:  # a custom build: its flags are unknown
        return True


def interfaces(site: Site) -> Iterator[Check]:
    """Check for several machines that the planned interfaces are Up and hold the planned address."""
    if len(site.plan.choice.nodes) == 1:
        return
    machine, node = site.found.machine, site.node
    by_name = {interface.name: interface for interface in machine.interfaces}
    down = [name for name in node.interfaces if name not in by_name or not by_name[name].is_up]
    pair = machine.port_pair
    if down and pair:
        step = f"move the cable to the other port, or plan with the interfaces {' and '.join(pair)}"
        yield site.fail("interfaces", f"{' and '.join(down)} are not Up, {' and '.join(pair)} are", step)
    elif down:
        yield site.fail("interfaces", f"{' and '.join(down)} are not Up", "check the cable: ip -br link")
    addresses = {address for interface in machine.interfaces for address in interface.addresses}
    if addresses and _is_address(node.address) and node.address not in addresses:
        link = node.interfaces[0] if node.interfaces else "the link"
        step = f"give it to {link} with netplan, or plan with the address that it has: --node USER@HOST=ADDRESS"
        yield site.fail("interfaces", f"no interface here has the address {node.address}", step)
    elif not down:
        yield site.ok("interfaces", f"{' and '.join(node.interfaces) or node.address} up")


def _is_address(text: str) -> bool:
    """Whether it is an IP address; a host name may stand for any."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def ssh(site: Site) -> Iterator[Check]:
    """Check ssh from the first machine to the others, for MPI."""
    for address, error in site.found.ssh_errors.items():
        step = f"on {site.node.name}: ssh-copy-id {address} && ssh {address} true"
        yield (
            site.fail("ssh", f"{site.node.name} cannot reach {address} by ssh ({error})", step)
            if error
            else site.ok("ssh", f"to {address}")
        )


RULES: tuple[Callable[[Site], Iterator[Check]], ...] = (
    *(gpus, architecture, driver, memory, swap, docker, images, program, disk, models, ports, interfaces, ssh),
)
