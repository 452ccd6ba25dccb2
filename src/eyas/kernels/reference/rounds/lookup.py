"""Prompt lookup: drafts what followed the latest earlier occurrence of a sequence's last n tokens, for the longest n.

Idea: Saxena, "Prompt lookup decoding", 2023. Shape letters: S sequences or slots, N positions, K drafts.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

__all__ = ["Found", "LookUp", "look_up_ref"]


class Found(NamedTuple):
    """`ids_SK` int64 mean nothing where nothing `is_found_S`."""

    ids_SK: Tensor
    is_found_S: Tensor


class LookUp(Protocol):
    """Function that drafts for the sequences in `slots_S`, from the first `length_S`[slot] tokens of a row of
    `tokens_SN`, int64.

    At least `min_match` and at most `max_match` tokens must occur before. What ends with the sequence goes on with
    itself: a period is repeated. `max_length` bounds the lengths.
    """

    def __call__(
        self,
        tokens_SN: Tensor,
        slots_S: Tensor,
        length_S: Tensor,
        num_drafts: int,
        *,
        min_match: int,
        max_match: int,
        max_length: int,
    ) -> Found: ...


def look_up_ref(
    tokens_SN: Tensor,
    slots_S: Tensor,
    length_S: Tensor,
    num_drafts: int,
    *,
    min_match: int,
    max_match: int,
    max_length: int,
) -> Found:
    """Do prompt lookup in plain PyTorch; see `LookUp`."""
    tokens, length_S1 = tokens_SN[slots_S][:, :max_length], length_S[slots_S].unsqueeze(1)
    column = torch.arange(tokens.shape[1], device=tokens.device)
    # matched[s, j]: how many tokens before position j equal those before the end, counted backwards from j - 1.
    matched = torch.zeros_like(tokens)
    unbroken = (column > 0) & (column < length_S1)
    for back in range(1, max_match + 1):
        suffix = tokens.gather(1, (length_S1 - back).clamp(min=0))
        unbroken = unbroken & (tokens.roll(back, 1) == suffix) & (column >= back)
        matched += unbroken
    # Longest match first, then the latest.
    score = torch.where(matched >= min_match, matched * tokens.shape[1] + column, -1)
    best, start = score.max(1, keepdim=True)
    offset = torch.arange(num_drafts, device=tokens.device) % (length_S1 - start).clamp(min=1)
    return Found(tokens.gather(1, start + offset), best.squeeze(1) >= 0)
