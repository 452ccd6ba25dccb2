"""Limits of a device by which launches are cut."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch

__all__ = ["Limits", "device_limits"]


class Limits(NamedTuple):
    num_sms: int  # multiprocessors
    shared_bytes: int  # of shared memory that one block may have: 227 KiB on data center GPUs, 99 KiB on others
    has_wgmma: bool = False  # Hopper's matrix instruction of a warpgroup


@functools.cache
def device_limits(device: torch.device) -> Limits:
    """Return the limits of a GPU. A CPU, which runs the kernels for tests alone, counts as a small one."""
    if device.type == "cpu":
        return Limits(1, 99 << 10)
    properties: Any = torch.cuda.get_device_properties(device)  # PyTorch's stubs lack the second
    return Limits(
        properties.multi_processor_count, properties.shared_memory_per_block_optin, has_wgmma=properties.major == 9
    )
