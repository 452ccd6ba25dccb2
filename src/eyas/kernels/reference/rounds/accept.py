"""Accepting is comparing: a draft token is accepted iff it equals the token that the target draws at its position."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["NUM_NUMBERS", "Accepted", "accept"]

# Of a sequence in a round, which the host reads before its tokens: committed, accepted, stopped, ended, failed, drafts.
NUM_NUMBERS = 6


class Accepted(NamedTuple):
    """Result of a round: it commits the first `num_committed_S` of the sampled tokens."""

    num_accepted_S: Tensor  # draft tokens, bonus excluded
    num_committed_S: Tensor  # 0 for dead sequences
    stopped_S: Tensor  # by a stop token, which is committed too
    failed_S: Tensor  # code of the row that failed right after the committed tokens, 0 if none did


def accept(
    draft_SK: Tensor,
    num_drafts_S: Tensor,
    sampled_SR: Tensor,
    failed_SR: Tensor,
    stop_ids_SN: Tensor,
    most_S: Tensor,
    live_S: Tensor,
) -> Accepted:
    """Compare K drafts with R = K + 1 sampled tokens; cut after the first stop token and at `most_S` tokens.

    A row whose `failed_SR` is not 0 has no token: the cut is before it, and rows after it were never reached.
    `stop_ids_SN` is padded with -1.
    """
    num_rows = sampled_SR.shape[1]
    column = torch.arange(num_rows, device=sampled_SR.device)
    matches = (draft_SK == sampled_SR[:, :-1]) & (column[:-1] < num_drafts_S.unsqueeze(1))
    num_accepted = matches.long().cumprod(1).sum(1)
    is_stop = (sampled_SR.unsqueeze(2) == stop_ids_SN.unsqueeze(1)).any(2)
    first_stop = torch.where(is_stop, column, num_rows).amin(1)
    num_committed = torch.minimum(torch.minimum(num_accepted, first_stop) + 1, most_S) * live_S
    first_failed = torch.where(failed_SR != 0, column, num_rows).amin(1)
    code = failed_SR.gather(1, first_failed.clamp(max=num_rows - 1).unsqueeze(1)).squeeze(1)
    failed = torch.where(first_failed < num_committed, code, 0)
    num_committed = torch.minimum(num_committed, first_failed)
    return Accepted(
        torch.minimum(num_accepted, num_committed), num_committed, live_S & (first_stop < num_committed), failed
    )
