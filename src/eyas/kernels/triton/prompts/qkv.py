"""Queries, keys and values of prompt rows in one launch: product, norm, bias, rotary embedding, write to the pages."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from eyas.kernels.layouts.dense import BlockedMatrix
from eyas.kernels.layouts.device import device_limits
from eyas.kernels.layouts.fp8_cache import BROKEN, LARGEST_SCALE, SMALLEST_SCALE
from eyas.kernels.reference.layers.norm import Normed
from eyas.kernels.reference.layers.ops import LayerCache, RopeTable, Rows
from eyas.kernels.triton.prompts import tma
from eyas.kernels.triton.prompts.products import dense_product, grouped_tile, inverse_rms, streamed_product

__all__ = ["HEAD_DIM", "qkv_rope_write"]

HEAD_DIM = 64
_SMALLEST, _LARGEST, _BROKEN = tl.constexpr(SMALLEST_SCALE), tl.constexpr(LARGEST_SCALE), tl.constexpr(BROKEN)


def _config(num_rows: int, num_heads: int, num_kv: int, device: torch.device) -> dict[str, int]:
    """Choose the launch: STEP, the columns of a step, stands in those by TMA."""
    if tma.takes_tma(num_rows, device) and num_heads % (2 * num_kv) == 0 and num_kv % 2 == 0:
        return dict(BLOCK_T=128, PAIRS=2, STEP=64, GROUP_T=16, num_warps=8, num_stages=4)
    if device_limits(device).shared_bytes < 160 << 10:
        if num_rows <= 512:
            return dict(BLOCK_T=64, BLOCK_K=64, GROUP_T=8, num_warps=4, num_stages=4)
        return dict(BLOCK_T=128, BLOCK_K=64, GROUP_T=8, num_warps=8, num_stages=3)
    if num_rows <= 128:
        return dict(BLOCK_T=64, BLOCK_K=128, GROUP_T=8, num_warps=4, num_stages=4)
    return dict(BLOCK_T=128, BLOCK_K=64, GROUP_T=8, num_warps=4, num_stages=4)


@triton.jit
def _in_fp8(pairs, BLOCK_T: tl.constexpr):
    """Keys and values [BLOCK_T, 128] as bytes, and their scales [BLOCK_T, 2]: see `kernels.layouts.fp8_cache`."""
    halves = pairs.to(tl.float32).reshape(BLOCK_T, 2, 64)
    # As integers, magnitudes keep their order, and NaN is above them all; of a NaN all bits may be set, so shift first.
    largest = tl.max(halves.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 2)
    exponents = ((largest >> 21) + 1 >> 2) - 8
    fits = (tl.max(exponents, 1) <= _LARGEST)[:, None]
    is_key = (tl.arange(0, 2) == 0)[None, :]
    scales = tl.maximum(tl.where(fits, exponents, _SMALLEST), _SMALLEST)
    factors = (254 - scales << 23).to(tl.float32, bitcast=True)
    rounded = (tl.where(fits[:, :, None], halves, 0.0) * factors[:, :, None]).to(tl.float8e4nv)
    broken = tl.where(is_key, 0x7F, 0).to(tl.uint8)
    out = tl.where(fits[:, :, None], rounded.to(tl.uint8, bitcast=True), broken[:, :, None])
    return out.reshape(BLOCK_T, 128), tl.where(fits | (is_key == 0), scales, _BROKEN).to(tl.uint8)


# What is fused is written out, and launches have `enable_fp_fusion=False`: left to the compiler, one launch fuses the
# first product of a sum, another the second, and their bits differ.


@triton.jit
def _scaled(acc, inverse_norm, bias_ptr, feature, NORMED: tl.constexpr, BIAS: tl.constexpr):
    """Products [T, N] divided by the norms of their rows, plus the bias."""
    if NORMED and BIAS:
        acc = tl.fma(acc, inverse_norm[:, None], tl.load(bias_ptr + feature)[None, :])
    elif NORMED:
        acc = acc * inverse_norm[:, None]
    elif BIAS:
        acc += tl.load(bias_ptr + feature)[None, :]
    return acc


@triton.jit
def _rope_rows(cos_ptr, sin_ptr, position):
    """Cosines and sines [T, 1, 32] of positions."""
    offsets = position[:, None] * 32 + tl.arange(0, 32)[None, :]
    return tl.load(cos_ptr + offsets)[:, None, :], tl.load(sin_ptr + offsets)[:, None, :]


@triton.jit
def _turned(acc, cos, sin, has_value, BLOCK_T: tl.constexpr):
    """Two heads [BLOCK_T, 128] with rotary embedding, which a value, the second head, does not get."""
    first, second = acc.reshape(BLOCK_T, 2, 2, 32).permute(0, 1, 3, 2).split()
    is_value = (tl.arange(0, 2) == 1)[None, :, None] & has_value
    turned_first = tl.where(is_value, first, tl.fma(first, cos, second * sin * -1.0))
    turned_second = tl.where(is_value, second, tl.fma(second, cos, first * sin))
    return tl.join(turned_first, turned_second).permute(0, 1, 3, 2).reshape(BLOCK_T, 128)


@triton.jit
def _write_pages(
    out, kv_head, rows, inside, position, live_ptr, table_ptr, k_ptr, v_ptr, scales_ptr, rows_a_sequence, num_pages,
    G: tl.constexpr, PAGE: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """Write a key head and its value head [BLOCK_T, 128] to the pages of their rows' sequences."""
    n = tl.arange(0, 128)
    live = tl.load(live_ptr + rows) != 0
    column = tl.minimum(position // PAGE, num_pages - 1)
    page = tl.load(table_ptr + (rows // rows_a_sequence).to(tl.int64) * num_pages + column, mask=live, other=0)
    offsets = (((page * G + kv_head) * PAGE + position % PAGE) * 64)[:, None] + (n % 64)[None, :]
    if scales_ptr is not None:
        entries, scales = _in_fp8(out, BLOCK_T)
        of_pair = tl.arange(0, 2)[None, :] * PAGE + (page * (2 * G * PAGE) + kv_head * (2 * PAGE))[:, None]
        tl.store(scales_ptr + of_pair + (position % PAGE)[:, None], scales, mask=inside[:, None])
    else:
        finite = tl.abs(out.to(tl.float32)) < float("inf")
        broken = tl.max(tl.where(finite | (n < 64)[None, :], 0, 1), axis=1)[:, None] != 0
        entries = tl.where(broken, tl.where(n < 64, float("nan"), 0.0)[None, :].to(out.dtype), out)
    tl.store(k_ptr + offsets, entries, mask=inside[:, None] & (n < 64)[None, :])
    tl.store(v_ptr + offsets, entries, mask=inside[:, None] & (n >= 64)[None, :])


@triton.jit
def _qkv_kernel(
    x_ptr, sums_ptr, w_ptr, bias_ptr, cos_ptr, sin_ptr, positions_ptr, live_ptr, table_ptr,
    q_ptr, k_ptr, v_ptr, scales_ptr,
    num_rows, rows_a_sequence, K, num_pages, eps,
    Q: tl.constexpr, G: tl.constexpr, PAGE: tl.constexpr, NORMED: tl.constexpr, BIAS: tl.constexpr,
    PARTS: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_T: tl.constexpr,
):  # fmt: skip
    tile_t, tile_n = grouped_tile(tl.program_id(0), num_rows, Q // 2 + G, BLOCK_T, GROUP_T)
    t = tile_t * BLOCK_T + tl.arange(0, BLOCK_T)
    inside = t < num_rows
    rows = tl.where(inside, t, 0)
    # A tile has two query heads, or one key head and its value head.
    kv_head = tile_n - Q // 2
    n = tl.arange(0, 128)
    head = tl.where(kv_head < 0, tile_n * 2 + n // 64, Q + kv_head + n // 64 * G)
    feature = head * 64 + n % 64
    acc = dense_product(x_ptr, rows, w_ptr, feature, K, BLOCK_T, 128, BLOCK_K)
    inverse_norm = inverse_rms(sums_ptr, rows, inside, K, eps, PARTS) if NORMED else 0.0
    acc = _scaled(acc, inverse_norm, bias_ptr, feature, NORMED, BIAS)
    position = tl.load(positions_ptr + rows)
    cos, sin = _rope_rows(cos_ptr, sin_ptr, position)
    out = _turned(acc, cos, sin, kv_head >= 0, BLOCK_T).to(q_ptr.dtype.element_ty)
    if kv_head < 0:
        tl.store(q_ptr + t.to(tl.int64)[:, None] * (Q * 64) + feature[None, :], out, mask=inside[:, None])
    else:
        _write_pages(
            out, kv_head, rows, inside, position, live_ptr, table_ptr, k_ptr, v_ptr, scales_ptr,
            rows_a_sequence, num_pages, G, PAGE, BLOCK_T,
        )  # fmt: skip


@triton.jit
def _qkv_streamed_kernel(
    x, sums_ptr, w, bias_ptr, cos_ptr, sin_ptr, positions_ptr, live_ptr, table_ptr,
    q_ptr, k_ptr, v_ptr, scales_ptr,
    num_rows, rows_a_sequence, K, num_pages, eps,
    Q: tl.constexpr, G: tl.constexpr, PAGE: tl.constexpr, NORMED: tl.constexpr, BIAS: tl.constexpr,
    PARTS: tl.constexpr, BLOCK_T: tl.constexpr, STEP: tl.constexpr, PAIRS: tl.constexpr, GROUP_T: tl.constexpr,
):  # fmt: skip
    """Compute PAIRS (1 or 2) of two heads a tile, G heads apart: of queries, then of keys with their values.

    Two loops, as Triton 3.6 overlaps no tiles whose end has a branch.
    """
    n = tl.arange(0, 128)
    tiles_t = tl.cdiv(num_rows, BLOCK_T)
    num_programs = tl.num_programs(0)
    query_tiles = tiles_t * (Q // 2 // PAIRS)
    for are_keys in tl.static_range(2):
        first_pair, blocks_n = (Q // 2, G // PAIRS) if are_keys else (0, Q // 2 // PAIRS)
        # The programs that the last round of queries leaves over begin with the keys.
        first = tl.program_id(0) + (num_programs - query_tiles % num_programs if are_keys else 0)
        for tile in tl.range(first % num_programs, tiles_t * blocks_n, num_programs, flatten=True):
            tile_t, tile_n = grouped_tile(tile, num_rows, blocks_n, BLOCK_T, GROUP_T)
            block, pair = (first_pair + tile_n * PAIRS) // G, (first_pair + tile_n * PAIRS) % G
            acc = streamed_product(x, w, tile_t * BLOCK_T, block, pair * 64, K, BLOCK_T, PAIRS * 128, STEP)
            t = tile_t * BLOCK_T + tl.arange(0, BLOCK_T)
            inside = t < num_rows
            rows = tl.where(inside, t, 0)
            inverse_norm = inverse_rms(sums_ptr, rows, inside, K, eps, PARTS) if NORMED else 0.0
            position = tl.load(positions_ptr + rows)
            cos, sin = _rope_rows(cos_ptr, sin_ptr, position)
            for i in tl.static_range(PAIRS):
                feature = (block * (2 * G) + pair + i + n // 64 * G) * 64 + n % 64
                two = _scaled(_pair(acc, i, PAIRS, BLOCK_T), inverse_norm, bias_ptr, feature, NORMED, BIAS)
                out = _turned(two, cos, sin, are_keys == 1, BLOCK_T).to(q_ptr.dtype.element_ty)
                if are_keys:
                    _write_pages(
                        out, pair + i, rows, inside, position, live_ptr, table_ptr, k_ptr, v_ptr, scales_ptr,
                        rows_a_sequence, num_pages, G, PAGE, BLOCK_T,
                    )  # fmt: skip
                else:
                    q_ptrs = q_ptr + t.to(tl.int64)[:, None] * (Q * 64) + feature[None, :]
                    tl.store(q_ptrs, out, mask=inside[:, None])


@triton.jit
def _pair(acc, i, PAIRS: tl.constexpr, BLOCK_T: tl.constexpr):
    """Return heads i and PAIRS + i of a tile: [BLOCK_T, 128]."""
    if PAIRS == 1:
        return acc
    else:
        left, right = acc.reshape(BLOCK_T, 2, 2, 64).permute(0, 1, 3, 2).split()
        return left.reshape(BLOCK_T, 128) if i == 0 else right.reshape(BLOCK_T, 128)


def qkv_rope_write(
    x: Normed | Tensor,
    weight: BlockedMatrix,
    bias_N: Tensor | None,
    rows: Rows,
    cache: LayerCache,
    rope: RopeTable,
    *,
    eps: float,
) -> Tensor:
    """Rotated queries [T, Q, 64] of rows; keys and values go to the pages of their sequences.

    A value that is not finite is written as 0 under a NaN key, as in `kernels.reference.layers.rope_write`. A plain `x`
    is normed already. Q is even.
    """
    x_rows, sums = x if isinstance(x, Normed) else (x, x)
    num_rows, width = x_rows.shape
    _, num_kv, page_size, _ = cache.k.shape
    num_heads = weight.num_rows // HEAD_DIM - 2 * num_kv
    q = torch.empty(num_rows, num_heads, HEAD_DIM, dtype=x_rows.dtype, device=x_rows.device)
    config = _config(num_rows, num_heads, num_kv, x_rows.device)
    tiles = triton.cdiv(num_rows, config["BLOCK_T"]) * (num_heads // 2 + num_kv)
    if "STEP" in config:
        x_tiles = tma.rows_descriptor(x_rows, config["BLOCK_T"], config["STEP"])
        matrix = tma.matrix_descriptor(
            weight, config["PAIRS"] * 128, config["STEP"], num_blocks=num_heads // (2 * num_kv) + 1, num_parts=2
        )
        kernel, programs = _qkv_streamed_kernel, tma.num_programs(tiles // config["PAIRS"], x_rows.device)
    else:
        kernel, programs, x_tiles, matrix = _qkv_kernel, tiles, x_rows, weight.data
    kernel[(programs,)](
        x_tiles, sums, matrix, sums if bias_N is None else bias_N, rope.cos, rope.sin,
        rows.positions_SR, rows.live_SR, rows.table_SP, q, cache.k, cache.v, cache.scales_PG2B,
        num_rows, rows.positions_SR.shape[1], width, rows.table_SP.shape[1], eps,
        Q=num_heads, G=num_kv, PAGE=page_size, NORMED=isinstance(x, Normed), BIAS=bias_N is not None,
        PARTS=sums.shape[1] if isinstance(x, Normed) else 1, enable_fp_fusion=False, **config,
    )  # fmt: skip
    return q
