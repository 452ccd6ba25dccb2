"""The experts of prompt rows: two grouped MXFP4 matrix products on tensor cores, and the sum over ranks.

The weights are unpacked in registers and are the tall side of the product, so few rows per expert waste little. All
row counts give the same bits (`products`), so the tile follows the number of rows.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from eyas.kernels.layouts.mxfp4 import PackedExperts
from eyas.kernels.reference.layers.moe import SWIGLU_ALPHA
from eyas.kernels.reference.layers.norm import Normed
from eyas.kernels.triton.prompts.products import expert_product
from eyas.kernels.triton.prompts.route import Groups, Routing

__all__ = ["combine", "expert_tile_rows", "experts_down", "experts_up"]

_ALPHA = tl.constexpr(SWIGLU_ALPHA)


@triton.jit
def _expert_tile(
    x_ptr, rms_ptr, words_ptr, scales_ptr, bias_ptr, out_ptr, pairs_ptr,
    first, end, block, N, K, factor, limit,
    TOP_K: tl.constexpr, UP: tl.constexpr, BLOCK_F: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Compute features `block` of the entries first..end of `pairs`, at most BLOCK_T, of one expert."""
    entry = first + tl.arange(0, BLOCK_T)
    inside = entry < end
    pairs = tl.load(pairs_ptr + entry, mask=inside, other=0)
    rows = pairs // TOP_K if UP else pairs
    acc = expert_product(
        x_ptr, rows, words_ptr, scales_ptr, block * (BLOCK_F // 16), N // 16, K, BLOCK_F, BLOCK_T, BLOCK_K
    )
    acc *= factor
    feature = block * BLOCK_F + tl.arange(0, BLOCK_F)
    bias = tl.load(bias_ptr + feature, mask=feature < N, other=0.0).reshape(BLOCK_F // 16, 8, 2, 1)
    if UP:
        acc = acc * tl.load(rms_ptr + rows) + bias
        gate, up = acc.permute(0, 1, 3, 2).split()
        # Not tl.minimum, which would turn NaN into the limit.
        gate = tl.where(gate > limit, limit, gate)
        up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))
        act = gate / (1 + tl.exp(-_ALPHA * gate)) * (up + 1)
        act = act.reshape(BLOCK_F // 64, 4, 2, 2, 2, BLOCK_T)  # block of 32, t, i, c, e of `word_order`
        out = act.permute(0, 2, 3, 1, 4, 5).reshape(BLOCK_F // 2, BLOCK_T)
        column = block * (BLOCK_F // 2) + tl.arange(0, BLOCK_F // 2)
        width = N // 2
    else:
        out = (acc + bias).reshape(BLOCK_F, BLOCK_T)
        column = feature
        width = N
    out_ptrs = out_ptr + pairs.to(tl.int64)[None, :] * width + column[:, None]
    tl.store(out_ptrs, out.to(out_ptr.dtype.element_ty), mask=inside[None, :] & (column < width)[:, None])


@triton.jit
def _experts_kernel(
    x_ptr, rms_ptr, words_ptr, scales_ptr, bias_ptr, out_ptr, pairs_ptr, tiles_ptr, num_tiles_ptr,
    N, K, factor, limit,
    TOP_K: tl.constexpr, UP: tl.constexpr, BLOCK_F: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(N, BLOCK_F)
    tile = tl.program_id(0) // blocks
    if tile >= tl.load(num_tiles_ptr):
        return
    block = tl.program_id(0) % blocks
    expert = tl.load(tiles_ptr + tile * 4).to(tl.int64)
    first, end = tl.load(tiles_ptr + tile * 4 + 1), tl.load(tiles_ptr + tile * 4 + 2)
    num_words = expert * (N // 16) * ((K + 63) // 64) * 8
    words_ptr += num_words * 16
    scales_ptr += num_words
    bias_ptr += expert * N
    # The last tile of an expert is often half empty. Quarters gain nothing.
    if BLOCK_T >= 32 and (end - first) * 2 <= BLOCK_T:
        _expert_tile(
            x_ptr, rms_ptr, words_ptr, scales_ptr, bias_ptr, out_ptr, pairs_ptr, first, end, block, N, K, factor, limit,
            TOP_K, UP, BLOCK_F, max(BLOCK_T // 2, 16), BLOCK_K,
        )  # fmt: skip
    else:
        _expert_tile(
            x_ptr, rms_ptr, words_ptr, scales_ptr, bias_ptr, out_ptr, pairs_ptr, first, end, block, N, K, factor, limit,
            TOP_K, UP, BLOCK_F, BLOCK_T, BLOCK_K,
        )  # fmt: skip


@triton.jit
def _combine_kernel(
    y_ptr, ids_ptr, weights_ptr, residual_ptr, norm_ptr, out_ptr, rows_ptr, sums_ptr, counts_ptr,
    H, E,
    TOP_K: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK_H)
    inside = column < H
    if row == 0:
        expert = tl.arange(0, BLOCK_E)
        tl.store(counts_ptr + expert, 0, mask=expert < E)
    live = tl.load(ids_ptr + row * TOP_K) >= 0
    total = tl.zeros((BLOCK_H,), tl.float32)
    for rank in tl.static_range(TOP_K):
        y = tl.load(y_ptr + (row * TOP_K + rank) * H + column, mask=inside & live, other=0.0)
        total += y.to(tl.float32) * tl.load(weights_ptr + row * TOP_K + rank)
    out = tl.load(residual_ptr + row * H + column, mask=inside, other=0.0) + tl.where(live, total, 0.0)
    tl.store(out_ptr + row * H + column, out, mask=inside)
    norm = tl.load(norm_ptr + column, mask=inside, other=0.0)
    tl.store(rows_ptr + row * H + column, (out * norm).to(rows_ptr.dtype.element_ty), mask=inside)
    tl.store(sums_ptr + row, tl.sum(out * out))


def expert_tile_rows(num_pairs: int, num_experts: int) -> int:
    """Rows of a tile, 16 to 128: at least the mean of a group, with room above where that costs little."""
    mean = num_pairs // num_experts
    return 16 if mean <= 4 else min(128, max(32, triton.next_power_of_2(mean)))


def _config(tile_rows: int) -> dict[str, int]:
    """Choose the launch: with few rows the accumulator leaves registers for more weights at a time."""
    return dict(BLOCK_F=128, BLOCK_K=128 if tile_rows <= 32 else 64, num_warps=4, num_stages=4)


def _launch(
    x: Tensor,
    routing: Routing,
    groups: Groups,
    experts: PackedExperts,
    bias_EN: Tensor,
    out: Tensor,
    limit: float | None,
) -> None:
    num_features = experts.num_rows
    config = _config(groups.tile_rows)
    _experts_kernel[(groups.tiles.shape[0] * triton.cdiv(num_features, config["BLOCK_F"]),)](
        x, routing.inverse_rms_T, experts.words, experts.scales, bias_EN, out,
        groups.pairs, groups.tiles, groups.num_tiles,
        num_features, experts.num_columns, 2.0**experts.exponent, limit or 0.0,
        TOP_K=routing.ids_TK.shape[1], UP=limit is not None, BLOCK_T=groups.tile_rows, **config,
    )  # fmt: skip


def experts_up(routing: Routing, groups: Groups, gate_up: PackedExperts, bias_EN: Tensor, *, limit: float) -> Tensor:
    """Activations [T * k, I] of the live pairs, columns in word order: gate and up product, clamped SwiGLU."""
    act = torch.empty(routing.ids_TK.numel(), gate_up.num_rows // 2, dtype=groups.rows_TH.dtype, device=bias_EN.device)
    _launch(groups.rows_TH, routing, groups, gate_up, bias_EN, act, limit)
    return act


def experts_down(act_PI: Tensor, routing: Routing, groups: Groups, down: PackedExperts, bias_EH: Tensor) -> Tensor:
    """Outputs [T * k, H] of the live pairs, not yet weighted."""
    out = torch.empty(act_PI.shape[0], down.num_rows, dtype=act_PI.dtype, device=act_PI.device)
    _launch(act_PI, routing, groups, down, bias_EH, out, None)
    return out


def combine(y_PH: Tensor, routing: Routing, residual_TH: Tensor, norm_H: Tensor) -> tuple[Tensor, Normed]:
    """residual + the weighted outputs, added by rank, fp32 [T, H]; and the next norm. Dead rows keep their residual.

    The tally of the routing is all zero afterwards.
    """
    num_rows, width = residual_TH.shape
    counts_E = routing.tally.counts_E
    out = torch.empty_like(residual_TH)
    rows = torch.empty(num_rows, width, dtype=y_PH.dtype, device=out.device)
    sums = torch.empty(num_rows, 1, dtype=torch.float32, device=out.device)
    _combine_kernel[(num_rows,)](
        y_PH, routing.ids_TK, routing.weights_TK, residual_TH, norm_H, out, rows, sums, counts_E,
        width, counts_E.numel(),
        TOP_K=routing.ids_TK.shape[1], BLOCK_H=triton.next_power_of_2(width),
        BLOCK_E=triton.next_power_of_2(counts_E.numel()), num_warps=4,
    )  # fmt: skip
    return out, Normed(rows, sums)
