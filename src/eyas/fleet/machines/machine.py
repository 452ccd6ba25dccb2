"""Types for what a machine reports of itself, and parsers of what its tools print.

Pure: text in, records out. `probe.py` runs the tools. Strict: a line that is not understood becomes a problem that a
person can read, never a guess.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from eyas.recipes.emit.two_nodes import PAIRS

__all__ = ["GPU_FIELDS", "Docker", "Gpu", "Interface", "Machine", "read_machine"]

GPU_FIELDS = (
    *("index", "name", "compute_cap", "memory.total", "memory.reserved", "memory.free"),
    *("driver_version", "uuid", "mig.mode.current"),
)
UNSUPPORTED = {"[N/A]", "N/A", "[Not Supported]", "Not Supported"}
MIB = 1 << 20
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


class Gpu(Struct, frozen=True, kw_only=True):
    """A GPU as the driver describes it. Memory is None where it is the machine's own (unified).

    `usable_bytes` is all but what the driver reserves, `free_bytes` what is unused at the moment.
    """

    index: int
    name: str
    compute_capability: str
    memory_bytes: int | None
    usable_bytes: int | None
    free_bytes: int | None
    driver: str
    uuid: str
    is_split: bool = False  # by MIG: only slices of it can be used


class Interface(Struct, frozen=True, kw_only=True):
    """A network interface. `rdma` is its RoCE or InfiniBand device, `speed` bits per second where it is known."""

    name: str
    is_up: bool
    addresses: tuple[str, ...] = ()
    rdma: str | None = None
    speed: float | None = None


class Docker(Struct, frozen=True, kw_only=True):
    state: Literal["missing", "not running", "not permitted", "usable", "broken"]
    version: str = ""
    has_gpus: bool = False  # the NVIDIA container toolkit is there
    detail: str = ""  # what docker said, where it is broken


class Machine(Struct, frozen=True, kw_only=True):
    """A machine at one moment. Bytes; `problems` are lines for people."""

    user: str
    architecture: str
    gpus: tuple[Gpu, ...]
    memory_bytes: int
    available_bytes: int  # what the system could give, page cache included
    free_bytes: int  # of it, what is unused, page cache excluded
    swap_bytes: int
    swap_free_bytes: int
    disk_path: str
    disk_free_bytes: int
    docker: Docker
    interfaces: tuple[Interface, ...] = ()
    links: tuple[str, ...] = ()  # kinds of links between its GPUs, e.g. ("NV18",) or ("PHB", "SYS")
    firmware: str = ""
    problems: tuple[str, ...] = ()

    @property
    def is_unified(self) -> bool:
        """Whether the GPU works in the machine's own memory."""
        return any(gpu.memory_bytes is None for gpu in self.gpus)

    @property
    def driver(self) -> str:
        return self.gpus[0].driver if self.gpus else ""

    @property
    def port_pair(self) -> tuple[str, ...]:
        """Return the two interfaces of the ConnectX-7 port of a Spark whose cable is in, or nothing."""
        up = {interface.name for interface in self.interfaces if interface.is_up}
        return next((pair for pair in PAIRS if up.issuperset(pair)), ())


def read_machine(sections: Mapping[str, str]) -> Machine:
    """Parse what the probe's script printed, by section. Raises ValueError if a required section is malformed."""
    gpus, problems = read_gpus(sections["gpus"], has_device="0x10de" in sections["pci"])
    memory = read_meminfo(sections["meminfo"])
    disk_free, disk_path = sections["disk"].split(maxsplit=1)
    return Machine(
        user=sections["user"],
        architecture=sections["architecture"],
        gpus=gpus,
        memory_bytes=memory["MemTotal"],
        available_bytes=memory["MemAvailable"],
        free_bytes=memory["MemFree"],
        swap_bytes=memory["SwapTotal"],
        swap_free_bytes=memory["SwapFree"],
        disk_path=disk_path,
        disk_free_bytes=int(disk_free) * 1024,
        docker=read_docker(sections["docker"], sections["runtimes"]),
        interfaces=read_interfaces(sections["interfaces"], sections["addresses"]),
        links=read_links(sections["topology"]),
        firmware=" ".join(sections["firmware"].split()),
        problems=problems,
    )


