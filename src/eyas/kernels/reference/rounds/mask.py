"""Scores under a packed mask: one bit per token, -inf where it is 0 (llguidance's layout)."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["mask_scores"]


def mask_scores(scores_TV: Tensor, words_TW: Tensor) -> Tensor:
    """Mask scores: bit v % 32 of int32 word v // 32 keeps the score of token v."""
    shifts = torch.arange(32, device=words_TW.device, dtype=torch.int32)
    allowed = ((words_TW.unsqueeze(-1) >> shifts) & 1).bool().flatten(-2)
    return scores_TV.masked_fill(~allowed[..., : scores_TV.shape[-1]], float("-inf"))
