"""Embeddings and norms of prompt rows, one program a row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from eyas.kernels.reference.layers.norm import Normed

__all__ = ["embed", "pair"]


@triton.jit
def _embed_kernel(
    tokens_ptr, embed_ptr, norm_ptr, residual_ptr, rows_ptr, sums_ptr,
    H,
    BLOCK_H: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK_H)
    inside = column < H
    token = tl.load(tokens_ptr + row)
    x = tl.load(embed_ptr + token * H + column, mask=inside, other=0.0).to(tl.float32)
    norm = tl.load(norm_ptr + column, mask=inside, other=0.0)
    tl.store(residual_ptr + row * H + column, x, mask=inside)
    tl.store(rows_ptr + row * H + column, (x * norm).to(rows_ptr.dtype.element_ty), mask=inside)
    tl.store(sums_ptr + row, tl.sum(x * x))


@triton.jit
def _rms_norm(x, norm, H, eps):
    return x * tl.rsqrt(tl.sum(x * x) / H + eps) * norm


@triton.jit
def _pair_kernel(
    tokens_ptr, embed_ptr, embed_norm_ptr, hidden_ptr, hidden_norm_ptr, pairs_ptr, normed_ptr,
    H, eps,
    BLOCK_H: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK_H)
    inside = column < H
    token = tl.load(tokens_ptr + row)
    embedded = tl.load(embed_ptr + token * H + column, mask=inside, other=0.0).to(tl.float32)
    embedded = _rms_norm(embedded, tl.load(embed_norm_ptr + column, mask=inside, other=0.0), H, eps)
    hidden = tl.load(hidden_ptr + row * H + column, mask=inside, other=0.0).to(tl.float32)
    hidden = _rms_norm(hidden, tl.load(hidden_norm_ptr + column, mask=inside, other=0.0), H, eps)
    dtype: tl.constexpr = pairs_ptr.dtype.element_ty
    tl.store(pairs_ptr + row * 2 * H + column, embedded.to(dtype), mask=inside)
    tl.store(pairs_ptr + row * 2 * H + H + column, hidden.to(dtype), mask=inside)
    tl.store(normed_ptr + row * H + column, hidden.to(dtype), mask=inside)


def embed(tokens_T: Tensor, embed_VH: Tensor, norm_H: Tensor) -> tuple[Tensor, Normed]:
    """The residual stream fp32 [T, H] and its norm in split form, in the dtype of the embeddings."""
    num_rows, width = tokens_T.shape[0], embed_VH.shape[1]
    residual = torch.empty(num_rows, width, dtype=torch.float32, device=embed_VH.device)
    rows = torch.empty(num_rows, width, dtype=embed_VH.dtype, device=embed_VH.device)
    sums = torch.empty(num_rows, 1, dtype=torch.float32, device=embed_VH.device)
    _embed_kernel[(num_rows,)](
        tokens_T, embed_VH, norm_H, residual, rows, sums, width, BLOCK_H=triton.next_power_of_2(width)
    )
    return residual, Normed(rows, sums)


def pair(
    tokens_T: Tensor, embed_VH: Tensor, embed_norm_H: Tensor, hidden_TH: Tensor, hidden_norm_H: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Normed embeddings, then normed hidden states, as [T, 2 H]; and the latter alone."""
    num_rows, width = hidden_TH.shape
    pairs = torch.empty(num_rows, 2 * width, dtype=embed_VH.dtype, device=embed_VH.device)
    normed = torch.empty(num_rows, width, dtype=embed_VH.dtype, device=embed_VH.device)
    _pair_kernel[(num_rows,)](
        tokens_T, embed_VH, embed_norm_H, hidden_TH, hidden_norm_H, pairs, normed, width, eps,
        BLOCK_H=triton.next_power_of_2(width),
    )  # fmt: skip
    return pairs, normed
