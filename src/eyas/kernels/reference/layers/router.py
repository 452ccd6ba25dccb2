"""Routes rows to experts: the top k of the router's logits, weighted by a softmax over those k."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["route"]


def route(logits_TE: Tensor, live_T: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """Return (expert ids int64 [T, k] by falling logit, weights fp32 [T, k]). Dead rows go to id -1.

    gpt_oss/torch/model.py, `MLPBlock`.
    """
    top, ids = logits_TE.float().topk(top_k, dim=-1)
    return torch.where(live_T.unsqueeze(1), ids, -1), top.softmax(-1)
