"""Causal attention of prompt rows without a window on Hopper, whose warpgroups share the keys and values they read.

flash.cu explains how the work is cut, and why a row's bits depend on its own position and keys alone. What it does not
take is `kernels.triton.prompts.flash`'s.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from eyas.kernels.cuda.attention.attend_plan import DIM, PAGE
from eyas.kernels.cuda.compiler import load
from eyas.kernels.layouts.device import device_limits
from eyas.kernels.reference.layers.ops import LayerCache, Rows

__all__ = ["defines", "flash_attend", "hopper_attention", "shared_bytes", "together_of", "warpgroups_of"]

ROWS = 64  # of a warpgroup: positions times the query heads of a key/value head
GROUPS = (4, 8, 16)  # query heads of a key/value head
COST = {3: 20, 2: 16, 1: 12}  # warpgroups of a block: how long it takes, measured on an H200, of 8 stages
DEPTH = 8  # stages
PLACES = 4  # blocks of bytes under way in 8 bits
STAGE_BYTES = 2 * 64 * DIM * 2  # 64 keys and values
PLACE_BYTES = 2 * 64 * (DIM + 1)  # with the bytes of their powers of two
OTHER_THREADS = 128  # which bring keys and values


def flash_attend(q_TQD: Tensor, rows: Rows, cache: LayerCache, *, sinks_Q: Tensor | None) -> Tensor | None:
    """Attention bf16 [T, Q D] of R rows of each of S sequences, whose keys and values are in their pages already.

    Caches are in bf16 or in 8 bits, with the bits of a bf16 cache that has the same numbers. None where the kernel does
    not take these heads, pages or types. Keys at or behind a sequence's rows are not read.
    """
    num_tokens, num_heads, dim = q_TQD.shape
    num_seqs, num_rows = rows.positions_SR.shape
    _, num_kv, page_size, _ = cache.k.shape
    group = num_heads // num_kv
    if (page_size, dim) != (PAGE, DIM) or group not in GROUPS or num_heads % num_kv:
        return None
    if q_TQD.dtype != torch.bfloat16 or not (cache.in_fp8 or cache.k.dtype == torch.bfloat16):
        return None
    assert sinks_Q is None or sinks_Q.dtype == torch.float32
    warpgroups = warpgroups_of(num_seqs, num_rows, group, num_kv, device_limits(q_TQD.device).num_sms)
    positions = ROWS // group  # of a warpgroup; a sequence may start inside of the first one's
    together = together_of(num_seqs, num_rows, group, warpgroups)
    num_blocks = -(-(num_rows + positions - 1) // (warpgroups * positions))
    out = torch.empty(num_tokens, num_heads * DIM, dtype=torch.bfloat16, device=q_TQD.device)
    constants = defines(group, num_kv, warpgroups, has_sinks=sinks_Q is not None, in_fp8=cache.in_fp8)
    load("attention/flash", constants).kernel("flash").launch(
        (-(-num_seqs // together) * together * num_blocks, num_kv),
        128 * warpgroups + OTHER_THREADS,
        q_TQD,
        cache.k,
        cache.v,
        cache.scales_PG2B,
        rows.table_SP,
        rows.table_SP.shape[1],
        rows.positions_SR,
        sinks_Q,
        out,
        num_seqs,
        num_rows,
        num_blocks,
        together,
        DIM**-0.5 * math.log2(math.e),
        shared=shared_bytes(in_fp8=cache.in_fp8),
    )
    return out


def hopper_attention(device: torch.device) -> Callable[..., Tensor | None] | None:
    """Return `flash_attend` where the device has its instructions, else None."""
    return flash_attend if device_limits(device).has_wgmma else None


@functools.cache
def warpgroups_of(num_seqs: int, num_rows: int, group: int, num_kv: int, num_sms: int) -> int:
    """Return the warpgroups of a block: as many as leave no multiprocessor idle. No bit depends on it."""

    def cost(warpgroups: int) -> int:
        together = together_of(num_seqs, num_rows, group, warpgroups)
        num_blocks = -(-num_seqs // together) * -(-together * num_rows * group // (warpgroups * ROWS))
        return -(-num_blocks * num_kv // num_sms) * COST[warpgroups]

    return min(COST, key=cost)


def together_of(num_seqs: int, num_rows: int, group: int, warpgroups: int) -> int:
    """Return how many sequences share blocks if they are tiles of one, as they are in a pass over a long prompt."""
    does_fill = num_rows * group % (warpgroups * ROWS) == 0
    return warpgroups if num_seqs >= warpgroups and num_rows * group % ROWS == 0 and not does_fill else 1


def shared_bytes(*, in_fp8: bool = False) -> int:
    """Return bytes of the stages, of what becomes bf16 there, and of barriers, a multiple of 1,024."""
    needed = DEPTH * (STAGE_BYTES + 4 * 8) + (PLACES * PLACE_BYTES if in_fp8 else 0)
    return -(-needed // 1024) * 1024


def defines(group: int, num_kv: int, warpgroups: int, *, has_sinks: bool, in_fp8: bool = False) -> dict[str, int]:
    """Return the constants of flash.cu."""
    return {
        "GROUP": group, "NUM_KV": num_kv, "SINKS": int(has_sinks), "KV_FP8": int(in_fp8), "WARPGROUPS": warpgroups,
        "DEPTH": DEPTH, "PLACES": PLACES,
    }  # fmt: skip
