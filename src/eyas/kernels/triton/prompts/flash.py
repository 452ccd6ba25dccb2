"""Causal attention of prompt rows over the pages of their sequences, with sinks and an optional window.

Online softmax over blocks of keys (Dao, "FlashAttention-2", 2023) that start at absolute multiples of the block, for
tiles of rows that start at absolute multiples of the tile, so a row's bits depend on its own position alone, however
the prompt was cut into chunks (at multiples of 16). The query heads of a key/value head lie side by side in a tile.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from eyas.kernels.reference.layers.ops import LayerCache, Rows

__all__ = ["flash_attend"]

_FULL = dict(BLOCK_M=64, BLOCK_N=128, num_warps=4, num_stages=2)
_SLIDING = dict(BLOCK_M=64, BLOCK_N=32, num_warps=4, num_stages=2)
_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _from_fp8(entries, scales, dtype: tl.constexpr):
    """Keys or values [N, 64] in `dtype`, which holds them all: see `kernels.layouts.fp8_cache`."""
    factors = (scales.to(tl.int32) << 23).to(tl.float32, bitcast=True)
    return (entries.to(tl.float8e4nv, bitcast=True).to(tl.float32) * factors[:, None]).to(dtype)


@triton.jit
def _key_block(
    q, peak, total, acc, start, position, inner, k_ptr, v_ptr, scales_ptr, scale_inner, table_ptr, num_pages, window,
    first_key, scale,
    G: tl.constexpr, PAGE: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """One step of the online softmax, in powers of 2; `scale` includes log2(e)."""
    key = tl.arange(0, BLOCK_N)
    column = start // PAGE + key // PAGE
    if MASKED:
        column = tl.minimum(column, num_pages - 1)
    page = tl.load(table_ptr + column).to(tl.int32)
    # All but the pages is the same in each step.
    offsets = (page.to(tl.int64) * (PAGE * G * 64))[:, None] + inner
    k = tl.load(k_ptr + offsets)
    if scales_ptr is not None:
        # Both here, as no copies to shared memory take single bytes ahead.
        scales = scales_ptr + page.to(tl.int64) * (2 * G * PAGE) + scale_inner
        k_scales, v_scales = tl.load(scales), tl.load(scales + PAGE)
        k = _from_fp8(k, k_scales, q.dtype)
    scores = tl.dot(q, k.T)
    if MASKED:
        key += start
        hidden = key[None, :] > position[:, None]
        hidden |= key[None, :] < tl.minimum(position, first_key)[:, None]
        if WINDOW:
            hidden |= key[None, :] <= position[:, None] - window
        scores = tl.where(hidden, float("-inf"), scores)
    new_peak = tl.maximum(peak, tl.max(scores, 1) * scale)
    weights = tl.exp2(scores * scale - new_peak[:, None])
    fade = tl.exp2(peak - new_peak)
    total = total * fade + tl.sum(weights, 1)
    v = tl.load(v_ptr + offsets)
    if scales_ptr is not None:
        v = _from_fp8(v, v_scales, q.dtype)
    acc = tl.dot(weights.to(v.dtype), v, acc * fade[:, None])
    return new_peak, total, acc


@triton.jit
def _flash_kernel(
    q_ptr, k_ptr, v_ptr, scales_ptr, table_ptr, positions_ptr, sinks_ptr, out_ptr,
    num_rows, num_tiles, num_pages, window, first_key, scale,
    Q: tl.constexpr, G: tl.constexpr, PAGE: tl.constexpr, SINKS: tl.constexpr, WINDOW: tl.constexpr,
    FIRST_KEY: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    GROUP: tl.constexpr = Q // G
    TILE: tl.constexpr = BLOCK_M // GROUP
    tl.static_assert(BLOCK_N % PAGE == 0)
    # The longest rows first: programs of a launch start in ascending order.
    index = tl.num_programs(0) - 1 - tl.program_id(0)
    sequence = index // num_tiles
    first = tl.load(positions_ptr + sequence * num_rows).to(tl.int32)
    tile = first // TILE + index % num_tiles
    if tile * TILE >= first + num_rows:
        return
    kv_head = tl.program_id(1)
    m = tl.arange(0, BLOCK_M)
    position = tile * TILE + m // GROUP
    row = position - first
    inside = (row >= 0) & (row < num_rows)
    head = kv_head * GROUP + m % GROUP
    table_ptr += sequence.to(tl.int64) * num_pages
    offsets = (((sequence * num_rows + row).to(tl.int64) * Q + head) * 64)[:, None] + tl.arange(0, 64)[None, :]
    q = tl.load(q_ptr + offsets, mask=inside[:, None], other=0.0)
    inner = ((kv_head * PAGE + tl.arange(0, BLOCK_N) % PAGE) * 64)[:, None] + tl.arange(0, 64)[None, :]
    scale_inner = kv_head * (2 * PAGE) + tl.arange(0, BLOCK_N) % PAGE

    if SINKS:
        peak = tl.load(sinks_ptr + head).to(tl.float32) * _LOG2_E
        total = tl.full((BLOCK_M,), 1.0, tl.float32)
    else:
        peak = tl.full((BLOCK_M,), -1e30, tl.float32)  # not -inf, whose difference with itself is NaN
        total = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, 64), tl.float32)
    end = tile * TILE + TILE  # one past the last row's own key
    if WINDOW:
        start = tl.maximum(tile * TILE - window + 1, 0) // BLOCK_N * BLOCK_N
        for block in tl.range(start, end, BLOCK_N):
            peak, total, acc = _key_block(
                q, peak, total, acc, block, position, inner, k_ptr, v_ptr, scales_ptr, scale_inner, table_ptr,
                num_pages, window, first_key, scale, G, PAGE, BLOCK_N, True, True,
            )  # fmt: skip
    else:
        start = tl.full((), 0, tl.int32)
        whole = (tile * TILE + 1) // BLOCK_N * BLOCK_N  # blocks that end at or before the first row
        if FIRST_KEY:
            whole = start
        for block in tl.range(start, whole, BLOCK_N):
            peak, total, acc = _key_block(
                q, peak, total, acc, block, position, inner, k_ptr, v_ptr, scales_ptr, scale_inner, table_ptr,
                num_pages, window, first_key, scale, G, PAGE, BLOCK_N, False, False,
            )  # fmt: skip
        for block in tl.range(whole, end, BLOCK_N):
            peak, total, acc = _key_block(
                q, peak, total, acc, block, position, inner, k_ptr, v_ptr, scales_ptr, scale_inner, table_ptr,
                num_pages, window, first_key, scale, G, PAGE, BLOCK_N, True, False,
            )  # fmt: skip
    out = acc / total[:, None]
    tl.store(out_ptr + offsets, out.to(out_ptr.dtype.element_ty), mask=inside[:, None])


def flash_attend(
    q_TQD: Tensor,
    rows: Rows,
    cache: LayerCache,
    *,
    sinks_Q: Tensor | None,
    window: int | None,
    first_key: int = 0,
) -> Tensor:
    """Attention [T, Q D] of R rows of each of S sequences, whose keys and values are in their pages already.

    Same visibility as `kernels.reference.layers.attend.attend_ref`. Page sizes are powers of two, D is 64.
    """
    _, num_heads, dim = q_TQD.shape
    num_seqs, num_rows = rows.positions_SR.shape
    _, num_kv, page_size, _ = cache.k.shape
    config = _FULL if window is None else _SLIDING
    tile = config["BLOCK_M"] * num_kv // num_heads
    out = torch.empty(len(q_TQD), num_heads * dim, dtype=q_TQD.dtype, device=q_TQD.device)
    num_tiles = triton.cdiv(num_rows + tile - 1, tile)  # one more than the rows fill, as they may start inside of one
    _flash_kernel[(num_seqs * num_tiles, num_kv)](
        q_TQD, cache.k, cache.v, cache.scales_PG2B, rows.table_SP, rows.positions_SR,
        q_TQD if sinks_Q is None else sinks_Q, out,
        num_rows, num_tiles, rows.table_SP.shape[1], window or 0, first_key, dim**-0.5 * _LOG2_E.value,
        Q=num_heads, G=num_kv, PAGE=page_size, SINKS=sinks_Q is not None, WINDOW=window is not None,
        FIRST_KEY=first_key > 0, **config,
    )  # fmt: skip
    return out
