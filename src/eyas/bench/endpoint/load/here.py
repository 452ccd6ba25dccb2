"""Memory and energy of the machine that serves, where that is this one: by the GPUs' driver, else MemAvailable.

Both count all that is used on the machine, by any program. From outside neither can be seen.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

from eyas.bench.endpoint.records import Memory

__all__ = ["HereMeter", "memory_in_use", "read_lines"]

PERIOD_S = 0.5
MIB = 1 << 20
QUERY = ("nvidia-smi", "--query-gpu=index,memory.used,power.draw", "--format=csv,noheader,nounits")
MEMINFO = Path("/proc/meminfo")


class HereMeter:
    """Samples from `start` to `stop`, twice a second."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._lines: list[str] = []
        self._most_bytes = 0

    async def start(self) -> None:
        """Begin to measure."""
        with suppress(OSError):
            self._process = await asyncio.create_subprocess_exec(
                *QUERY,
                f"--loop-ms={round(1e3 * PERIOD_S)}",
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
        self._task = asyncio.create_task(self._sample())

    def mark(self) -> None:
        """Forget what was sampled so far: what counts begins now."""
        self._lines.clear()
        self._most_bytes = 0

    async def stop(self) -> None:
        """End it; again changes nothing."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.terminate()
            await self._process.wait()
            self._process = None

    def found(self) -> tuple[Memory | None, float | None]:
        """Return the most memory in use, and the energy of the GPUs in joules; None is what nothing tells."""
        driver_bytes, joules = read_lines(self._lines)
        if driver_bytes is not None:
            return Memory(used_bytes=driver_bytes, source="driver"), joules
        return (Memory(used_bytes=self._most_bytes, source="MemAvailable") if self._most_bytes else None), joules

    async def _sample(self) -> None:
        while True:
            with suppress(OSError, ValueError, KeyError):
                self._most_bytes = max(self._most_bytes, memory_in_use(MEMINFO.read_text("ascii")))
            if self._process is None or self._process.stdout is None:
                await asyncio.sleep(PERIOD_S)
            elif line := await self._process.stdout.readline():
                self._lines.append(line.decode("ascii", "replace"))
            else:  # it has ended
                await asyncio.sleep(PERIOD_S)


def memory_in_use(meminfo: str) -> int:
    """Return MemTotal less MemAvailable in bytes. Raises KeyError and ValueError for what is no /proc/meminfo."""
    fields = dict(line.split(":", 1) for line in meminfo.splitlines() if ":" in line)
    total, available = (int(fields[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
    return (total - available) << 10


def read_lines(lines: list[str]) -> tuple[int | None, float | None]:
    """Return the most bytes in use and the joules of all GPUs, from `nvidia-smi`'s lines; None for `[N/A]`."""
    used: dict[str, int] = {}
    watts: dict[str, list[float]] = {}
    for line in lines:
        index, *cells = (cell.strip() for cell in line.split(","))
        if len(cells) != 2:
            continue
        with suppress(ValueError):
            used[index] = max(used.get(index, 0), int(cells[0]) * MIB)
        with suppress(ValueError):
            watts.setdefault(index, []).append(float(cells[1]))
    joules = sum(sum(values) * PERIOD_S for values in watts.values()) if watts else None
    return (sum(used.values()) if used else None), joules
