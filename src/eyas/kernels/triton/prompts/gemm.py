"""Dense matrix products of prompt rows over `BlockedMatrix`: plain, gated (SiLU), and with residual and next norm."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from eyas.kernels.layouts.dense import BlockedMatrix
from eyas.kernels.layouts.device import device_limits
from eyas.kernels.reference.layers.norm import Normed
from eyas.kernels.triton.prompts import tma
from eyas.kernels.triton.prompts.products import dense_product, grouped_tile, halves, inverse_rms, streamed_product

__all__ = ["add", "gated", "linear"]

# Features that a tile ends at a time, and those of one part of the sums of squares. All of a large tile at once finds
# too few registers, or ptxas serialises its products (C7515).
_PIECE = tl.constexpr(64)


def _config(num_rows: int, device: torch.device, has_streamed: bool) -> dict[str, int]:
    """Choose the launch: GROUP_T tiles of rows go through all features before the next ones.

    STEP, the columns of a step, stands in launches by TMA, of products that have them.
    """
    if has_streamed and tma.takes_tma(num_rows, device):
        return dict(BLOCK_T=128, BLOCK_N=256, STEP=64, GROUP_T=16, num_warps=8, num_stages=4)
    if device_limits(device).shared_bytes < 160 << 10:
        if num_rows <= 512:
            return dict(BLOCK_T=64, BLOCK_N=64, BLOCK_K=128, GROUP_T=8, num_warps=4, num_stages=3)
        return dict(BLOCK_T=128, BLOCK_N=128, BLOCK_K=64, GROUP_T=8, num_warps=8, num_stages=3)
    if num_rows <= 128:
        return dict(BLOCK_T=64, BLOCK_N=64, BLOCK_K=64, GROUP_T=8, num_warps=4, num_stages=6)
    if num_rows <= 256:
        return dict(BLOCK_T=128, BLOCK_N=64, BLOCK_K=64, GROUP_T=8, num_warps=4, num_stages=4)
    if num_rows <= 512:
        return dict(BLOCK_T=128, BLOCK_N=128, BLOCK_K=64, GROUP_T=8, num_warps=8, num_stages=4)
    return dict(BLOCK_T=128, BLOCK_N=256, BLOCK_K=64, GROUP_T=8, num_warps=8, num_stages=3)


@triton.jit
def _end_linear(
    acc, inverse_norm, t, inside, first, out_ptr, N,
    NORMED: tl.constexpr, GATED: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Write what becomes of the products [BLOCK_T, BLOCK_N] of features `first`..., _PIECE at a time."""
    if BLOCK_N > _PIECE:
        left, right = halves(acc, BLOCK_T, BLOCK_N)
        _end_linear(left, inverse_norm, t, inside, first, out_ptr, N, NORMED, GATED, BLOCK_T, BLOCK_N // 2)
        first += BLOCK_N // 2
        _end_linear(right, inverse_norm, t, inside, first, out_ptr, N, NORMED, GATED, BLOCK_T, BLOCK_N // 2)
    else:
        if NORMED:
            acc = acc * inverse_norm[:, None]
        if GATED:
            gate, up = acc.reshape(BLOCK_T, BLOCK_N // 16, 2, 8).permute(0, 1, 3, 2).split()
            out = (gate / (1 + tl.exp(-gate)) * up).reshape(BLOCK_T, BLOCK_N // 2)
            column = first // 2 + tl.arange(0, BLOCK_N // 2)
            width = N // 2
        else:
            out = acc
            column = first + tl.arange(0, BLOCK_N)
            width = N
        out_ptrs = out_ptr + t.to(tl.int64)[:, None] * width + column[None, :]
        tl.store(out_ptrs, out.to(out_ptr.dtype.element_ty), mask=inside[:, None] & (column < width)[None, :])


@triton.jit
def _linear_kernel(
    x_ptr, sums_ptr, w_ptr, out_ptr,
    num_rows, N, K, eps,
    NORMED: tl.constexpr, GATED: tl.constexpr, PARTS: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_T: tl.constexpr,
):  # fmt: skip
    tile_t, tile_n = grouped_tile(tl.program_id(0), num_rows, tl.cdiv(N, BLOCK_N), BLOCK_T, GROUP_T)
    t = tile_t * BLOCK_T + tl.arange(0, BLOCK_T)
    inside = t < num_rows
    rows = tl.where(inside, t, 0)
    feature = tl.minimum(tile_n * BLOCK_N + tl.arange(0, BLOCK_N), N - 1)
    acc = dense_product(x_ptr, rows, w_ptr, feature, K, BLOCK_T, BLOCK_N, BLOCK_K)
    inverse_norm = inverse_rms(sums_ptr, rows, inside, K, eps, PARTS) if NORMED else 0.0
    _end_linear(acc, inverse_norm, t, inside, tile_n * BLOCK_N, out_ptr, N, NORMED, GATED, BLOCK_T, BLOCK_N)


@triton.jit
def _streamed_tile(
    x, w, tile, num_rows, blocks_n, K,
    BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr, STEP: tl.constexpr, GROUP_T: tl.constexpr,
):  # fmt: skip
    """Compute the products [BLOCK_T, BLOCK_N] of a tile by its number; return its rows and its first feature, too."""
    tile_t, tile_n = grouped_tile(tile, num_rows, blocks_n, BLOCK_T, GROUP_T)
    acc = streamed_product(x, w, tile_t * BLOCK_T, 0, tile_n * BLOCK_N, K, BLOCK_T, BLOCK_N, STEP)
    return acc, tile_t * BLOCK_T + tl.arange(0, BLOCK_T), tile_n * BLOCK_N


@triton.jit
def _linear_streamed_kernel(
    x, w, out_ptr, num_rows, N, K,
    BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr, STEP: tl.constexpr, GROUP_T: tl.constexpr,
):  # fmt: skip
    blocks_n = tl.cdiv(N, BLOCK_N)
    num_tiles = tl.cdiv(num_rows, BLOCK_T) * blocks_n
    for tile in tl.range(tl.program_id(0), num_tiles, tl.num_programs(0), flatten=True):
        acc, t, first = _streamed_tile(x, w, tile, num_rows, blocks_n, K, BLOCK_T, BLOCK_N, STEP, GROUP_T)
        _end_linear(acc, 0.0, t, t < num_rows, first, out_ptr, N, False, False, BLOCK_T, BLOCK_N)


@triton.jit
def _end_add(
    acc, t, inside, first, bias_ptr, residual_ptr, norm_ptr, out_ptr, rows_ptr, sums_ptr, N,
    BIAS: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Write what becomes of the products [BLOCK_T, BLOCK_N] of features `first`..., _PIECE at a time."""
    if BLOCK_N > _PIECE:
        left, right = halves(acc, BLOCK_T, BLOCK_N)
        _end_add(
            left, t, inside, first, bias_ptr, residual_ptr, norm_ptr, out_ptr, rows_ptr, sums_ptr, N,
            BIAS, BLOCK_T, BLOCK_N // 2,
        )  # fmt: skip
        _end_add(
            right, t, inside, first + BLOCK_N // 2, bias_ptr, residual_ptr, norm_ptr, out_ptr, rows_ptr, sums_ptr, N,
            BIAS, BLOCK_T, BLOCK_N // 2,
        )  # fmt: skip
    else:
        feature = first + tl.arange(0, _PIECE)
        within = feature < N
        if BIAS:
            acc += tl.load(bias_ptr + feature, mask=within, other=0.0)[None, :]
        mask = inside[:, None] & within[None, :]
        offsets = t.to(tl.int64)[:, None] * N + feature[None, :]
        out = acc + tl.load(residual_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
        norm = tl.load(norm_ptr + feature, mask=within, other=0.0)
        tl.store(out_ptr + offsets, out, mask=mask)
        tl.store(rows_ptr + offsets, (out * norm[None, :]).to(rows_ptr.dtype.element_ty), mask=mask)
        # Launches have `enable_fp_fusion=False`: else some add a square before it is rounded, and their bits differ.
        squares = tl.where(within[None, :], out * out, 0.0)
        num_parts = tl.cdiv(N, _PIECE)
        tl.store(sums_ptr + t * num_parts + first // _PIECE, tl.sum(squares, axis=1), mask=inside & (first < N))


@triton.jit
def _add_kernel(
    x_ptr, w_ptr, bias_ptr, residual_ptr, norm_ptr, out_ptr, rows_ptr, sums_ptr,
    num_rows, N, K,
    BIAS: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_T: tl.constexpr,
):  # fmt: skip
    tile_t, tile_n = grouped_tile(tl.program_id(0), num_rows, tl.cdiv(N, BLOCK_N), BLOCK_T, GROUP_T)
    t = tile_t * BLOCK_T + tl.arange(0, BLOCK_T)
    inside = t < num_rows
    feature = tl.minimum(tile_n * BLOCK_N + tl.arange(0, BLOCK_N), N - 1)
    acc = dense_product(x_ptr, tl.where(inside, t, 0), w_ptr, feature, K, BLOCK_T, BLOCK_N, BLOCK_K)
    _end_add(
        acc, t, inside, tile_n * BLOCK_N, bias_ptr, residual_ptr, norm_ptr, out_ptr, rows_ptr, sums_ptr, N,
        BIAS, BLOCK_T, BLOCK_N,
    )  # fmt: skip


@triton.jit
def _add_streamed_kernel(
    x, w, bias_ptr, residual_ptr, norm_ptr, out_ptr, rows_ptr, sums_ptr,
    num_rows, N, K,
    BIAS: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr, STEP: tl.constexpr, GROUP_T: tl.constexpr,
):  # fmt: skip
    blocks_n = tl.cdiv(N, BLOCK_N)
    num_tiles = tl.cdiv(num_rows, BLOCK_T) * blocks_n
    for tile in tl.range(tl.program_id(0), num_tiles, tl.num_programs(0), flatten=True):
        acc, t, first = _streamed_tile(x, w, tile, num_rows, blocks_n, K, BLOCK_T, BLOCK_N, STEP, GROUP_T)
        _end_add(
            acc, t, t < num_rows, first, bias_ptr, residual_ptr, norm_ptr, out_ptr, rows_ptr, sums_ptr, N,
            BIAS, BLOCK_T, BLOCK_N,
        )  # fmt: skip


def _num_tiles(num_rows: int, num_features: int, config: dict[str, int]) -> int:
    return triton.cdiv(num_rows, config["BLOCK_T"]) * triton.cdiv(num_features, config["BLOCK_N"])


def _descriptors(
    x_TK: Tensor, weight: BlockedMatrix, config: dict[str, int]
) -> tuple[TensorDescriptor, TensorDescriptor]:
    """Return the operands of a launch by TMA."""
    rows = tma.rows_descriptor(x_TK, config["BLOCK_T"], config["STEP"])
    return rows, tma.matrix_descriptor(weight, config["BLOCK_N"], config["STEP"])


def _product(
    x: Normed | Tensor, weight: BlockedMatrix, width: int, dtype: torch.dtype | None, eps: float, *, gated: bool
) -> Tensor:
    normed = isinstance(x, Normed)
    rows, sums = (x.rows_TH, x.square_sums_TP) if normed else (x, x)
    num_rows, num_features = rows.shape[0], weight.num_rows
    out = torch.empty(num_rows, width, dtype=dtype or rows.dtype, device=rows.device)
    config = _config(num_rows, rows.device, not (normed or gated))
    num_tiles = _num_tiles(num_rows, num_features, config)
    if "STEP" in config:
        _linear_streamed_kernel[(tma.num_programs(num_tiles, rows.device),)](
            *_descriptors(rows, weight, config), out, num_rows, num_features, weight.num_columns, **config
        )
        return out
    _linear_kernel[(num_tiles,)](
        rows, sums, weight.data, out,
        num_rows, num_features, weight.num_columns, eps,
        NORMED=normed, GATED=gated, PARTS=sums.shape[1] if normed else 1, **config,
    )  # fmt: skip
    return out


def linear(x: Normed | Tensor, weight: BlockedMatrix, *, eps: float = 0.0, dtype: torch.dtype | None = None) -> Tensor:
    """W x in `dtype`, that of x unless given: [T, N]. Rows in split form are divided by their norm, with `eps`."""
    return _product(x, weight, weight.num_rows, dtype, eps, gated=False)


def gated(x: Normed | Tensor, gate_up: BlockedMatrix, *, eps: float = 0.0) -> Tensor:
    """Compute silu(gate) * up in the dtype of x, [T, I]; `gate_up` [2 I, K] is packed as gated."""
    assert gate_up.gated
    return _product(x, gate_up, gate_up.num_rows // 2, None, eps, gated=True)


def add(
    x_TK: Tensor, weight: BlockedMatrix, bias_H: Tensor | None, residual_TH: Tensor, norm_H: Tensor
) -> tuple[Tensor, Normed]:
    """Compute residual + W x + b, fp32 [T, H], and the split form of its norm in the dtype of x."""
    num_rows, width = residual_TH.shape
    out = torch.empty(num_rows, width, dtype=torch.float32, device=x_TK.device)
    rows = torch.empty(num_rows, width, dtype=x_TK.dtype, device=x_TK.device)
    sums = torch.empty(num_rows, triton.cdiv(width, _PIECE.value), dtype=torch.float32, device=x_TK.device)
    config = _config(num_rows, x_TK.device, True)
    num_programs = _num_tiles(num_rows, width, config)
    kernel, operands = _add_kernel, (x_TK, weight.data)
    if "STEP" in config:
        kernel, operands = _add_streamed_kernel, _descriptors(x_TK, weight, config)
        num_programs = tma.num_programs(num_programs, x_TK.device)
    kernel[(num_programs,)](
        *operands, norm_H if bias_H is None else bias_H, residual_TH, norm_H, out, rows, sums,
        num_rows, width, weight.num_columns,
        BIAS=bias_H is not None, enable_fp_fusion=False, **config,
    )  # fmt: skip
    return out, Normed(rows, sums)
