"""Attention of the decode path in one launch, from the QKV product's slices to the rows of the output projection.

It does what `kernels.reference.rope_write` and `kernels.reference.attend` do in sequence, for few rows a sequence.
attend.cu explains how the work is cut, and why a row's bits depend on its position and keys alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from eyas.kernels.cuda.compiler import load
from eyas.kernels.layouts.device import Limits, device_limits
from eyas.kernels.reference.ops import LayerCache, Product, RopeTable, Rows

__all__ = ["DIM", "GROUPS", "MAX_WINDOW", "AttendWorkspace", "attend", "attend_workspace"]

DIM = 64
GROUPS = (4, 8)  # query heads of a key/value head
PAGE = 16
CHAIN = 2  # steps of a warp in a leaf
MAX_SEQS = 64
MAX_ROWS = 32
TILES = 2  # of 16 pairs of row and query head, most in a block
MAX_DEPTH = 5
MAX_FIRST_KEY = 128
MAX_WINDOW = 128
STATIC_SHARED_BYTES = 1280  # what the kernel declares, and the system's own
STATE_WORDS = DIM + 4  # of a row and query head: output, peak, sum, padding


class AttendWorkspace(NamedTuple):
    """Partial results and tickets (zero between launches), for the launches of one stream on one device."""

    piece_states: Tensor
    tickets: Tensor
    limits: Limits


class _Config(NamedTuple):
    warps: int
    tiles: int  # a block, most
    depth: int  # copies of 32 keys, or values, that a warp has under way
    resident: int  # blocks a multiprocessor
    shared: int  # bytes

    def defines(self, group: int, num_kv: int) -> dict[str, int]:
        sizes = {"WARPS": self.warps, "TILES": self.tiles, "DEPTH": self.depth, "RESIDENT": self.resident}
        return {"GROUP": group, "NUM_KV": num_kv, **sizes}


def _shared_bytes(warps: int, depth: int, tiles: int, num_rows: int) -> int:
    states = 16 * STATE_WORDS * 4
    return warps * (depth * 2 * PAGE * DIM * 2 + states) + tiles * 16 * DIM * 2 + num_rows * 2 * DIM * 2


def _config(num_rows: int, group: int, shared_limit: int, *, crowded: bool) -> _Config:
    """Choose the launch. The number of warps, on which bits depend, follows from the device alone; the rest is speed.

    `crowded`: there are more sequences and heads than multiprocessors, so blocks follow each other on one.
    """
    limit = shared_limit - STATIC_SHARED_BYTES
    warps = 8 if _shared_bytes(8, 2, TILES, MAX_ROWS) <= limit else 4
    tiles = min(TILES, -(-num_rows * group // 16))
    if crowded and tiles == 1 and 2 * _shared_bytes(warps, 2, tiles, num_rows) <= limit - STATIC_SHARED_BYTES:
        return _Config(warps, tiles, 2, 2, _shared_bytes(warps, 2, tiles, num_rows))
    depth = MAX_DEPTH
    while _shared_bytes(warps, depth, tiles, num_rows) > limit:
        depth -= 1
    return _Config(warps, tiles, depth, 1, _shared_bytes(warps, depth, tiles, num_rows))


def attend_workspace(
    max_seqs: int,
    max_rows: int,
    heads: Iterable[tuple[int, int]],
    device: torch.device,
    limits: Limits | None = None,
) -> AttendWorkspace:
    """Allocate for launches of up to `max_seqs` sequences of up to `max_rows` rows, with any of these numbers of query
    heads and of key/value heads. The limits are the device's by default.
    """
    limits = limits or device_limits(device)
    num_pieces, num_states = 0, 0
    for num_heads, num_kv in heads:
        row_blocks = -(-max_rows * num_heads // num_kv // 16)
        pieces = _most_pieces(2 * limits.num_sms, max_seqs, num_kv, row_blocks)
        num_pieces, num_states = max(num_pieces, pieces), max(num_states, pieces * min(row_blocks, TILES) * 16)
    return AttendWorkspace(
        torch.empty(num_states, STATE_WORDS, dtype=torch.float32, device=device),
        torch.zeros(num_pieces, dtype=torch.int32, device=device),
        limits,
    )


def _most_pieces(grid: int, num_seqs: int, num_kv: int, row_blocks: int) -> int:
    """Bound the pieces of a launch of this many blocks, as `plan_all` of attend_plan.cuh does."""
    return grid + num_seqs * -(-row_blocks // TILES) * num_kv


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
    """Compute `Ops.attend` as bf16 [T, Q * 64], for slices in fp32 and caches in bf16.

    Queries stay unrounded until they are bf16 after the rotation. Dead rows write nothing and give 0.
    `rows.max_length` bounds the grid and nothing else.

    Pages, positions, tables and `live_SR` are read before the kernel waits for its predecessor: between their last
    write and this launch there must be a kernel that triggers its successor only after its own wait, as this one does.

    Raises ValueError on shapes that the kernel does not have, or that the workspace was not made for.
    """
    num_slices, num_tokens, _ = qkv.slices_STN.shape
    num_heads = _num_heads(qkv, rows, cache, window, first_key)
    num_kv, (num_seqs, num_rows) = cache.k.shape[2], rows.positions_SR.shape
    group = num_heads // num_kv
    row_blocks = -(-num_rows * group // 16)
    crowded = num_seqs * num_kv * row_blocks > workspace.limits.num_sms
    config = _config(num_rows, group, workspace.limits.shared_bytes, crowded=crowded)
    leaves = 1 if window else -(-rows.max_length // (CHAIN * 32 * config.warps))
    most_blocks = num_seqs * row_blocks * num_kv * leaves
    grid = max(1, min(most_blocks, config.resident * workspace.limits.num_sms))
    _check_room(workspace, _most_pieces(grid, num_seqs, num_kv, row_blocks), config.tiles)
    if out is None:
        out = torch.empty(num_tokens, num_heads * DIM, dtype=torch.bfloat16, device=qkv.slices_STN.device)
    load("attend", config.defines(group, num_kv)).kernel("attend").launch(
        grid,
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
        rows.table_SP,
        rows.table_SP.stride(0),
        rows.positions_SR,
        rows.live_SR,
        sinks_Q,
        window or 0,
        first_key,
        num_seqs,
        num_rows,
        workspace.piece_states,
        workspace.tickets,
        shared=config.shared,
    )
    return out


def _check_room(workspace: AttendWorkspace, pieces: int, tiles: int) -> None:
    if pieces > len(workspace.tickets) or pieces * tiles * 16 > len(workspace.piece_states):
        raise ValueError(f"{pieces} pieces of {tiles} tiles: attend's workspace was made for smaller launches")


def _num_heads(qkv: Product, rows: Rows, cache: LayerCache, window: int | None, first_key: int) -> int:
    """Query heads; raises ValueError on shapes that the kernel does not have."""
    page_size, num_kv, dim = cache.k.shape[1:]
    num_seqs, num_rows = rows.positions_SR.shape
    num_heads = qkv.slices_STN.shape[2] // DIM - 2 * num_kv
    group = num_heads // num_kv
    if (page_size, dim) != (PAGE, DIM) or group not in GROUPS or num_heads != group * num_kv:
        raise ValueError(
            f"attend needs pages of {PAGE}, dimension {DIM} and 4 or 8 query heads per key head, "
            f"not {page_size}, {dim} and {num_heads} / {num_kv}"
        )
    if window is not None and window > MAX_WINDOW:
        raise ValueError(f"attend takes a window of {MAX_WINDOW} at most, not {window}")
    if num_seqs > MAX_SEQS or num_rows > MAX_ROWS or first_key > MAX_FIRST_KEY:
        raise ValueError(
            f"attend takes {MAX_SEQS} sequences of {MAX_ROWS} rows and a first key up to {MAX_FIRST_KEY}, "
            f"not {num_seqs}, {num_rows} and {first_key}"
        )
    assert qkv.slices_STN.shape[1] == num_seqs * num_rows
    assert qkv.slices_STN.dtype == torch.float32
    return num_heads
