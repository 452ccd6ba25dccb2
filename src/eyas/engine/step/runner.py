"""Executes a StepPlan on the device: page copies, prompt chunks, one speculative round. Reads nothing back.

Prompt rows and generated rows have operations of their own, chosen by the role of a row, never by the size of a launch.
Prompt rows lie on a fixed grid of absolute positions, so where a chunk ends changes no result.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any, NamedTuple

import torch
from torch import Tensor

from eyas.engine.drafters.base import Drafter
from eyas.engine.drafters.ngram import NgramDrafter
from eyas.engine.round.stages import Stages
from eyas.engine.round.state import DeviceState
from eyas.engine.round.types import Drafts, Logprobs, RoundOutput, Sampler, Verified
from eyas.engine.sampling.masking import read_for_masks
from eyas.engine.sampling.sampler import top_logprobs
from eyas.engine.sequences.sequence import Sequence
from eyas.engine.step.scheduler import Chunk, StepPlan, SwapIn, SwapOut
from eyas.engine.step.speculate import speculative_round
from eyas.kernels.reference.norm import Normed
from eyas.kernels.reference.ops import LayerCache, Ops
from eyas.kernels.reference.roles import PROMPT_TILE
from eyas.model.batch import RowBatch
from eyas.model.networks.gpt_oss import GptOss

__all__ = ["Runner", "StepOutput", "Swapped"]


class StepOutput(NamedTuple):
    """Device results of a step: one output for the round, and one for each prompt that it finished."""

    round: RoundOutput | None
    first_tokens: list[tuple[Sequence, RoundOutput]]


class Swapped(NamedTuple):
    """Pages of a preempted sequence in host memory, by layer."""

    layers: list[tuple[Tensor, Tensor]]
    num_full: int
    num_sliding: int


class Runner:
    def __init__(
        self,
        target: GptOss,
        drafter: Drafter,
        state: DeviceState,
        caches: list[LayerCache],
        tap_pages_PC: Tensor,
        *,
        row_ops: Ops,
        prompt_ops: Ops,
        sampler: Sampler,
        prompt_sampler: Sampler,
        stages: Stages,
        ngram_drafter: NgramDrafter | None = None,
    ) -> None:
        """`tap_pages_PC` holds, for each full page, the hidden states tapped at its last token.

        `ngram_drafter` is the second drafter, for the sequences that a plan names in `by_lookup`.
        """
        self.target = target
        self.drafter = drafter
        self.state = state
        self.caches = caches
        self.tap_pages_PC = tap_pages_PC
        self.row_ops = row_ops
        self.prompt_ops = prompt_ops
        self.sampler = sampler
        self.prompt_sampler = prompt_sampler
        self.stages = stages
        self.ngram_drafter = ngram_drafter

    @property
    def lookup_sizes(self) -> Seq[int]:
        """N-gram sizes of prompt lookup in order of preference; empty without lookup."""
        return (self.ngram_drafter or self.drafter).lookup_sizes

    @torch.inference_mode()
    def run(self, plan: StepPlan, *, keeps_routing: bool = False) -> StepOutput:
        for swap_out in plan.swap_out:
            self._swap_out(swap_out)
        for swap_in in plan.swap_in:
            self._swap_in(swap_in)
        for sequence in plan.admitted:  # their page tables are among the updates
            self.state.enter(sequence)
            self._resume_taps(sequence)
        for sequence in plan.page_updates:
            if sequence.slot is not None:
                self.state.set_pages(sequence)
        drafts = plan.drafts
        if drafts.num_drafts:
            self.state.limit_drafts(drafts.limits, drafts.by_lookup)
            self.state.cut_drafts(drafts.cut)
        if drafts.num_missed:
            self.drafter.note_commit(drafts.num_missed)
        output = self._decode(plan, keeps_routing) if plan.decode else None
        if plan.swap_in:  # they decode from the next step on, with a possibly longer backlog of the head
            self.drafter.note_commit(1 << 30)
        first_tokens = []
        for chunk in plan.chunks:
            first = self._prefill(chunk)
            if first is not None:
                first_tokens.append((chunk.sequence, first))
        return StepOutput(output, first_tokens)

    # -- generated rows -----------------------------------------------------------------------------------------------

    def _decode(self, plan: StepPlan, keeps_routing: bool) -> RoundOutput:
        sequences, drafts = plan.decode, plan.drafts
        slots_S = self._slots(sequences, self.stages.rows(len(sequences)))
        # length_bound includes this round's tokens.
        max_length = max(s.length_bound for s in sequences)
        if self.stages.has_fixed_shapes:
            max_length = self.state.tokens_SN.shape[1]
        output = speculative_round(
            self.target,
            self.caches,
            self.drafter,
            self.state,
            sequences,
            slots_S,
            drafts,
            max_length,
            self.row_ops,
            self.sampler,
            self.stages,
            ngram_drafter=self.ngram_drafter,
            keeps_routing=keeps_routing,
        )
        self.drafter.note_commit(drafts.num_drafts + 1)
        return output

    def _slots(self, sequences: Seq[Sequence], num_rows: int = 1) -> Tensor:
        """Return the slots on the device, padded to `num_rows` with the dead slot."""
        slots: list[Any] = [s.slot for s in sequences] + [self.state.dead_slot] * (num_rows - len(sequences))
        return self._on_device(slots)

    def _on_device(self, numbers: Seq[int]) -> Tensor:
        """Return numbers on the device without a synchronisation, which indexing with a list would cause."""
        return torch.tensor(numbers).to(self.state.device, non_blocking=True)

    # -- prompt rows --------------------------------------------------------------------------------------------------

    def _prefill(self, chunk: Chunk) -> RoundOutput | None:
        """Run a chunk; after a prompt's last token, draw the first token of the answer."""
        sequence, state = chunk.sequence, self.state
        slots_S = self._slots([sequence])
        batch = self._prompt_rows(chunk, slots_S, first_live=chunk.start)
        output = self.target.forward(batch, self.caches)
        row_of_end = chunk.end - 1 - int(chunk.start // PROMPT_TILE * PROMPT_TILE)
        if output.taps_TC is not None:
            self._prefill_taps(chunk, slots_S, output.taps_TC)
        if sequence.wants_prompt_logprobs:
            self._score_prompt(chunk, slots_S, output.normed)
        if not chunk.is_last:
            return None
        state.live_S.index_fill_(0, slots_S, True)
        last = slice(row_of_end, row_of_end + 1)
        none = Drafts(slots_S.new_zeros(1, 0), torch.zeros_like(slots_S))
        mask_input = read_for_masks(state, slots_S, [sequence], none)
        logits_SRV = self.target.logits(output.normed.take(last), self.row_ops).unsqueeze(0)
        masks = None if mask_input is None else mask_input.masks(state.vocab_size)[0]  # ready since it was queued
        taps = None if output.taps_TC is None else output.taps_TC[last]
        verified = Verified(logits_SRV, taps, (), batch.live_SR[:, last])
        first = self.prompt_sampler.finish(verified, slots_S, [sequence], none, masks)
        if not sequence.prompt_logprobs:
            return first
        parts = zip(*sequence.prompt_logprobs, strict=True)
        return first._replace(prompt_logprobs=Logprobs(*(torch.cat(part) for part in parts)))

    def _score_prompt(self, chunk: Chunk, slots_S: Tensor, normed: Normed) -> None:
        """Compute raw log-probabilities of the prompt tokens after the chunk's rows; all logits at once may not fit."""
        sequence, tokens_SN = chunk.sequence, self.state.tokens_SN
        num_top = sequence.request.params.prompt_logprobs
        assert num_top is not None
        low, end = chunk.start // PROMPT_TILE * PROMPT_TILE, min(chunk.end, sequence.prompt_length - 1)
        for first in range(low, end, PROMPT_TILE):
            tile = slice(first - low, first - low + PROMPT_TILE)
            logits = self.target.logits(normed.take(tile), self.prompt_ops)
            columns = torch.arange(first + 1, first + 1 + PROMPT_TILE, device=self.state.device)
            followers = tokens_SN[slots_S, columns.clamp(max=tokens_SN.shape[1] - 1)].unsqueeze(0)
            scored = top_logprobs(logits.unsqueeze(0), followers, num_top)
            rows = slice(max(chunk.start - first, 0), end - first)
            sequence.prompt_logprobs.append(Logprobs(*(part[0, rows] for part in scored)))

    def _prompt_rows(self, chunk: Chunk, slots_S: Tensor, *, first_live: int) -> RowBatch:
        """Return the chunk's rows, padded with dead rows to whole tiles of the absolute grid."""
        state = self.state
        low = chunk.start // PROMPT_TILE * PROMPT_TILE
        high = -(-chunk.end // PROMPT_TILE) * PROMPT_TILE
        positions_SR = torch.arange(low, high, device=state.device).unsqueeze(0)
        return RowBatch(
            tokens_SR=state.tokens_SN[slots_S, low:high],
            positions_SR=positions_SR,
            live_SR=(positions_SR >= first_live) & (positions_SR < chunk.end),
            tables=state.tables_of(slots_S),
            max_length=high,
            ops=self.prompt_ops,
        )

    def _prefill_taps(self, chunk: Chunk, slots_S: Tensor, taps_TC: Tensor) -> None:
        """Let the drafter read the chunk with its paired taps, and keep the taps that later steps need."""
        state, sequence = self.state, chunk.sequence
        low, page_size = chunk.start // PROMPT_TILE * PROMPT_TILE, self.caches[0].k.shape[1]
        ring, shift, paired_TC = state.tap_ring_SWC, self.drafter.needs.tap_shift, taps_TC
        if shift:
            # Position p is paired with the taps of p - 1; the ring holds those before the chunk.
            paired_TC = taps_TC.roll(1, 0)
            paired_TC[chunk.start - low] = ring[slots_S, chunk.start % ring.shape[1]][0].to(paired_TC.dtype)
        self.drafter.read(self._prompt_rows(chunk, slots_S, first_live=max(shift, chunk.start)), paired_TC)
        state.head_length_S.index_fill_(0, slots_S, chunk.end)
        ring[slots_S, chunk.end % ring.shape[1]] = taps_TC[chunk.end - 1 - low].to(ring.dtype)
        ends = range((chunk.start // page_size + 1) * page_size, chunk.end + 1, page_size)
        if ends and self.drafter.needs.page_tap_width:
            pages = self._on_device([sequence.full_pages[end // page_size - 1] for end in ends])
            rows = self._on_device([end - 1 - low for end in ends])
            self.tap_pages_PC[pages] = taps_TC[rows].to(self.tap_pages_PC.dtype)

    def _resume_taps(self, sequence: Sequence) -> None:
        """Restore, after a prefix hit, the hidden state before the first row to compute from the hit's last page."""
        if sequence.num_cached and self.drafter.needs.page_tap_width:
            ring, slot = self.state.tap_ring_SWC, sequence.slot
            last_page = sequence.full_pages[sequence.num_cached // self.caches[0].k.shape[1] - 1]
            ring[slot, sequence.num_cached % ring.shape[1]] = self.tap_pages_PC[last_page]

    # -- preemption ---------------------------------------------------------------------------------------------------

    def _layer_pages(self, full: Seq[int], sliding: Seq[int]) -> list[tuple[LayerCache, Tensor]]:
        """Return every cache, the drafter's included, with the page ids of its group."""
        full_ids, sliding_ids = self._on_device(full), self._on_device(sliding)
        kinds = self.target.config.layer_is_sliding
        pairs = [
            (cache, sliding_ids if is_sliding else full_ids)
            for cache, is_sliding in zip(self.caches, kinds, strict=True)
        ]
        return pairs + [(cache, full_ids) for cache in self.drafter.caches]

    def _swap_out(self, swap: SwapOut) -> None:
        copies = [
            (cache.k[ids].to("cpu"), cache.v[ids].to("cpu"))
            for cache, ids in self._layer_pages(swap.full_pages, swap.sliding_pages)
        ]
        swap.sequence.swapped = Swapped(copies, len(swap.full_pages), len(swap.sliding_pages))

    def _swap_in(self, swap: SwapIn) -> None:
        pairs = self._layer_pages(swap.full_pages, swap.sliding_pages)
        for (cache, ids), (k, v) in zip(pairs, swap.sequence.swapped.layers, strict=True):
            cache.k[ids] = k.to(cache.k.device)
            cache.v[ids] = v.to(cache.v.device)
        swap.sequence.swapped = None
