"""Picks the device that computes, and the dtype of matrices on it; reads how much of its memory is free."""

from __future__ import annotations

import os
import warnings
from collections.abc import MutableMapping
from pathlib import Path

import torch

from eyas.base.errors import UserError

__all__ = ["KERNEL_CAPABILITY", "available_bytes", "grow_segments", "pick_device", "shares_memory"]

ALLOCATOR_SETTINGS = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"  # torch's variable, and its old name
KERNEL_CAPABILITY = (9, 0)  # needed for bulk copies and programmatic dependent launch


def pick_device(name: str) -> tuple[torch.device, torch.dtype]:
    """Return the device and the dtype of matrices: fp32 on a CPU, bf16, as published, on a GPU. Raises UserError.

    Makes a GPU the current device of the calling thread.
    """
    has_cuda = torch.cuda.is_available()
    if name == "auto":
        name = "cuda" if has_cuda else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UserError(f"'{name}' is not a device; use cpu, cuda or cuda:N") from error
    if device.type == "cpu":
        return device, torch.float32
    if device.type != "cuda":
        raise UserError(f"device '{name}' is not supported; use cpu, cuda or cuda:N")
    if not has_cuda or (device.index or 0) >= torch.cuda.device_count():
        raise UserError(
            f"there is no device '{name}' here (CUDA devices: {torch.cuda.device_count()}); try --device cpu"
        )
    device = torch.device("cuda", device.index or 0)
    torch.cuda.set_device(device)  # per thread: kernels and graphs go to the current device
    # autograd's own thread starts without a context, and its first product makes one
    warnings.filterwarnings("ignore", "Attempting to run cuBLAS, but there was no current CUDA context")
    return device, torch.bfloat16


def grow_segments(environ: MutableMapping[str, str] = os.environ) -> None:
    """Let torch map a GPU's memory piece by piece, so that it can use for large tensors what many small ones released.

    Otherwise the target's pass and a head's step, which take turns, hold memory of their own: 3.5 and 6.3 GiB more than
    their tensors need on an H200, at 40,960 and 131,072 tokens of gpt-oss-120b. Before the first tensor on a GPU, where
    torch reads it. What the user has set stands.
    """
    if not any(environ.get(name) for name in ALLOCATOR_SETTINGS):
        environ[ALLOCATOR_SETTINGS[0]] = "expandable_segments:True"


def available_bytes(device: torch.device) -> int:
    """Return the free memory of the device; on a CPU MemAvailable: what can be had without swapping.

    The driver of a GPU that shares the host's memory does not count reclaimable page cache as free, so the larger of
    both is returned there.
    """
    if device.type == "cuda":
        free = int(torch.cuda.mem_get_info(device)[0])
        return max(free, available_bytes(torch.device("cpu"))) if shares_memory(device) else free
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise UserError("cannot read the free memory from /proc/meminfo; eyas runs on Linux")


def shares_memory(device: torch.device) -> bool:
    """Whether a GPU computes in the host's memory."""
    return bool(torch.cuda.get_device_properties(device).is_integrated)
