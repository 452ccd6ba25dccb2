"""Sampling and commit on a GPU: one launch each, with per-request sampling parameters in device memory.

One captured graph therefore serves every mixture of requests. See `kernels.triton.rounds.sample` and
`kernels.triton.rounds.commit`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from eyas.engine.round.state import DeviceState
from eyas.engine.round.types import Drafts, Guess, Logprobs, RoundOutput, RowMasks, Verified
from eyas.engine.sequences.sequence import Sequence
from eyas.kernels.layouts.dense import TILE_ROWS
from eyas.kernels.reference.rounds.accept import NUM_NUMBERS
from eyas.kernels.reference.rounds.chain import ChainEnd
from eyas.kernels.triton.rounds.chain import end_chains
from eyas.kernels.triton.rounds.commit import Ledger, commit
from eyas.kernels.triton.rounds.edits import Edits, Masks
from eyas.kernels.triton.rounds.sample import SampleSpace, draw

__all__ = ["DeviceSampler"]


class DeviceSampler:
    """Implements `engine.round.types.Sampler`."""

    def __init__(
        self,
        state: DeviceState,
        *,
        max_rows: int,
        draft_vocab_size: int | None = None,
        drafts_a_pass: int = 1,
    ) -> None:
        """A launch has up to `max_rows` rows; a head pass draws `drafts_a_pass` tokens of each sequence.

        Counts for penalties are allocated at once, because graphs hold addresses.
        The next call of `finish` overwrites the result of the last one.
        """
        state.allocate_counts()
        assert state.output_counts_SV is not None and state.in_prompt_SV is not None
        self._state = state
        self._space = SampleSpace(max_rows, state.vocab_size, state.device)
        self._draft_space: SampleSpace | None = None
        if draft_vocab_size is not None:
            self._draft_space = SampleSpace(len(state.live_S) * drafts_a_pass, draft_vocab_size, state.device)
        # Of a row: itself, a draft and its level, and the numbers of its sequence.
        self._committed = torch.empty((NUM_NUMBERS + 3) * max_rows, dtype=torch.int64, device=state.device)
        self._no_top_S = torch.zeros_like(state.num_top_S)
        # Always a tensor, so that kernels are not compiled once with a screen and once without.
        self._whole = torch.full((1,), state.vocab_size // TILE_ROWS, dtype=torch.int32, device=state.device)
        self._all_ready_S = torch.full((max_rows,), max_rows, device=state.device)
        self._edits = Edits(
            presence_S=state.presence_S,
            frequency_S=state.frequency_S,
            repetition_S=state.repetition_S,
            output_counts_SV=state.output_counts_SV,
            in_prompt_SV=state.in_prompt_SV,
            bias_ids_SN=state.bias_ids_SN,
            bias_SN=state.bias_SN,
            num_bias_S=state.num_bias_S,
            stop_ids_SN=state.stop_ids_SN,
            first_stop_S=state.first_stop_S,
        )
        self._ledger = Ledger(
            tokens_SN=state.tokens_SN,
            length_S=state.length_S,
            live_S=state.live_S,
            remaining_S=state.remaining_S,
            stop_ids_SN=state.stop_ids_SN,
            output_counts_SV=state.output_counts_SV,
            tap_ring_SWC=state.tap_ring_SWC,
        )

    def draft(
        self,
        logits_TV: Tensor,
        slots_S: Tensor,
        sequences: list[Sequence],
        step: int,
        target_ids_V: Tensor | None,
        out: Guess,
    ) -> None:
        space, state = self._draft_space, self._state
        assert space is not None
        draw(
            logits_TV,
            slots_S,
            state.length_S,
            state.sampling,
            space,
            offset=step,
            num_top_S=self._no_top_S,
            target_ids_V=target_ids_V,
            ids_T=out.ids_T,
            logprobs_T=out.logprobs_T,
        )

    def end_chains(self, guesses_KS: Guess, room_S: Tensor, slots_S: Tensor, out: ChainEnd) -> ChainEnd:
        return end_chains(*guesses_KS, room_S, slots_S, self._state.cut_SN, self._state.level_edges_N, out)

    def finish(
        self,
        verified: Verified,
        slots_S: Tensor,
        sequences: list[Sequence],
        drafts: Drafts,
        masks: RowMasks | None,
    ) -> RoundOutput:
        state, shape = self._state, verified.live_SR.shape
        most_S = None
        if masks is not None:
            most_S = self._all_ready_S if masks.num_ready_S is None else masks.num_ready_S
        drawn = draw(
            verified.logits_SRV.flatten(0, 1),
            slots_S,
            state.length_S,
            state.sampling,
            self._space,
            live_T=verified.live_SR.flatten(),
            edits=self._edits,
            ancestors_SK=drafts.ids_SK if drafts.ids_SK.shape[1] else None,
            masks=None if masks is None else _device_masks(masks, *shape),
            num_top_S=state.num_top_S,
            wanted=self._whole if verified.wanted is None else verified.wanted,
        )
        ids_SR = drawn.ids_T.view(shape)
        committed = commit(
            self._ledger,
            slots_S,
            drafts.ids_SK,
            drafts.num_valid_S,
            ids_SR,
            drawn.failed_T.view(shape),
            verified.taps_TC,
            most_S=most_S,
            levels_SK=drafts.levels_SN,
            space=self._committed,
        )
        return RoundOutput(
            ids_SR,
            committed.num_committed_S,
            committed.num_accepted_S,
            committed.stopped_S,
            committed.ended_S,
            committed.failed_S,
            drafts.ids_SK,
            drafts.num_valid_S,
            Logprobs(
                drawn.logprobs_T.view(shape),
                drawn.top_logprobs_TN.view(*shape, -1),
                drawn.top_ids_TN.view(*shape, -1),
            ),
            verified.router_logits,
            verified.live_SR.flatten(),
            packed_SW=committed.packed_SW,
        )


def _device_masks(masks: RowMasks, num_sequences: int, num_rows: int) -> Masks:
    """Return the masks of some sequences' rows, with the index of the mask of each row of the launch."""
    index_SR = torch.full((num_sequences, num_rows), -1, device=masks.words_CRW.device)
    own = torch.arange(masks.words_CRW.shape[0] * num_rows, device=index_SR.device)
    index_SR[masks.rows_C] = own.view(-1, num_rows)
    return Masks(masks.words_CRW.flatten(0, 1), index_SR.flatten())
