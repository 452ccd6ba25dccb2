"""The hardware that figures were measured on: device name, cores and threads."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

import torch

__all__ = ["Hardware", "hardware"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Hardware:
    """A machine: `num_cores` that this process may use, `load` average of the last minute, a GPU's id for `nvidia-smi`.

    The id is not a device's index: `CUDA_VISIBLE_DEVICES` renumbers those.
    """

    device: str
    num_cores: int
    num_threads: int
    load: float
    gpu_id: str | None = None


def hardware(device: torch.device) -> Hardware:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu_name()
    return Hardware(
        device=name,
        num_cores=len(os.sched_getaffinity(0)),
        num_threads=torch.get_num_threads(),
        load=os.getloadavg()[0],
        gpu_id=f"GPU-{torch.cuda.get_device_properties(device).uuid}" if device.type == "cuda" else None,
    )


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
