"""The two kernels of the backward pass of `attention.py`: for tiles of rows, and for blocks of keys.

With P = exp(S - lse) of the whole softmax and delta = out . d_out, the gradient of a score is P (d_out . v - delta) for
every key, wherever it lies. Scores are in powers of 2: `scale2` is `scale` times log2(e).
"""

from __future__ import annotations

import triton
import triton.language as tl

from eyas.kernels.training.row_tiles import LOG2_E, key_ranges, listed_rows

__all__ = ["key_kernel", "query_kernel"]


@triton.jit
def _query_step(
    q, d_out, lse2, delta, acc, start, end, at, low, k_ptr, v_ptr, inner, stride, scale2,
    BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    key = start + tl.arange(0, BLOCK_N)
    place = tl.minimum(key, end - 1) if MASKED else key
    offsets = place.to(tl.int64)[:, None] * stride + inner[None, :]
    k = tl.load(k_ptr + offsets)
    v = tl.load(v_ptr + offsets)
    p = tl.exp2(tl.dot(q, k.T) * scale2 - lse2[:, None])
    if MASKED:
        hidden = (key[None, :] > at[:, None]) | (key[None, :] < low[:, None])
        p = tl.where(hidden, 0.0, p)
    d_scores = p * (tl.dot(d_out, v.T) - delta[:, None])
    return tl.dot(d_scores.to(k.dtype), k, acc)


@triton.jit(do_not_specialize=["num_rows", "num_own", "num_begun"])  # that vary from pass to pass
def query_kernel(
    q_ptr, k_ptr, v_ptr, own_k_ptr, own_v_ptr, at_ptr, low_ptr, out_ptr, lse_ptr,
    d_out_ptr, begun_ptr, d_q_ptr, d_own_k_ptr, d_own_v_ptr, delta_ptr,
    num_rows, num_own, num_begun, scale, scale2,
    G: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Gradients of queries and of own keys and values, and delta, for a tile of rows."""
    TILE: tl.constexpr = BLOCK_M // GROUP
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1)
    first, last, row, inside, at, low, head = listed_rows(
        at_ptr, low_ptr, tile, num_rows, kv_head, G, GROUP, BLOCK_M
    )  # fmt: skip
    d = tl.arange(0, D)
    offsets = head[:, None] * D + d[None, :]
    q = tl.load(q_ptr + offsets)
    d_out = tl.load(d_out_ptr + offsets)
    out = tl.load(out_ptr + offsets).to(tl.float32)
    delta = tl.sum(out * d_out.to(tl.float32), 1)
    tl.store(delta_ptr + head, delta, mask=inside)
    lse2 = tl.load(lse_ptr + head) * LOG2_E
    acc = tl.zeros((BLOCK_M, D), tl.float32)

    begin, open_from, open_to, rest, end = key_ranges(at_ptr, low_ptr, first, last, BLOCK_N)
    k_ptr += kv_head * D
    v_ptr += kv_head * D
    stride: tl.constexpr = G * D
    for start in tl.range(begin, open_from, BLOCK_N):
        acc = _query_step(
            q, d_out, lse2, delta, acc, start, end, at, low, k_ptr, v_ptr, d, stride, scale2, BLOCK_N, True
        )  # fmt: skip
    for start in tl.range(open_from, open_to, BLOCK_N):
        acc = _query_step(
            q, d_out, lse2, delta, acc, start, end, at, low, k_ptr, v_ptr, d, stride, scale2, BLOCK_N, False
        )  # fmt: skip
    for start in tl.range(rest, end, BLOCK_N):
        acc = _query_step(
            q, d_out, lse2, delta, acc, start, end, at, low, k_ptr, v_ptr, d, stride, scale2, BLOCK_N, True
        )  # fmt: skip

    wide = q.to(tl.float32)
    wide_d_out = d_out.to(tl.float32)
    own_row = (first + tl.arange(0, TILE)).to(tl.int64)
    own_inside = (own_row <= last)[:, None] & (d < D)[None, :]
    for j in tl.range(num_own):
        own = ((j * num_rows + row) * G + kv_head)[:, None] * D + d[None, :]
        k = tl.load(own_k_ptr + own).to(tl.float32)
        p = tl.exp2(tl.sum(wide * k, 1) * scale2 - lse2)
        d_score = p * (tl.sum(wide_d_out * tl.load(own_v_ptr + own).to(tl.float32), 1) - delta)
        acc += d_score[:, None] * k
        # The heads of a row lie side by side: sums over them.
        d_k = tl.sum(tl.reshape(d_score[:, None] * wide, (TILE, GROUP, D)), 1) * scale
        d_v = tl.sum(tl.reshape(p[:, None] * wide_d_out, (TILE, GROUP, D)), 1)
        place = ((j * num_rows + own_row) * G + kv_head)[:, None] * D + d[None, :]
        tl.store(d_own_k_ptr + place, d_k.to(d_own_k_ptr.dtype.element_ty), mask=own_inside)
        tl.store(d_own_v_ptr + place, d_v.to(d_own_v_ptr.dtype.element_ty), mask=own_inside)
    acc *= scale
    if num_begun > first:
        acc += tl.load(begun_ptr + offsets, mask=(row < num_begun)[:, None], other=0.0).to(tl.float32)
    tl.store(d_q_ptr + offsets, acc.to(d_q_ptr.dtype.element_ty), mask=inside[:, None])


@triton.jit
def _key_step(
    k, v, d_k, d_v, start, end, key, q_ptr, d_out_ptr, at_ptr, low_ptr, lse_ptr, delta_ptr, kv_head, scale2,
    G: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    m = tl.arange(0, BLOCK_M)
    row = start + m // GROUP
    place = tl.minimum(row, end - 1) if MASKED else row
    head = place.to(tl.int64) * (G * GROUP) + kv_head * GROUP + m % GROUP
    offsets = head[:, None] * D + tl.arange(0, D)[None, :]
    q = tl.load(q_ptr + offsets)
    d_out = tl.load(d_out_ptr + offsets)
    lse2 = tl.load(lse_ptr + head) * LOG2_E
    delta = tl.load(delta_ptr + head)
    p = tl.exp2(tl.dot(k, q.T) * scale2 - lse2[None, :])
    if MASKED:
        at = tl.load(at_ptr + place).to(tl.int32)
        low = tl.load(low_ptr + place).to(tl.int32)
        seen = (key[:, None] <= at[None, :]) & (key[:, None] >= low[None, :]) & (row < end)[None, :]
        p = tl.where(seen, p, 0.0)
    d_v = tl.dot(p.to(d_out.dtype), d_out, d_v)
    d_scores = p * (tl.dot(v, d_out.T) - delta[None, :])
    d_k = tl.dot(d_scores.to(q.dtype), q, d_k)
    return d_k, d_v


@triton.jit(do_not_specialize=["first_block", "last_key"])
def key_kernel(
    q_ptr, k_ptr, v_ptr, at_ptr, low_ptr, lse_ptr, delta_ptr, d_out_ptr,
    begins_ptr, fulls_ptr, opens_ptr, ends_ptr,
    key_sums_ptr, value_sums_ptr, first_block, last_key, scale, scale2,
    G: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of keys and values, added to their sums."""
    TILE: tl.constexpr = BLOCK_M // GROUP
    block = tl.program_id(0)
    kv_head = tl.program_id(1)
    key = (first_block + block) * BLOCK_N + tl.arange(0, BLOCK_N)
    d = tl.arange(0, D)
    offsets = tl.minimum(key, last_key - 1).to(tl.int64)[:, None] * (G * D) + kv_head * D + d[None, :]
    k = tl.load(k_ptr + offsets)
    v = tl.load(v_ptr + offsets)
    d_k = tl.zeros((BLOCK_N, D), tl.float32)
    d_v = tl.zeros((BLOCK_N, D), tl.float32)
    begin = tl.load(begins_ptr + block).to(tl.int32)
    end = tl.load(ends_ptr + block).to(tl.int32)
    # Rows from `full` on stand behind the whole block; those before `open` have their first key before it.
    full = tl.minimum(tl.load(fulls_ptr + block).to(tl.int32), end)
    open_from = begin + tl.cdiv(tl.maximum(full - begin, 0), TILE) * TILE
    open_to = open_from + tl.maximum(tl.load(opens_ptr + block).to(tl.int32) - open_from, 0) // TILE * TILE
    for start in tl.range(begin, open_from, TILE):
        d_k, d_v = _key_step(
            k, v, d_k, d_v, start, end, key, q_ptr, d_out_ptr, at_ptr, low_ptr, lse_ptr, delta_ptr, kv_head, scale2,
            G, GROUP, D, BLOCK_M, True,
        )  # fmt: skip
    for start in tl.range(open_from, open_to, TILE):
        d_k, d_v = _key_step(
            k, v, d_k, d_v, start, end, key, q_ptr, d_out_ptr, at_ptr, low_ptr, lse_ptr, delta_ptr, kv_head, scale2,
            G, GROUP, D, BLOCK_M, False,
        )  # fmt: skip
    for start in tl.range(open_to, end, TILE):
        d_k, d_v = _key_step(
            k, v, d_k, d_v, start, end, key, q_ptr, d_out_ptr, at_ptr, low_ptr, lse_ptr, delta_ptr, kv_head, scale2,
            G, GROUP, D, BLOCK_M, True,
        )  # fmt: skip
    inside = (key < last_key)[:, None] & (d < D)[None, :]
    tl.store(key_sums_ptr + offsets, tl.load(key_sums_ptr + offsets, mask=inside) + d_k * scale, mask=inside)
    tl.store(value_sums_ptr + offsets, tl.load(value_sums_ptr + offsets, mask=inside) + d_v, mask=inside)
