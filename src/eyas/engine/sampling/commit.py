"""The end of a round in plain PyTorch: accept drafts, append tokens, advance the sequences."""

from __future__ import annotations

import torch
from torch import Tensor

from eyas.engine.round.state import DeviceState
from eyas.engine.round.types import Drafts, RoundOutput, RowMasks, Sampled, Verified
from eyas.kernels.reference.rounds.accept import Accepted, accept

__all__ = ["commit"]


def commit(
    state: DeviceState,
    slots_S: Tensor,
    drafts: Drafts,
    sampled: Sampled,
    verified: Verified,
    masks: RowMasks | None = None,
) -> RoundOutput:
    """Accept drafts, append committed tokens, keep the hidden states that the head will need, advance the lengths.

    A row without its mask and the rows after it are not committed; the sequence comes again in a later round.
    """
    ids_SR, most_S = sampled.ids_SR, state.remaining_S[slots_S]
    if masks is not None and masks.num_ready_S is not None:
        most_S = torch.minimum(most_S, masks.num_ready_S)
    accepted: Accepted = accept(
        drafts.ids_SK,
        drafts.num_valid_S,
        ids_SR,
        sampled.failed_SR,
        state.stop_ids_SN[slots_S],
        most_S,
        state.live_S[slots_S],
    )
    num_seqs, num_rows = ids_SR.shape
    length_S, slots_S1 = state.length_S[slots_S], slots_S.unsqueeze(1)
    column = torch.arange(num_rows, device=slots_S.device)
    positions_SR = length_S.unsqueeze(1) + column
    # Tokens after the new length are written too and never read.
    last = state.tokens_SN.shape[1] - 1
    state.tokens_SN[slots_S1, positions_SR.clamp(max=last)] = ids_SR
    if verified.taps_TC is not None:
        ring = state.tap_ring_SWC
        taps_SRC = verified.taps_TC.unflatten(0, (num_seqs, num_rows))
        ring[slots_S1, positions_SR % ring.shape[1]] = taps_SRC.to(ring.dtype)
    if state.output_counts_SV is not None:
        is_new = (column < accepted.num_committed_S.unsqueeze(1)).to(state.output_counts_SV.dtype)
        state.output_counts_SV.index_put_((slots_S1, ids_SR), is_new, accumulate=True)
    state.length_S[slots_S] = length_S + accepted.num_committed_S
    remaining_S = state.remaining_S[slots_S] - accepted.num_committed_S
    state.remaining_S[slots_S] = remaining_S
    ended_S = state.live_S[slots_S] & (accepted.stopped_S | (remaining_S == 0) | (accepted.failed_S != 0))
    state.live_S[slots_S] = state.live_S[slots_S] & ~ended_S
    return RoundOutput(
        ids_SR,
        accepted.num_committed_S,
        accepted.num_accepted_S,
        accepted.stopped_S,
        ended_S,
        accepted.failed_S,
        drafts.ids_SK,
        drafts.num_valid_S,
        sampled.logprobs,
        verified.router_logits,
        verified.live_SR.flatten(),
    )
