"""One speculative round: propose, verify, accept, commit.

Everything stays on the device; `RoundOutput` is what the host copies and reads later.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from eyas.engine.drafter import Drafter, Drafts
from eyas.engine.masking import read_for_masks
from eyas.engine.sampler import Logprobs, Sampled, sample_rows
from eyas.engine.sequence import Sequence
from eyas.engine.stages import Stages
from eyas.engine.state import DeviceState
from eyas.kernels.accept import Accepted, accept
from eyas.kernels.ops import LayerCache, Ops
from eyas.model.batch import RowBatch
from eyas.model.gpt_oss import GptOss

__all__ = ["RoundOutput", "commit", "speculative_round"]


class RoundOutput(NamedTuple):
    """`sampled_SR[:, :num_committed]` are the new tokens; `ended_S` marks sequences that are done.

    `failed_S` says why a sequence ended without a token where one was due (see `engine.sampler`), 0 if it did not.
    """

    sampled_SR: Tensor
    num_committed_S: Tensor
    num_accepted_S: Tensor
    stopped_S: Tensor
    ended_S: Tensor
    failed_S: Tensor
    draft_SK: Tensor
    num_drafts_S: Tensor
    logprobs: Logprobs | None
    router_logits: tuple[Tensor, ...]  # [rows, E] of each layer
    live_T: Tensor  # which of those rows were
    prompt_logprobs: Logprobs | None = None  # [positions], [positions, n]: with a prompt's first token


class Verified(NamedTuple):
    """What the target says of a round's rows."""

    logits_SRV: Tensor
    taps_TC: Tensor | None
    router_logits: tuple[Tensor, ...]
    live_SR: Tensor


def speculative_round(
    target: GptOss,
    caches: list[LayerCache],
    drafter: Drafter,
    state: DeviceState,
    sequences: list[Sequence],
    slots_S: Tensor,
    num_drafts: int,
    max_length: int,
    ops: Ops,
    stages: Stages,
) -> RoundOutput:
    """`max_length` bounds the sequences' lengths. `slots_S` may end with dead slots beyond `sequences`."""
    drafts = _propose(drafter, state, slots_S, sequences, num_drafts, max_length)
    mask_input = read_for_masks(state, slots_S, sequences, drafts)

    def verify(slots_S: Tensor, *drafts: Tensor) -> Verified:
        batch = _verify_rows(state, slots_S, Drafts(*drafts), max_length, ops)
        output = target.forward(batch, caches)
        logits_SRV = target.logits(output.normed, ops).unflatten(0, batch.tokens_SR.shape)
        return Verified(logits_SRV, output.taps_TC, output.router_logits, batch.live_SR)

    verified = stages.run(("verify", len(slots_S), num_drafts), verify, slots_S, *drafts)
    masks = None if mask_input is None else mask_input.masks(state.vocab_size)
    sampled = sample_rows(verified.logits_SRV, state.length_S[slots_S], drafts.ids_SK, state, sequences, slots_S, masks)
    return commit(state, slots_S, drafts, sampled, verified.taps_TC, verified.router_logits, verified.live_SR)


def _propose(
    drafter: Drafter, state: DeviceState, slots_S: Tensor, sequences: list[Sequence], num_drafts: int, max_length: int
) -> Drafts:
    if num_drafts:
        return drafter.propose(state, slots_S, sequences, num_drafts, max_length)
    return Drafts(slots_S.new_zeros(len(slots_S), 0), torch.zeros_like(slots_S))


def _verify_rows(state: DeviceState, slots_S: Tensor, drafts: Drafts, max_length: int, ops: Ops) -> RowBatch:
    """The last committed token and the drafts behind it; rows past a sequence's valid drafts are dead."""
    length_S1 = state.length_S[slots_S].unsqueeze(1)
    num_rows = drafts.ids_SK.shape[1] + 1
    column = torch.arange(num_rows, device=slots_S.device)
    last = state.tokens_SN[slots_S.unsqueeze(1), length_S1 - 1]
    return RowBatch(
        tokens_SR=torch.cat((last, drafts.ids_SK), dim=1),
        positions_SR=length_S1 - 1 + column,
        live_SR=(column <= drafts.num_valid_S.unsqueeze(1)) & state.live_S[slots_S].unsqueeze(1),
        tables=state.tables_of(slots_S),
        max_length=max_length + num_rows - 1,
        ops=ops,
    )


def commit(
    state: DeviceState,
    slots_S: Tensor,
    drafts: Drafts,
    sampled: Sampled,
    taps_TC: Tensor | None,
    router_logits: tuple[Tensor, ...],
    rows_live_SR: Tensor,
) -> RoundOutput:
    """Accept, append the committed tokens, keep the hidden states that the head will need, advance the lengths."""
    ids_SR = sampled.ids_SR
    accepted: Accepted = accept(
        drafts.ids_SK,
        drafts.num_valid_S,
        ids_SR,
        sampled.failed_SR,
        state.stop_ids_SN[slots_S],
        state.remaining_S[slots_S],
        state.live_S[slots_S],
    )
    num_seqs, num_rows = ids_SR.shape
    length_S, slots_S1 = state.length_S[slots_S], slots_S.unsqueeze(1)
    column = torch.arange(num_rows, device=slots_S.device)
    positions_SR = length_S.unsqueeze(1) + column
    # Tokens behind the new length are written too and never read.
    last = state.tokens_SN.shape[1] - 1
    state.tokens_SN[slots_S1, positions_SR.clamp(max=last)] = ids_SR
    if taps_TC is not None:
        ring = state.tap_ring_SWC
        ring[slots_S1, positions_SR % ring.shape[1]] = taps_TC.unflatten(0, (num_seqs, num_rows)).to(ring.dtype)
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
        router_logits,
        rows_live_SR.flatten(),
    )
