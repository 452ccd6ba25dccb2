"""Decides how the weights of a checkpoint can lie on a device: whether they fit, and whether its kernels read them."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable

import torch

from eyas.base.errors import UserError
from eyas.base.units import readable
from eyas.model.checkpoints.device_layout import has_device_layout
from eyas.model.checkpoints.shards import StoredTensor
from eyas.model.config import GptOssConfig
from eyas.model.devices import KERNEL_CAPABILITY, available_bytes

__all__ = ["can_use_kernels", "check_room", "weight_bytes"]

log = logging.getLogger(__name__)


def can_use_kernels(device: torch.device, config: GptOssConfig) -> bool:
    """Whether this GPU has kernels for these shapes; if not, plain operations are used, which are correct and slow."""
    if device.type != "cuda":
        return False
    capability = torch.cuda.get_device_capability(device)
    if capability < KERNEL_CAPABILITY:
        log.warning(
            "compute capability %d.%d: the kernels need 9.0 (Hopper) or newer; plain operations are slow", *capability
        )
        return False
    if not has_device_layout(config):
        log.warning("the kernels do not have this model's shapes; plain operations are slow")
        return False
    return True


def weight_bytes(tensors: Iterable[StoredTensor], dtype: torch.dtype, *, packed: bool = True) -> int:
    """Return the bytes of weights in memory, with matrices in `dtype`; `packed` experts count as they are stored."""
    return sum(
        (tensor.num_bytes if packed else 0) if tensor.dtype == "U8" else math.prod(tensor.shape) * dtype.itemsize
        for tensor in tensors
    )


def check_room(
    tensors: Iterable[StoredTensor], device: torch.device, dtype: torch.dtype, *, is_mapped: bool = True
) -> None:
    """Raises UserError before loading if the weights cannot fit: matrices in `dtype`, and packed experts.

    On a CPU these stay in the mapped files, if there are files.
    """
    packed = device.type == "cuda" or not is_mapped
    needed, room = weight_bytes(tensors, dtype, packed=packed), available_bytes(device)
    if needed > room:
        raise UserError(f"too little memory: the weights need {readable(needed)}, {device} has {readable(room)} free")
