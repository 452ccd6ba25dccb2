"""Finishes queries, keys and values: norm and bias, rotary embedding, and the write of keys and values to pages."""

from __future__ import annotations

import torch
from torch import Tensor

from eyas.kernels.layouts.fp8_cache import to_fp8_pair
from eyas.kernels.reference.layers.ops import Product, Rows

__all__ = ["finish", "rope_write_ref", "rotate", "write_places"]


def finish(product: Product, bias_N: Tensor | None, eps: float) -> Tensor:
    """Return [T, N] in the dtype of the slices: their sum, divided by the rows' norm, plus the bias."""
    slices = product.slices_STN
    total = slices[0]
    for part in slices[1:]:
        total = total + part
    if product.square_sums_TP is not None:
        total = total * torch.rsqrt(product.square_sums_TP.sum(-1, keepdim=True) / product.width + eps)
    return (total if bias_N is None else total + bias_N).to(slices.dtype)


def write_places(rows: Rows, page_size: int) -> tuple[Tensor, Tensor]:
    """Pages [T] of the rows' positions and offsets [T] in them; dead rows go to page 0."""
    columns = (rows.positions_SR // page_size).clamp(0, rows.table_SP.shape[1] - 1)
    pages = torch.where(rows.live_SR, rows.table_SP.gather(1, columns), 0)
    return pages.flatten(), (rows.positions_SR % page_size).flatten()


def rotate(x_THD: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
    """Rotate in half-split (NeoX) form in fp32; the tables hold D / 2 columns."""
    first, second = x_THD.float().chunk(2, dim=-1)
    cos, sin = cos_TD.unsqueeze(-2), sin_TD.unsqueeze(-2)
    out = x_THD.new_empty(x_THD.shape)
    half = first.shape[-1]
    out[..., :half] = first * cos - second * sin
    out[..., half:] = second * cos + first * sin
    return out


def rope_write_ref(
    qkv_TN: Tensor,
    *,
    cos_TD: Tensor,
    sin_TD: Tensor,
    k_cache_PGBD: Tensor,
    v_cache_PGBD: Tensor,
    pages_T: Tensor,
    offsets_T: Tensor,
    scales_PG2B: Tensor | None = None,
) -> Tensor:
    """Rotated queries [T, Q, D]; keys and values of the rows go to their pages.

    A value that is not finite is written as 0 under a NaN key: rows that see the key become NaN, and rows that do not
    are spared, since a masked weight of 0 times NaN would be NaN. With scales the caches are in 8 bits, and keys and
    values are rounded twice: to the dtype of `qkv_TN`, then to e4m3.
    """
    _, num_kv, _, dim = k_cache_PGBD.shape
    qkv = qkv_TN.unflatten(-1, (-1, dim))
    num_heads = qkv.shape[1] - 2 * num_kv
    rotated = rotate(qkv[:, : num_heads + num_kv], cos_TD, sin_TD)
    keys, values = rotated[:, num_heads:], qkv[:, num_heads + num_kv :]
    if scales_PG2B is None:
        keys, values = keys.to(k_cache_PGBD.dtype), values.to(v_cache_PGBD.dtype)
        finite = values.isfinite().all(-1, keepdim=True)
        keys, values = torch.where(finite, keys, float("nan")), torch.where(finite, values, 0.0)
    else:
        keys, values, scales_TG2 = to_fp8_pair(keys.to(qkv.dtype), values)
        scales_PG2B[pages_T, :, :, offsets_T] = scales_TG2
    k_cache_PGBD[pages_T, :, offsets_T] = keys
    v_cache_PGBD[pages_T, :, offsets_T] = values
    return rotated[:, :num_heads]
