"""Cuts chains of drafts after the last one that is worth its row, by the confidence in it and in those before.

Shape letters: S sequences or slots, K drafts, N levels of confidence.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["ChainEnd", "end_chains_ref"]


class ChainEnd(NamedTuple):
    """`levels_SK` int64 of confidence, and how many drafts are to be verified."""

    levels_SK: Tensor
    num_valid_S: Tensor


def end_chains_ref(logprobs_SK: Tensor, room_S: Tensor, slots_S: Tensor, cut_SN: Tensor, edges_N: Tensor) -> ChainEnd:
    """Cut chains, at most `room_S` drafts of each sequence. `edges_N` are the log-probabilities between levels.

    A row of `cut_SN`, one for each slot, is a threshold and, for each level, the logarithm of its chance: a chain ends
    where their sum falls below the threshold.
    """
    levels_SK = torch.bucketize(logprobs_SK, edges_N)
    cut_SN = cut_SN[slots_S]
    is_worth_SK = cut_SN.gather(1, 1 + levels_SK).cumsum(1) >= cut_SN[:, :1]
    return ChainEnd(levels_SK, torch.minimum(room_S, is_worth_SK.sum(1)))