def read_gpus(text: str, *, has_device: bool = False) -> tuple[tuple[Gpu, ...], tuple[str, ...]]:
    """Parse GPUs and problems from `nvidia-smi --query-gpu=GPU_FIELDS --format=csv,noheader,nounits` and its exit code.

    The code stands on the last line as `exit N`. `has_device`: an NVIDIA device is on the PCI bus.
    """
    *lines, last = (line for line in text.splitlines() if line.strip())
    code = int(last.removeprefix("exit "))
    said = " ".join(" ".join(lines).split())
    if code == 127 and not has_device:
        return (), ()
    if code == 127:
        return (), ("an NVIDIA GPU is there but no driver (nvidia-smi); install the NVIDIA driver",)
    if code == 124:
        return (), ("nvidia-smi does not answer; reboot the machine, its driver hangs",)
    if "No devices were found" in said:
        return (), ("the NVIDIA driver finds no GPU; look into `sudo dmesg | grep -i nvrm`",)
    if "Driver/library version mismatch" in said:
        return (), ("the NVIDIA driver was updated while in use; reboot the machine",)
    if "is not a valid field to query" in said:
        return (), ("the NVIDIA driver is too old to describe the GPU; install one of 2023 or later",)
    if code != 0:
        return (), (f"nvidia-smi fails with exit code {code}: {said[:200] or 'no message'}; reinstall the driver",)
    gpus, problems = [], []
    for line in lines:
        try:
            gpus.append(_gpu(line))
        except ValueError:
            problems.append(f"nvidia-smi describes a GPU oddly ({line[:120]!r}); it is left out")
    return tuple(gpus), tuple(problems)


def _gpu(line: str) -> Gpu:
    fields = [field.strip() for field in line.split(", ")]
    if len(fields) != len(GPU_FIELDS):
        raise ValueError(line)
    index, name, capability, total, reserved, free, driver, uuid, mig = fields
    is_sane = re.fullmatch(r"\d+\.\d+", capability) and uuid.startswith("GPU-") and re.fullmatch(r"[\d.]+", driver)
    if not is_sane or not name or name.startswith("["):
        raise ValueError(line)
    memory = _mebibytes(total)
    return Gpu(
        index=int(index),
        name=name,
        compute_capability=capability,
        memory_bytes=memory,
        usable_bytes=None if memory is None else memory - (_mebibytes(reserved) or 0),
        free_bytes=_mebibytes(free),
        driver=driver,
        uuid=uuid,
        is_split=mig == "Enabled",
    )


def _mebibytes(text: str) -> int | None:
    return None if text in UNSUPPORTED else int(text) * MIB


def read_meminfo(text: str) -> dict[str, int]:
    """Parse bytes by name from /proc/meminfo."""
    found = re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)
    return {name: int(kilobytes) * 1024 for name, kilobytes in found}


def read_links(text: str) -> tuple[str, ...]:
    """Parse the kinds of links between GPUs in the matrix of `nvidia-smi topo -m`; nothing for a single GPU."""
    lines = [line.split("\t") for line in ESCAPES.sub("", text).splitlines()]
    rows = [[cell.strip() for cell in line] for line in lines if re.fullmatch(r"GPU\d+", line[0].strip())]
    kinds = {cell for row in rows for cell in row[1 : len(rows) + 1]}
    return tuple(sorted(kinds - {"X", ""}))


def read_docker(version: str, runtimes: str) -> Docker:
    """Parse `docker version`, its exit code, and the runtimes that `docker info` names."""
    *lines, last = version.strip().splitlines()
    said = " ".join(" ".join(lines).split())
    if last == "exit 127":
        return Docker(state="missing")
    if "permission denied" in said.lower():
        return Docker(state="not permitted")
    if "Cannot connect to the Docker daemon" in said or "failed to connect to the docker API" in said:
        return Docker(state="not running")
    if last != "exit 0":
        return Docker(state="broken", detail=said[:200])
    return Docker(state="usable", version=said, has_gpus="nvidia" in runtimes)


def read_interfaces(text: str, addresses: str) -> tuple[Interface, ...]:
    """Parse `NAME STATE SPEED RDMA` lines (`-` where there is none) and, if `ip` exists, `ip -json address`."""
    by_name: dict[str, list[str]] = {}
    for entry in json.loads(addresses or "[]"):
        found = [item["local"] for item in entry.get("addr_info", ()) if item.get("scope") in ("global", "link")]
        by_name[entry["ifname"]] = found
    interfaces = []
    for line in text.splitlines():
        name, state, speed, rdma = line.split()
        interfaces.append(
            Interface(
                name=name,
                is_up=state == "up",
                addresses=tuple(by_name.get(name, ())),
                rdma=None if rdma == "-" else rdma,
                speed=float(speed) * 1e6 if speed.isdecimal() and int(speed) > 0 else None,
            )
        )
    return tuple(interfaces)
