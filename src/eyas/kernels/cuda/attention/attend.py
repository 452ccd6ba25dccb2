"""Attention of the decode path in one launch, from the QKV product's slices to the rows of the output projection.

It does what `kernels.reference.layers.rope_write` and `kernels.reference.layers.attend` do in sequence, for few rows a
sequence. attend.cu explains how the work is cut, and why a row's bits depend on its position and keys alone.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from eyas.kernels.cuda.attention.attend_plan import (
    DIM,
    PAGE,
    STATE_WORDS,
    Launch,
    Plan,
    Ring,
    launch_of,
    most_pieces,
    ring_of,
)
from eyas.kernels.cuda.compiler import load
from eyas.kernels.layouts.device import Limits, device_limits
from eyas.kernels.reference.layers.ops import LayerCache, Product, RopeTable, Rows

__all__ = ["MAX_WINDOW", "AttendWorkspace", "attend", "attend_workspace"]

MAX_FIRST_KEY = 128
MAX_WINDOW = 128


class AttendWorkspace(NamedTuple):
    """Partial results, all bits set between launches, for the launches of one stream on one device.

    Blocks wait for one another's, so no other kernel may hold multiprocessors meanwhile.
    """

    piece_states: Tensor  # fp32, as bits
    limits: Limits


def attend_workspace(device: torch.device, limits: Limits | None = None) -> AttendWorkspace:
    """Allocate for launches of any number of sequences. The limits are the device's by default."""
    limits = limits or device_limits(device)
    num_pieces = most_pieces(2 * limits.num_sms)  # of one tile, or half as many of two
    return AttendWorkspace(
        torch.full(((num_pieces + 1) * 16, STATE_WORDS), -1, dtype=torch.int32, device=device),
        limits,
    )


def attend(
    qkv: Product,
    rows: Rows,
    cache: LayerCache,
    rope: RopeTable,
    *,
    eps: float,
    bias_N: Tensor | None,
    sinks_Q: Tensor | None,
    window: int | None,
    first_key: int = 0,
    workspace: AttendWorkspace,
    out: Tensor | None = None,
) -> Tensor:
    """Compute `Ops.attend` as bf16 [T, Q * 64], for slices in fp32 and caches in bf16 or 8 bits.

    The bits are those of a bf16 cache with the numbers of the one in 8 bits.

    Queries stay unrounded until they are bf16 after the rotation. Dead rows write nothing and give 0.
    Without a window the rows must have the plan of their pass (`attend_plan.plan`).

    Pages, positions, tables, `live_SR` and the plan are read before the kernel waits for its predecessor: between their
    last write and this launch there must be a kernel that triggers its successor only after its own wait, as this one
    does.

    Raises ValueError on shapes that the kernel does not have, and on rows without the plan for them.
    """
    num_slices, num_tokens, _ = qkv.slices_STN.shape
    launch = _launch(qkv, rows, cache, window, first_key, workspace.limits)
    config, (num_seqs, num_rows) = launch.config, rows.positions_SR.shape
    # Small blocks of rows where that leaves none idle, as attend_plan.cu does it.
    tiles = 1 if num_seqs * launch.small_pairs <= launch.grid else config.tiles
    if out is None:
        out = torch.empty(num_tokens, launch.num_heads * DIM, dtype=torch.bfloat16, device=qkv.slices_STN.device)
    ring = ring_of(config, num_rows, workspace.limits.shared_bytes, in_fp8=cache.in_fp8)
    load("attention/attend", _defines(launch, ring, in_fp8=cache.in_fp8)).kernel("attend").launch(
        launch.grid,
        config.warps * 32,
        out,
        qkv.slices_STN,
        num_slices,
        qkv.square_sums_TP,
        0 if qkv.square_sums_TP is None else qkv.square_sums_TP.shape[1],
        eps,
        qkv.width,
        bias_N,
        rope.cos,
        rope.sin,
        cache.k,
        cache.v,
        cache.scales_PG2B,
        rows.table_SP,
        rows.table_SP.stride(0),
        rows.positions_SR,
        rows.live_SR,
        sinks_Q,
        window or 0,
        first_key,
        num_seqs,
        num_rows,
        tiles,
        None if window else rows.plan.units,
        workspace.piece_states,
        shared=ring.shared,
    )
    return out


def _defines(launch: Launch, ring: Ring, *, in_fp8: bool) -> dict[str, int]:
    config = launch.config
    return {
        "GROUP": launch.num_heads // launch.num_kv,
        "NUM_KV": launch.num_kv,
        "WARPS": config.warps,
        "TILES": config.tiles,
        "DEPTH": ring.depth,
        "EARLY": ring.early,
        "RESIDENT": config.resident,
        "KV_FP8": int(in_fp8),
    }


def _launch(qkv: Product, rows: Rows, cache: LayerCache, window: int | None, first_key: int, limits: Limits) -> Launch:
    """Return the launch; raises ValueError on shapes that the kernel does not have, and where a plan is missing."""
    num_kv, page_size, dim = cache.k.shape[1:]
    if (page_size, dim) != (PAGE, DIM):
        raise ValueError(f"attend needs pages of {PAGE} and dimension {DIM}, not {page_size} and {dim}")
    if window is not None and window > MAX_WINDOW:
        raise ValueError(f"attend takes a window of {MAX_WINDOW} at most, not {window}")
    if first_key > MAX_FIRST_KEY:
        raise ValueError(f"attend takes a first key up to {MAX_FIRST_KEY}, not {first_key}")
    num_heads = qkv.slices_STN.shape[2] // DIM - 2 * num_kv
    launch = launch_of(rows, num_heads, num_kv, limits, has_window=bool(window), in_fp8=cache.in_fp8)
    if not window and not (isinstance(rows.plan, Plan) and rows.plan.launch == launch):
        raise ValueError("attend without a window needs rows that `Ops.plan` has prepared for these heads")
    assert qkv.slices_STN.shape[1] == rows.positions_SR.numel()
    assert qkv.slices_STN.dtype == torch.float32
    return launch
