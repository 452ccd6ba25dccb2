"""Meters of pools: how much memory there is, how much is used, and by whom. Every read may block for seconds.

Of unified memory MemAvailable counts, not what CUDA calls free: there the page cache is used, and NVML knows nothing
(GB10). A driver that does not answer, or says something else, is a MeterError.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

from eyas.base.errors import EyasError
from eyas.router.memory.events import Reading
from eyas.router.memory.processes import members, pss
from eyas.router.settings.schema import PoolSettings

__all__ = ["Meter", "MeterError", "meter_of"]

KIB, MIB = 1 << 10, 1 << 20
DRIVER_S = 10.0
SMI = "nvidia-smi"
MEMINFO = Path("/proc/meminfo")
PRESSURE = Path("/proc/pressure/memory")


class MeterError(EyasError):
    """Memory cannot be measured now."""


class Meter(Protocol):
    """Reads a pool. `are_owners_whole`: what processes hold is all that counts as theirs."""

    are_owners_whole: bool

    def read(self, launches: Mapping[str, Iterable[str]]) -> Reading:
        """Return a reading; `launches` are marks of what runs of each backend. Raises MeterError."""


def meter_of(pool: PoolSettings) -> Meter:
    """Return the meter of a pool."""
    match pool.kind:
        case "unified":
            return Unified(pool.size)
        case "gpu":
            return Gpu(pool.gpu, pool.size)
        case "size":
            assert pool.size is not None
            return Part(pool.size)


class Unified:
    """The machine's memory. What its GPU allocates are no pages of a process: what a load changed says whose it is."""

    are_owners_whole = False

    def __init__(self, size: int | None = None) -> None:
        self._size = size

    def read(self, launches: Mapping[str, Iterable[str]]) -> Reading:
        total, available = _meminfo()
        some, full = _stalls()
        owners = {owner: pss(pids) for owner, pids in members(launches).items()}
        return Reading(self._size or total, total - available, owners, some, full)


class Part:
    """A size that is given, of which the processes of the pool's backends are all."""

    are_owners_whole = True

    def __init__(self, size: int) -> None:
        self._size = size

    def read(self, launches: Mapping[str, Iterable[str]]) -> Reading:
        try:
            owners = {owner: pss(pids) for owner, pids in members(launches).items()}
        except OSError as error:
            raise MeterError(f"/proc cannot be read: {error.strerror}") from None
        some, full = _stalls()
        return Reading(self._size, sum(owners.values()), owners, some, full)


class Gpu:
    """The memory of one GPU, by its driver. Processes in containers may have other numbers there, or none."""

    are_owners_whole = True

    def __init__(self, index: int, size: int | None = None) -> None:
        self._index, self._size = index, size

    def read(self, launches: Mapping[str, Iterable[str]]) -> Reading:
        total, used = self._ask("--query-gpu=memory.total,memory.used")[0]
        held = dict(self._ask("--query-compute-apps=pid,used_memory", is_lenient=True))
        owners = {owner: sum(held.get(pid, 0) for pid in pids) * MIB for owner, pids in members(launches).items()}
        return Reading(self._size or total * MIB, used * MIB, owners)

    def _ask(self, query: str, *, is_lenient: bool = False) -> list[tuple[int, int]]:
        argv = [SMI, query, "--format=csv,noheader,nounits", "-i", str(self._index)]
        try:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=DRIVER_S, check=False)
        except FileNotFoundError:
            raise MeterError(f"there is no {SMI} here") from None
        except (OSError, subprocess.TimeoutExpired):
            raise MeterError(f"{SMI} does not answer within {DRIVER_S:g} s") from None
        if done.returncode != 0:
            said = " ".join((done.stdout + done.stderr).split())[:200]
            raise MeterError(f"{SMI} says: {said or f'exit code {done.returncode}'}")
        rows = [line.split(",") for line in done.stdout.splitlines() if line.strip()]
        found = [
            (int(row[0]), int(row[1]))
            for row in rows
            if len(row) == 2 and row[0].strip().isdigit() and row[1].strip().isdigit()
        ]
        if not found and not is_lenient:
            raise MeterError(f"{SMI} does not know this GPU's memory; on unified memory the pool wants kind: unified")
        return found


def _meminfo() -> tuple[int, int]:
    """Return MemTotal and MemAvailable in bytes. Raises MeterError."""
    try:
        found = {line.partition(":")[0]: line.split()[1] for line in MEMINFO.read_text().splitlines()}
        return int(found["MemTotal"]) * KIB, int(found["MemAvailable"]) * KIB
    except (OSError, KeyError, ValueError, IndexError):
        raise MeterError(f"{MEMINFO} cannot be read") from None


def _stalls() -> tuple[float, float]:
    """Return the percent of the last 10 s in which some, and all, tasks stalled for memory; 0 where it is not known."""
    try:
        lines = dict(line.split(" ", 1) for line in PRESSURE.read_text().splitlines())
        some, full = (float(lines[name].partition("avg10=")[2].split()[0]) for name in ("some", "full"))
    except (OSError, KeyError, ValueError, IndexError):
        return 0.0, 0.0
    return some, full
