"""Attention output projection, residual add, norm and top-k routing, as one operation."""

from __future__ import annotations

import torch
from torch import Tensor

from eyas.kernels.linear import linear, rms_norm

__all__ = ["o_norm_router", "o_norm_router_ref"]


def o_norm_router_ref(
    attn_TN: Tensor,
    residual_TH: Tensor,
    live_T: Tensor,
    *,
    o_HN: Tensor,
    o_bias_H: Tensor,
    norm_H: Tensor,
    eps: float,
    router_EH: Tensor,
    router_bias_E: Tensor,
    top_k: int,
    tile: int | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(residual [T, H], normed [T, H], expert ids int64 [T, k], expert weights fp32 [T, k]).

    Experts are the top k of the raw router logits, weighted by a softmax over those k. Dead rows route to id -1.
    """
    residual = residual_TH + linear(attn_TN, o_HN, o_bias_H, tile=tile)
    normed = rms_norm(residual, norm_H, eps)
    logits = linear(normed, router_EH, router_bias_E, tile=tile).float()
    top, ids = logits.topk(top_k, dim=-1)
    ids = torch.where(live_T.unsqueeze(1), ids, -1)
    return residual, normed, ids, top.softmax(-1)


o_norm_router = o_norm_router_ref
