"""The machine that measures over HTTP, and mostly serves, too."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ClientMachine", "machine"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientMachine:
    """A machine as `bench/report.py` wants it; a client, like a server of the HTTP side, computes in one thread."""

    device: str
    num_cores: int
    num_threads: int
    load: float


def machine() -> ClientMachine:
    """Describe this machine."""
    names = [line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
             if line.startswith("model name")]  # fmt: skip
    cores = len(os.sched_getaffinity(0))
    device = names[0] if names else platform.machine()
    return ClientMachine(device=device, num_cores=cores, num_threads=1, load=os.getloadavg()[0])
