"""Cuts chains of drafts after the last one that is worth its row, by the confidence in it and in those before.

Shape letters: S sequences or slots, K drafts, N levels of confidence.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["ChainEnd", "end_chains_ref"]


class ChainEnd(NamedTuple):
    """Drafts by sequence, how many of them are to be verified, and levels of confidence; int64."""

    ids_SK: Tensor
    num_valid_S: Tensor
    levels_SK: Tensor


def end_chains_ref(
    ids_KS: Tensor, logprobs_KS: Tensor, room_S: Tensor, slots_S: Tensor, cut_SN: Tensor, edges_N: Tensor
) -> ChainEnd:
    """Cut chains, at most `room_S` drafts of each sequence. `edges_N` are the log-probabilities between levels.

    A row of `cut_SN`, one for each slot, is a threshold and, for each level, the logarithm of its chance: a chain ends
    where their sum falls below the threshold.
    """
    levels_SK = torch.bucketize(logprobs_KS.t().contiguous(), edges_N)
    cut_SN = cut_SN[slots_S]
    is_worth_SK = cut_SN.gather(1, 1 + levels_SK).cumsum(1) >= cut_SN[:, :1]
    return ChainEnd(ids_KS.t().contiguous(), torch.minimum(room_S, is_worth_SK.sum(1)), levels_SK)
