"""Executes a StepPlan on the device: page copies, prompt chunks, one speculative round. Reads nothing back.

Prompt rows and generated rows have operations of their own, chosen by the role of a row, never by the size of a launch.
Prompt rows lie on a fixed grid of absolute positions, so where a chunk ends changes no result.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from eyas.engine.draft_length.round_drafts import RoundDrafts
from eyas.engine.drafters.base import Drafter
from eyas.engine.drafters.ngram import NgramDrafter
from eyas.engine.round.stages import Stages
from eyas.engine.round.state import DeviceState
from eyas.engine.round.types import (
    Drafts,
    Logprobs,
    RoundOutput,
    RoundSpace,
    RowMasks,
    Sampler,
    Screen,
    Verified,
)
from eyas.engine.sampling.masking import read_for_masks
from eyas.engine.sampling.sampler import top_logprobs
from eyas.engine.sequences.constraint import num_words
from eyas.engine.sequences.sequence import Sequence
from eyas.engine.step.prompt_rows import PromptRows, PromptTiles, tile_start
from eyas.engine.step.scheduler import Chunk, StepPlan, SwapIn, SwapOut
from eyas.engine.step.speculate import speculative_round
from eyas.kernels.reference.layers.norm import Normed
from eyas.kernels.reference.layers.ops import LayerCache, Ops
from eyas.kernels.reference.layers.roles import PROMPT_TILE
from eyas.kernels.reference.rounds.gather import Gather
from eyas.model.networks.gpt_oss import GptOss

__all__ = ["PROMPT_STAGES", "FirstTokens", "Runner", "StepOutput", "Swapped"]

PROMPT_STAGES = READ, DRAW_FIRST = "prompt", "first tokens"


class FirstTokens(NamedTuple):
    """The first tokens of the answers to prompts that a step finished."""

    sequences: list[Sequence]
    output: RoundOutput


class StepOutput(NamedTuple):
    """Device results of a step."""

    round: RoundOutput | None
    first_tokens: FirstTokens | None


class Swapped(NamedTuple):
    """Pages of a preempted sequence in host memory, by layer."""

    layers: list[tuple[Tensor, ...]]
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
        gather: Gather,
        max_prompt_rows: int,
        space: RoundSpace | None = None,
        ngram_drafter: NgramDrafter | None = None,
        screen: Screen | None = None,
    ) -> None:
        """`tap_pages_PC` holds, for each full page, the hidden states tapped at its last token.

        A prompt pass has up to `max_prompt_rows` rows, those of dead tiles included. `space` has room for the largest
        round; without it each round allocates its own.
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
        self.gather = gather
        self.space = space
        self.ngram_drafter = ngram_drafter
        self.screen = screen
        self._max_prompt_rows = max_prompt_rows
        self._prompt_output: Normed | None = None
        self._slots_S = torch.zeros_like(state.length_S)  # of the last round, for stages of fixed shapes
        self._slots_there = [0] * len(self._slots_S)
        for kept in (self._slots_S, *state.kept):
            stages.keep(kept)

    @property
    def lookup_sizes(self) -> Seq[int]:
        """N-gram sizes of prompt lookup in order of preference; empty without lookup."""
        return (self.ngram_drafter or self.drafter).lookup_sizes

    @property
    def _most_tokens(self) -> int:
        """Return the bound on a sequence's length where shapes are fixed."""
        return self.state.tokens_SN.shape[1]

    @torch.inference_mode()
    def run(self, plan: StepPlan, *, keeps_routing: bool = False) -> StepOutput:
        for swap_out in plan.swap_out:
            self._swap_out(swap_out)
        for swap_in in plan.swap_in:
            self._swap_in(swap_in)
        self.state.enter(plan.admitted)  # their page tables are among the updates
        for sequence in plan.admitted:
            self._resume_taps(sequence)
        self.state.set_pages([sequence for sequence in plan.page_updates if sequence.slot is not None])
        drafts = plan.drafts
        if drafts.num_drafts:
            self.state.limit_drafts(drafts.limits, drafts.by_lookup)
            self.state.cut_drafts(drafts.cut)
        if drafts.num_missed:
            self.drafter.note_commit(drafts.num_missed)
        output = self._decode(plan, keeps_routing) if plan.decode else None
        if plan.swap_in:  # they decode from the next step on, with a possibly longer backlog of the head
            self.drafter.note_commit(1 << 30)
        return StepOutput(output, self._prefill(plan.chunks) if plan.chunks else None)

    # -- generated rows -----------------------------------------------------------------------------------------------

    def _decode(self, plan: StepPlan, keeps_routing: bool) -> RoundOutput:
        sequences, drafts = plan.decode, plan.drafts
        slots_S = self._slots(sequences, self.stages.rows(len(sequences)))
        output = self._round(sequences, slots_S, drafts, keeps_routing)
        self.drafter.note_commit(drafts.num_drafts + 1)
        return output

    def _round(
        self, sequences: list[Sequence], slots_S: Tensor, drafts: RoundDrafts, keeps_routing: bool
    ) -> RoundOutput:
        # `length_bound` includes this round's tokens.
        is_fixed = self.stages.has_fixed_shapes
        max_length = self._most_tokens if is_fixed else max(s.length_bound for s in sequences)
        return speculative_round(
            self.target,
            self.caches,
            self.drafter,
            self.state,
            sequences,
            slots_S,
            drafts,
            max_length,
            self.row_ops,
            self.space,
            self.sampler,
            self.stages,
            self.gather,
            ngram_drafter=self.ngram_drafter,
            screen=self.screen,
            keeps_routing=keeps_routing,
        )

    def _slots(self, sequences: Seq[Sequence], num_rows: int = 1) -> Tensor:
        """Return the slots on the device, padded to `num_rows` with the dead slot."""
        slots: list[Any] = [s.slot for s in sequences] + [self.state.dead_slot] * (num_rows - len(sequences))
        if not self.stages.has_fixed_shapes:
            return self.state.on_device(slots)
        slots_S = self._slots_S[: len(slots)]
        if slots != self._slots_there[: len(slots)]:  # they seldom change from round to round
            slots_S.copy_(self.state.on_device(slots))
            self._slots_there[: len(slots)] = slots
        return slots_S

    # -- prompt rows --------------------------------------------------------------------------------------------------

    def _prefill(self, chunks: Seq[Chunk]) -> FirstTokens | None:
        """Run chunks in one pass; draw the first tokens of the answers to prompts that end in them."""
        rows = PromptRows(chunks)
        normed = self._pass(rows, self.stages.tiles(rows.num_tiles), self.stages.run)
        for index, chunk in enumerate(chunks):
            if chunk.sequence.wants_prompt_logprobs:
                self._score_prompt(rows, index, normed)
        last = [(chunk.sequence, rows.row(index, chunk.end - 1)) for index, chunk in enumerate(chunks) if chunk.is_last]
        if not last:
            return None
        sequences, ends = [sequence for sequence, _ in last], [row for _, row in last]
        num_rows = self.stages.rows(len(sequences))
        slots_S = self._slots(sequences, num_rows)
        ends_S = self.state.on_device(ends + [0] * (num_rows - len(ends)))
        first = self._draw_first(normed, sequences, slots_S, ends_S)
        scored = {
            place: Logprobs(*(torch.cat(part) for part in zip(*sequence.prompt_logprobs, strict=True)))
            for place, sequence in enumerate(sequences)
            if sequence.prompt_logprobs
        }
        return FirstTokens(sequences, first._replace(prompt_logprobs=scored))

    def _pass(self, rows: PromptRows, num_tiles: int, run: Callable[..., Normed]) -> Normed:
        """Run rows, padded to `num_tiles`, through target and drafter. The next pass may overwrite what is returned."""
        max_lengths = None if self.stages.has_fixed_shapes else rows.max_lengths()
        max_length = self._most_tokens if max_lengths is None else max(max_lengths)

        def read(numbers_NS: Tensor) -> Normed:
            return self._read(PromptTiles.of(numbers_NS), max_length, max_lengths)

        state, page_size = self.state, self.caches[0].page_size
        numbers = rows.numbers(num_tiles, state.dead_slot, ring=state.tap_ring_SWC.shape[1], page_size=page_size)
        return run((READ, num_tiles), read, state.on_device(numbers))

    def _read(self, tiles: PromptTiles, max_length: int, max_lengths: tuple[int, ...] | None) -> Normed:
        """Run the rows of a prompt pass through the target, and let the drafter read them with their paired taps."""
        state, needs, ring = self.state, self.drafter.needs, self.state.tap_ring_SWC
        batch = tiles.batch(state, self.prompt_ops, max_length, max_lengths)
        normed, taps_TC, _ = self.target.forward(batch, self.caches)
        if taps_TC is not None:
            if needs.tap_shift:  # the first token has none before it
                batch = replace(batch, live_SR=batch.live_SR & (batch.positions_SR > 0))
            self.drafter.read(batch, tiles.paired(taps_TC, ring) if needs.tap_shift else taps_TC)
            state.head_length_S[tiles.slots_S] = tiles.ends_S
            tiles.keep_last(taps_TC, ring)
            if needs.page_tap_width:
                tiles.keep_of_pages(taps_TC, self.tap_pages_PC, state.tables.full)
        return self._kept(normed)

    def _kept(self, normed: Normed) -> Normed:
        """Copy what comes out of a prompt pass to where every pass leaves it, so that not each graph has its own."""
        if not self.stages.has_fixed_shapes:
            return normed
        if self._prompt_output is None:
            self._prompt_output = Normed(*(part.new_zeros(self._max_prompt_rows, part.shape[1]) for part in normed))
        for own, new in zip(self._prompt_output, normed, strict=True):
            own[: len(new)].copy_(new)
        return self._prompt_output

    def _draw_first(self, normed: Normed, sequences: list[Sequence], slots_S: Tensor, ends_S: Tensor) -> RoundOutput:
        """Draw the first tokens of answers after the rows `ends_S` of a prompt pass."""
        state, no_ids_SK = self.state, slots_S.new_zeros(len(slots_S), 0)
        state.live_S[slots_S] = slots_S != state.dead_slot

        def draw(slots_S: Tensor, ends_S: Tensor, masks: RowMasks | None = None) -> RoundOutput:
            own = None if self.space is None else self.space.logits_TV[: len(ends_S)]
            logits_SRV = self.target.logits(normed.take(ends_S), self.row_ops, own).unsqueeze(1)
            verified = Verified(logits_SRV, None, (), (slots_S != state.dead_slot).unsqueeze(1))
            none = Drafts(no_ids_SK, torch.zeros_like(slots_S))
            return self.prompt_sampler.finish(verified, slots_S, sequences, none, masks)

        mask_input = read_for_masks(state, slots_S, sequences, Drafts(no_ids_SK, torch.zeros_like(slots_S)))
        if mask_input is None:
            return self.stages.run((DRAW_FIRST, len(slots_S)), draw, slots_S, ends_S)
        return draw(slots_S, ends_S, mask_input.masks(state.vocab_size)[0])  # ready since it was queued

    def _score_prompt(self, rows: PromptRows, index: int, normed: Normed) -> None:
        """Compute raw log-probabilities of the prompt tokens after a chunk's rows; all logits at once may not fit."""
        chunk, tokens_SN = rows.chunks[index], self.state.tokens_SN
        sequence = chunk.sequence
        num_top = sequence.request.params.prompt_logprobs
        assert num_top is not None
        low, end = tile_start(chunk), min(chunk.end, sequence.prompt_length - 1)
        for first in range(low, end, PROMPT_TILE):
            row = rows.row(index, first)
            logits = self.target.logits(normed.take(slice(row, row + PROMPT_TILE)), self.prompt_ops)
            columns = torch.arange(first + 1, first + 1 + PROMPT_TILE, device=self.state.device)
            followers = tokens_SN[sequence.slot, columns.clamp(max=tokens_SN.shape[1] - 1)].unsqueeze(0)
            scored = top_logprobs(logits.unsqueeze(0), followers, num_top)
            wanted = slice(max(chunk.start - first, 0), end - first)
            sequence.prompt_logprobs.append(Logprobs(*(part[0, wanted] for part in scored)))

    def _resume_taps(self, sequence: Sequence) -> None:
        """Restore, after a prefix hit, the hidden state before the first row to compute from the hit's last page."""
        if sequence.num_cached and self.drafter.needs.page_tap_width:
            ring, slot = self.state.tap_ring_SWC, sequence.slot
            last_page = sequence.full_pages[sequence.num_cached // self.caches[0].page_size - 1]
            ring[slot, sequence.num_cached % ring.shape[1]] = self.tap_pages_PC[last_page]

    # -- before the first request -------------------------------------------------------------------------------------

    @torch.inference_mode()
    def capture(self, numbers_of: Callable[[int], Seq[int]]) -> None:
        """Run all that requests can come to once, on dead rows alone: no other stage is captured, no kernel compiled.

        `numbers_of` tells the numbers of drafts, in ascending order, of rounds of a batch size.
        """
        for run in (self.stages.prepare, self.stages.run):
            for num_tiles in reversed(self.stages.tile_sizes):
                normed = self._pass(PromptRows([]), num_tiles, run)
        tile = self.target.logits(normed.take(slice(0, PROMPT_TILE)), self.prompt_ops)
        top_logprobs(tile.unsqueeze(0), self.state.on_device([[0] * PROMPT_TILE]), 1)
        for size in reversed(self.stages.row_sizes):
            slots_S = self._slots([], size)
            self._draw_first(normed, [], slots_S, self.state.on_device([0] * size))
            self._capture_rounds(slots_S, numbers_of(size))
        self._warm_masks(numbers_of(1))

    def _capture_rounds(self, slots_S: Tensor, numbers: Seq[int]) -> None:
        if numbers[-1]:
            self.drafter.capture_backlogs(self.state, slots_S, numbers[-1], self._most_tokens)
        looking_up = [(self.state.dead_slot,)] if self.ngram_drafter is not None else []
        for num_drafts in reversed(numbers):
            for by_lookup in [(), *looking_up] if num_drafts else [()]:
                drafts = RoundDrafts(num_drafts=num_drafts, head_drafts=num_drafts, by_lookup=by_lookup)
                self._round([], slots_S, drafts, False)
                self.drafter.note_commit(1)

    def _warm_masks(self, numbers: Seq[int]) -> None:
        """Draw under masks: not captured, and kernels of their own."""
        slots_S, device, vocab_size = self._slots([], 1), self.state.device, self.state.vocab_size
        width = self.drafter.needs.tap_width
        for sampler, num_drafts in ((self.prompt_sampler, 0), *((self.sampler, number) for number in numbers)):
            shape = 1, num_drafts + 1
            taps_TC = None
            if sampler is self.sampler and width:
                taps_TC = torch.zeros(num_drafts + 1, width, dtype=self.target.dtype, device=device)
            logits_SRV = torch.zeros(*shape, vocab_size, device=device)
            verified = Verified(logits_SRV, taps_TC, (), torch.zeros(shape, dtype=torch.bool, device=device))
            words_CRW = torch.zeros(*shape, num_words(vocab_size), dtype=torch.int32, device=device)
            masks = RowMasks(torch.zeros(1, dtype=torch.int64, device=device), words_CRW)
            drafts = self.state.no_drafts(1)
            if num_drafts:
                drafts = self.drafter.propose(self.state, slots_S, [], num_drafts, self._most_tokens)
                self.drafter.note_commit(1)
            sampler.finish(verified, slots_S, [], drafts, masks)

    # -- preemption ---------------------------------------------------------------------------------------------------

    def _layer_pages(self, full: Seq[int], sliding: Seq[int]) -> list[tuple[LayerCache, Tensor]]:
        """Return every cache, the drafter's included, with the page ids of its group."""
        full_ids, sliding_ids = self.state.on_device(full), self.state.on_device(sliding)
        kinds = self.target.config.layer_is_sliding
        pairs = [
            (cache, sliding_ids if is_sliding else full_ids)
            for cache, is_sliding in zip(self.caches, kinds, strict=True)
        ]
        return pairs + [(cache, full_ids) for cache in self.drafter.caches]

    def _swap_out(self, swap: SwapOut) -> None:
        copies = [
            tuple(part[ids].to("cpu") for part in cache.tensors)
            for cache, ids in self._layer_pages(swap.full_pages, swap.sliding_pages)
        ]
        swap.sequence.swapped = Swapped(copies, len(swap.full_pages), len(swap.sliding_pages))

    def _swap_in(self, swap: SwapIn) -> None:
        pairs = self._layer_pages(swap.full_pages, swap.sliding_pages)
        for (cache, ids), copies in zip(pairs, swap.sequence.swapped.layers, strict=True):
            for part, copy in zip(cache.tensors, copies, strict=True):
                part[ids] = copy.to(part.device)
        swap.sequence.swapped = None
