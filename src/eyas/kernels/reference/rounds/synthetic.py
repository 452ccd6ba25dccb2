"""Synthetic acceptance: which token a draft is, and whether the target agrees.

Shape letters: S sequences or slots, N positions, K drafts, R rows of a sequence, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["decide_ref", "guess_ref"]


def guess_ref(ids_SN: Tensor, slots_S: Tensor, length_S: Tensor, step: int, out_T: Tensor) -> None:
    """Write the ids at the positions of drafts: row r of a sequence stands `step` + r after its length."""
    column = step + torch.arange(len(out_T) // len(slots_S), device=slots_S.device)
    positions_SR = (length_S[slots_S].unsqueeze(1) + column).clamp(max=ids_SN.shape[1] - 1)
    out_T.copy_(ids_SN[slots_S.unsqueeze(1), positions_SR].flatten())


def decide_ref(
    logits_SRV: Tensor, right_SN: Tensor, slots_S: Tensor, length_S: Tensor, draft_SK: Tensor, certain: float
) -> None:
    """Set the logit of each draft to `certain` where `right_SN` says so at its position, else to its negative."""
    column = torch.arange(draft_SK.shape[1], device=slots_S.device)
    positions_SK = (length_S[slots_S].unsqueeze(1) + column).clamp(max=right_SN.shape[1] - 1)
    agreed_SK = torch.where(right_SN[slots_S.unsqueeze(1), positions_SK], certain, -certain)
    logits_SRV[:, : len(column)].scatter_(2, draft_SK.unsqueeze(2), agreed_SK.unsqueeze(2))
