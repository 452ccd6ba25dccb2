"""What a machine itself may lack, whatever runs on it: docker, a driver, swap; each with the command that helps. Pure.

Preflight asks for what a plan needs, doctor for all.
"""

from __future__ import annotations

from typing import NamedTuple

from eyas.base.units import readable
from eyas.fleet.machines.machine import Machine
from eyas.recipes.versions import compare

__all__ = ["Lack", "docker", "driver", "page_cache", "swap"]

MIN_DRIVERS = {  # CUDA release notes: the first driver branch that knows a GPU
    "12.1": "580",
    "12.0": "570",
    "10.0": "570",
    "9.0": "525",
}
OLDEST_DRIVER = "525"


class Lack(NamedTuple):
    """One line about what is wrong, and one about what to do."""

    message: str
    next_step: str


def docker(machine: Machine, *, for_gpus: bool) -> Lack | None:
    """Docker is not there, not for this person, or (`for_gpus`) cannot hand GPUs to containers."""
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


def driver(version: str, compute_capability: str, title: str, *, at_least: str = "0", why: str = "") -> Lack | None:
    """The driver does not know the GPU called `title`, or is older than `at_least`, for the reason `why`."""
    by_gpu = MIN_DRIVERS.get(compute_capability, OLDEST_DRIVER)
    least = max((by_gpu, f"the GPU needs it ({title})"), (at_least, why), key=lambda one: int(one[0]))
    if compare(version, least[0]) >= 0:
        return None
    return Lack(f"driver {version} is older than {least[0]}: {least[1]}", f"install driver {least[0]} or later")


def swap(machine: Machine) -> Lack | None:
    """On unified memory a peak while loading ends the engine where there is no swap."""
    if not machine.is_unified or machine.swap_bytes:
        return None
    return Lack("no swap: a peak while loading would end the engine", "add 16 GiB of swap")


def page_cache(machine: Machine) -> Lack:
    """What the kernel would give back to programs, and the GPU of unified memory does not get."""
    cached = readable(machine.available_bytes - machine.free_bytes)
    return Lack(
        f"{cached} of page cache count as used for the GPU",
        "drop it: sudo sh -c 'sync; echo 3 > /proc/sys/vm/drop_caches'",
    )
