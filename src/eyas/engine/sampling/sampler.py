"""Draws the target's tokens for the rows of a round: penalties, bias, masks, then `kernels.reference.rounds.sample`.

The penalties of a row count the tokens of its sequence and the drafts before the row, so a row gives the token that
plain decoding would give there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from eyas.engine.round.state import DeviceState, uses_penalties
from eyas.engine.round.types import Drafts, Guess, Logprobs, RoundOutput, RowMasks, Sampled, Verified
from eyas.engine.sampling.commit import commit
from eyas.engine.sequences.sequence import Sequence
from eyas.kernels.reference.rounds.chain import ChainEnd, end_chains_ref
from eyas.kernels.reference.rounds.failures import NO_TOKEN_LEFT, NOT_FINITE
from eyas.kernels.reference.rounds.mask import mask_scores
from eyas.kernels.reference.rounds.sample import sample

__all__ = ["PlainSampler", "sample_rows", "top_logprobs"]


class PlainSampler:
    """Implements `engine.round.types.Sampler` in plain PyTorch; leaves out what no sequence uses."""

    def __init__(self, state: DeviceState) -> None:
        self._state = state

    def draft(
        self,
        logits_TV: Tensor,
        slots_S: Tensor,
        sequences: list[Sequence],
        step: int,
        target_ids_V: Tensor | None,
        out: Guess,
    ) -> None:
        num_rows = len(logits_TV) // len(slots_S)
        slots_T = slots_S.repeat_interleave(num_rows)
        rows = self._state.sampling_of(slots_T, self._state.flags_of(sequences))
        positions_SR = self._state.length_S[slots_S].unsqueeze(1) + step + torch.arange(num_rows, device=slots_S.device)
        chosen = sample(logits_TV, positions_SR.flatten(), rows, target_ids_V=target_ids_V)
        out.ids_T.copy_(chosen if target_ids_V is None else target_ids_V[chosen])
        out.logprobs_T.copy_(logits_TV.log_softmax(-1).gather(1, chosen.unsqueeze(1)).squeeze(1))

    def end_chains(self, guesses_KS: Guess, room_S: Tensor, slots_S: Tensor, out: ChainEnd) -> ChainEnd:
        return end_chains_ref(*guesses_KS, room_S, slots_S, self._state.cut_SN, self._state.level_edges_N)

    def finish(
        self, verified: Verified, slots_S: Tensor, sequences: list[Sequence], drafts: Drafts, masks: RowMasks | None
    ) -> RoundOutput:
        state = self._state
        first_position_S = state.length_S[slots_S]
        sampled = sample_rows(verified.logits_SRV, first_position_S, drafts.ids_SK, state, sequences, slots_S, masks)
        return commit(state, slots_S, drafts, sampled, verified, masks)


def _penalize(
    raw: Tensor, counts: Tensor, in_prompt: Tensor, presence: Tensor, frequency: Tensor, rep: Tensor
) -> Tensor:
    """Apply repetition over prompt and output, then frequency and presence over output (vLLM's order)."""
    repeated = in_prompt | (counts > 0)
    scaled = torch.where(raw > 0, raw / rep, raw * rep)
    return torch.where(repeated, scaled, raw) - frequency * counts - presence * (counts > 0)


def _apply_penalties(logits_SRV: Tensor, state: DeviceState, slots_S: Tensor, ancestors_SK: Tensor) -> Tensor:
    """Apply base counts to all rows, then recompute the few ids that a row's draft ancestors change."""
    assert state.output_counts_SV is not None and state.in_prompt_SV is not None
    counts_SV, in_prompt_SV = state.output_counts_SV[slots_S], state.in_prompt_SV[slots_S]
    presence, frequency, repetition = (
        field[slots_S].view(-1, 1, 1) for field in (state.presence_S, state.frequency_S, state.repetition_S)
    )
    out = _penalize(logits_SRV, counts_SV.unsqueeze(1), in_prompt_SV.unsqueeze(1), presence, frequency, repetition)
    num_rows, num_drafts = logits_SRV.shape[1], ancestors_SK.shape[1]
    for row in range(1, min(num_rows, num_drafts + 1)):
        ids = ancestors_SK[:, :row]
        extra = (ids.unsqueeze(2) == ids.unsqueeze(1)).sum(2)
        fresh = _penalize(
            logits_SRV[:, row].gather(1, ids),
            counts_SV.gather(1, ids) + extra,
            in_prompt_SV.gather(1, ids),
            presence[:, 0],
            frequency[:, 0],
            repetition[:, 0],
        )
        out[:, row] = out[:, row].scatter(1, ids, fresh)
    return out


def sample_rows(
    logits_SRV: Tensor,
    first_position_S: Tensor,
    ancestors_SK: Tensor,
    state: DeviceState,
    sequences: list[Sequence],
    slots_S: Tensor,
    masks: RowMasks | None = None,
) -> Sampled:
    """Draw the token at `first_position_S` + r in row r; `ancestors_SK` are the drafts before the rows."""
    num_rows = logits_SRV.shape[1]
    positions_SR = first_position_S.unsqueeze(1) + torch.arange(num_rows, device=slots_S.device)
    params = [sequence.request.params for sequence in sequences]
    raw_SRV, scores_SRV = logits_SRV, logits_SRV
    if any(uses_penalties(sequence) for sequence in sequences):
        scores_SRV = _apply_penalties(scores_SRV, state, slots_S, ancestors_SK)
    if any(p.logit_bias for p in params):
        bias = torch.zeros_like(scores_SRV[:, 0]).scatter_add_(1, state.bias_ids_SN[slots_S], state.bias_SN[slots_S])
        scores_SRV = scores_SRV + bias.unsqueeze(1)
    if any(p.min_tokens for p in params):
        scores_SRV = _mask_stops(scores_SRV, positions_SR, state, slots_S)
    failed_SR = torch.where(raw_SRV.sum(-1).isfinite(), 0, NOT_FINITE)
    if masks is not None:
        allowed_CRV = mask_scores(scores_SRV[masks.rows_C], masks.words_CRW)
        scores_SRV = scores_SRV.index_copy(0, masks.rows_C, allowed_CRV)
        none_left_SR = (scores_SRV.amax(-1) == float("-inf")) & (failed_SR == 0)
        failed_SR = failed_SR.masked_fill(none_left_SR, NO_TOKEN_LEFT)
    rows = state.sampling_of(slots_S, state.flags_of(sequences)).take(
        torch.arange(len(slots_S), device=slots_S.device).repeat_interleave(num_rows)
    )
    ids_SR = sample(scores_SRV.flatten(0, 1), positions_SR.flatten(), rows).view(-1, num_rows)
    wanted = [p.logprobs for p in params if p.logprobs is not None]
    return Sampled(ids_SR, failed_SR, top_logprobs(raw_SRV, ids_SR, max(wanted)) if wanted else None)


def _mask_stops(scores_SRV: Tensor, positions_SR: Tensor, state: DeviceState, slots_S: Tensor) -> Tensor:
    """Forbid stop tokens before `min_tokens` were generated."""
    stops = state.stop_ids_SN[slots_S]
    too_early_SR1 = (positions_SR < state.first_stop_S[slots_S].unsqueeze(1)).unsqueeze(2)
    is_stop = torch.zeros_like(scores_SRV[:, 0], dtype=torch.bool)
    # -1 pads the list; a padding entry repeats the first stop id, if there is one.
    padded = torch.where(stops >= 0, stops, stops[:, :1].clamp(min=0))
    is_stop.scatter_(1, padded, (stops[:, :1] >= 0).expand_as(stops))
    return scores_SRV.masked_fill(too_early_SR1 & is_stop.unsqueeze(1), float("-inf"))


def top_logprobs(raw_SRV: Tensor, ids_SR: Tensor, num_top: int) -> Logprobs:
    """Return log-probabilities of `ids_SR` and of the `num_top` most likely tokens of each row."""
    logprobs = raw_SRV.log_softmax(-1)
    top, top_ids = logprobs.topk(num_top, dim=-1)
    return Logprobs(logprobs.gather(2, ids_SR.unsqueeze(2)).squeeze(2), top, top_ids)
