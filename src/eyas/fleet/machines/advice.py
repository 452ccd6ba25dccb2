"""Checks for what a machine may lack: docker, a driver, swap; each with the command that helps. Pure.

Preflight runs the checks that a plan needs, doctor all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from eyas.base.units import readable
from eyas.fleet.machines.machine import Machine
from eyas.recipes.knowledge.drivers import least_driver
from eyas.recipes.versions import compare

__all__ = ["Lack", "docker", "driver", "page_cache", "swap"]


class Lack(NamedTuple):
    """A line about what is wrong, and one about what to do."""

    message: str
    next_step: str


def docker(machine: Machine, *, for_gpus: bool) -> Lack | None:
    """Report that docker is missing, not allowed for this user, or (`for_gpus`) cannot hand GPUs to containers."""
    found, user = machine.docker, machine.user
    match found.state:
        case "missing":
            return Lack("docker is not installed", "install it: https://docs.docker.com/engine/install")
        case "not running":
            return Lack("docker's daemon does not run", "start it: sudo systemctl start docker")
        case "not permitted":
            return Lack(f"{user} may not use docker", f"sudo usermod -aG docker {user}, then log in again")
        case "broken":
            return Lack(f"docker fails: {found.detail}", "look at: docker version")
    if for_gpus and not found.has_gpus:
        configure = "sudo nvidia-ctk runtime configure && sudo systemctl restart docker"
        return Lack("docker cannot hand GPUs to containers", f"install nvidia-container-toolkit, then: {configure}")
    return None


def driver(version: str, compute_capability: str, title: str, images: Iterable[str] = ()) -> Lack | None:
    """Report that the driver does not know the GPU `title`, or is too old for one of the images."""
    least, why = least_driver(compute_capability, title, images)
    if compare(version, least) >= 0:
        return None
    return Lack(f"driver {version} is older than {least}: {why}", f"install driver {least} or later")


def swap(machine: Machine) -> Lack | None:
    """Report missing swap: on unified memory a peak while loading ends the engine without it."""
    if not machine.is_unified or machine.swap_bytes:
        return None
    return Lack("no swap: a peak while loading would end the engine", "add 16 GiB of swap")


def page_cache(machine: Machine) -> Lack:
    """Report page cache that the kernel would give back to programs but not to the GPU of unified memory."""
    cached = readable(machine.available_bytes - machine.free_bytes)
    return Lack(
        f"{cached} of page cache count as used for the GPU",
        "drop it: sudo sh -c 'sync; echo 3 > /proc/sys/vm/drop_caches'",
    )
