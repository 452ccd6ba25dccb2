"""The ways in which a device can compute a head's attention, and which of them are there.

plain    operations of PyTorch in blocks: any device, any dtype
kernels  our kernels alone: no atomic operations, so two runs of a step give the same bits
flash    the same, and torch's flash attention for keys that all rows of a pass see
cudnn    the same with cuDNN's
"""

from __future__ import annotations

import logging
from typing import Literal, NamedTuple

import torch

from eyas.base.errors import UserError
from eyas.model.config import Eagle3Config
from eyas.model.devices import KERNEL_CAPABILITY

__all__ = ["Way", "WayName", "find_way"]

log = logging.getLogger(__name__)

WayName = Literal["auto", "plain", "kernels", "flash", "cudnn"]
AUTOMATIC: WayName = "flash"  # where the kernels run and nothing was measured (`choosing.py`)
MAX_GROUP = 16  # query heads that share a key-value head, in a tile of rows
MIN_DIM, MAX_DIM = 16, 128  # of a head


class Way(NamedTuple):
    uses_kernels: bool
    library: Literal["flash", "cudnn"] | None = None


def find_way(name: WayName, config: Eagle3Config, device: torch.device, dtype: torch.dtype) -> Way:
    """Return how attention is computed. `auto` takes the fastest that is there, and warns if a GPU has none.

    Raises UserError if a way is asked for by name that this device, dtype or head does not have.
    """
    if name == "plain":
        return Way(False)
    why = _obstacle(config, device, dtype)
    if why is None:
        chosen = AUTOMATIC if name == "auto" else name
        return Way(True, chosen if chosen in ("flash", "cudnn") else None)
    if name != "auto":
        raise UserError(f"train.attention: {name} is not possible here: {why}; `plain` is")
    if device.type == "cuda":
        log.warning("attention of the head by plain operations, which are slow: %s", why)
    return Way(False)


def _obstacle(config: Eagle3Config, device: torch.device, dtype: torch.dtype) -> str | None:
    """Return why the kernels cannot compute this head, if so."""
    if device.type != "cuda":
        return f"{device} is no GPU"
    if dtype not in (torch.bfloat16, torch.float16):
        return f"products are in {str(dtype).removeprefix('torch.')}, the kernels take bf16"
    if torch.cuda.get_device_capability(device) < KERNEL_CAPABILITY:
        return "the kernels need compute capability 9.0 (Hopper) or newer"
    group, dim = config.num_heads // config.num_kv_heads, config.head_dim
    if group & (group - 1) or group > MAX_GROUP or dim & (dim - 1) or not MIN_DIM <= dim <= MAX_DIM:
        return f"they have no heads of {dim} values, {group} to a key-value head"
    return None
