"""Norm, QKV projection, rotary embedding and the write of keys and values into their pages, as one operation."""

from __future__ import annotations

import torch
from torch import Tensor

from eyas.kernels.linear import linear, rms_norm

__all__ = ["qkv_rope_write", "qkv_rope_write_ref", "rotate"]


def rotate(x_THD: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
    """Half-split (NeoX) rotation in fp32; the tables hold D / 2 columns."""
    first, second = x_THD.float().chunk(2, dim=-1)
    cos, sin = cos_TD.unsqueeze(-2), sin_TD.unsqueeze(-2)
    out = x_THD.new_empty(x_THD.shape)
    half = first.shape[-1]
    out[..., :half] = first * cos - second * sin
    out[..., half:] = second * cos + first * sin
    return out


def qkv_rope_write_ref(
    x_TC: Tensor,
    *,
    norm_C: Tensor | None,
    eps: float,
    qkv_NC: Tensor,
    bias_N: Tensor | None,
    cos_TD: Tensor,
    sin_TD: Tensor,
    k_cache_PBGD: Tensor,
    v_cache_PBGD: Tensor,
    slots_T: Tensor,
    tile: int | None,
) -> Tensor:
    """Queries [T, Q, D]; keys and values go to `slots_T` (page * page size + offset; dead rows point into page 0).

    `norm_C` None means that `x_TC` is normed already. A value that is not finite is written as 0 under a NaN key: rows
    that see the key become NaN, and rows that do not are spared, since a masked weight of 0 times NaN would be NaN.
    """
    num_kv, dim = k_cache_PBGD.shape[-2:]
    normed = x_TC if norm_C is None else rms_norm(x_TC, norm_C, eps)
    qkv = linear(normed, qkv_NC, bias_N, tile=tile).unflatten(-1, (-1, dim))
    num_heads = qkv.shape[1] - 2 * num_kv
    rotated = rotate(qkv[:, : num_heads + num_kv], cos_TD, sin_TD)
    keys = rotated[:, num_heads:].to(k_cache_PBGD.dtype)
    values = qkv[:, num_heads + num_kv :].to(v_cache_PBGD.dtype)
    finite = values.isfinite().all(-1, keepdim=True)
    k_cache_PBGD.view(-1, num_kv, dim)[slots_T] = torch.where(finite, keys, float("nan"))
    v_cache_PBGD.view(-1, num_kv, dim)[slots_T] = torch.where(finite, values, 0.0)
    return rotated[:, :num_heads]


qkv_rope_write = qkv_rope_write_ref
