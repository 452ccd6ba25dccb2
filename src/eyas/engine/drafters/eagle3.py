"""Drafters: guesses of the next K tokens of each running sequence, on the device.

A drafter never affects which tokens come out, only how many a round commits.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from eyas.engine.round.stages import Stages
from eyas.engine.round.state import DeviceState
from eyas.engine.round.types import Drafts, Sampler
from eyas.engine.sequences.sequence import Sequence
from eyas.kernels.reference.lookup import LookUp
from eyas.kernels.reference.ops import LayerCache, Ops
from eyas.model.batch import RowBatch
from eyas.model.networks.eagle3 import Eagle3Head, HeadOutput

__all__ = ["Drafter", "Eagle3Drafter", "NgramDrafter"]

FEW_ROWS = 8  # of the first pass: each number up to here has a graph of its own, all others share that of the most


class Drafter:
    """The interface, and the drafter that guesses nothing. `taps` are states of the target to keep in the ring."""

    name = "none"
    taps: tuple[int, ...] = ()

    def propose(
        self, state: DeviceState, slots_S: Tensor, sequences: list[Sequence], num_drafts: int, max_length: int
    ) -> Drafts:
        """Guess `num_drafts` tokens behind each sequence's length, which `max_length` bounds."""
        empty = torch.zeros(len(slots_S), num_drafts, dtype=torch.int64, device=state.device)
        return Drafts(empty, torch.zeros_like(slots_S))

    def note_commit(self, max_tokens: int) -> None:
        """Some sequence may have got that many tokens since the last proposal."""

    def keep_up(self, state: DeviceState, slots_S: Tensor, num_coming: int, max_length: int) -> None:
        """Others draft in this round, which may commit that many tokens: forget nothing on the way."""


def _room(state: DeviceState, slots_S: Tensor, num_drafts: int) -> Tensor:
    """Draft tokens that are wanted and can still be accepted: the bonus token takes the last of the budget."""
    wanted_S = torch.minimum(state.remaining_S[slots_S] - 1, state.draft_limit_S[slots_S])
    return wanted_S.clamp(0, num_drafts) * state.live_S[slots_S]


class NgramDrafter(Drafter):
    """What followed the last tokens of a sequence where they occurred before (`kernels.reference.lookup`)."""

    name = "ngram"

    def __init__(self, look_up: LookUp, stages: Stages, *, min_match: int = 2, max_match: int = 5) -> None:
        self.sizes = range(max_match, min_match - 1, -1)
        self._look_up = partial(look_up, min_match=min_match, max_match=max_match)
        self.stages = stages

    def propose(
        self, state: DeviceState, slots_S: Tensor, sequences: list[Sequence], num_drafts: int, max_length: int
    ) -> Drafts:
        key = ("ngram", len(slots_S), num_drafts)
        return self.stages.run(key, lambda slots_S: self._drafts(state, slots_S, num_drafts, max_length), slots_S)

    def replace(self, state: DeviceState, slots_S: Tensor, drafts: Drafts, num_drafts: int, max_length: int) -> Drafts:
        """Another's drafts, with those of the sequences that are to look up in their place."""
        num_others = drafts.ids_SK.shape[1]

        def stage(slots_S: Tensor, ids_SK: Tensor, num_valid_S: Tensor) -> Drafts:
            own, looks_up_S = self._drafts(state, slots_S, num_drafts, max_length), state.by_lookup_S[slots_S]
            others_SK = torch.nn.functional.pad(ids_SK, (0, num_drafts - num_others))
            ids_SK = torch.where(looks_up_S.unsqueeze(1), own.ids_SK, others_SK)
            return Drafts(ids_SK, torch.where(looks_up_S, own.num_valid_S, num_valid_S))

        key = ("lookup", len(slots_S), num_others, num_drafts)
        return self.stages.run(key, stage, slots_S, *drafts[:2])._replace(levels_SN=drafts.levels_SN)

    def _drafts(self, state: DeviceState, slots_S: Tensor, num_drafts: int, max_length: int) -> Drafts:
        found = self._look_up(state.tokens_SN, slots_S, state.length_S, num_drafts, max_length=max_length)
        return Drafts(found.ids_SK, _room(state, slots_S, num_drafts) * found.is_found_S)


class Eagle3Drafter(Drafter):
    """A chain of K tokens from an EAGLE-3 head, drawn with the noise that the target will use at the same positions.

    First one pass over the tokens committed since the last proposal, paired with the target's hidden states from the
    ring, so that the head's cache always holds what the target itself computed; then K - 1 steps on its own output.
    """

    name = "eagle3"

    def __init__(
        self, head: Eagle3Head, cache: LayerCache, ops: Ops, sampler: Sampler, stages: Stages, *, max_backlog: int
    ) -> None:
        """`max_backlog` bounds the tokens of the first pass; older ones are skipped, which costs acceptance only."""
        self.head = head
        self.sampler = sampler
        self.stages = stages
        self.cache = cache
        self.taps = head.config.taps
        self.max_backlog = max_backlog
        self._ops = ops
        self._newest: dict[int, HeadOutput] = {}  # of each sequence's newest token, by the number of sequences
        self._backlog = 1  # bound on the tokens of any sequence that the head has not seen; the newest is never

    def note_commit(self, max_tokens: int) -> None:
        self._backlog = min(self._backlog + max_tokens, self.max_backlog)

    def propose(
        self, state: DeviceState, slots_S: Tensor, sequences: list[Sequence], num_drafts: int, max_length: int
    ) -> Drafts:
        size = len(slots_S)
        if self.stages.has_fixed_shapes and size not in self._newest:
            self._backlog = self.max_backlog  # captured now, so that nobody waits for it behind the first pause
        num_rows, self._backlog = self._rows(self._backlog), 0

        def take_in(slots_S: Tensor) -> None:
            batch, hidden_TH = self._unseen(state, slots_S, num_rows, max_length)
            last = slice(num_rows - 1, None, num_rows)
            self._keep(size, self.head.forward(batch, hidden_TH, self.cache, wanted=last))

        def chain(slots_S: Tensor) -> Drafts:
            return self._chain(state, slots_S, sequences, self._newest[size], num_drafts, max_length)

        # Apart, since numbers of rows and of drafts meet in all pairs, each of which would be another graph.
        self.stages.run(("take in", size, num_rows), take_in, slots_S)
        return self.stages.run(("chain", size, num_drafts), chain, slots_S)

    def _keep(self, size: int, output: HeadOutput) -> None:
        """Leave the first pass's output where chains of that many sequences begin, whatever its number of rows."""
        kept = self._newest.setdefault(size, output)
        if kept is not output:
            for own, new in zip(tree_flatten(kept)[0], tree_flatten(output)[0], strict=True):
                own.copy_(new)

    def keep_up(self, state: DeviceState, slots_S: Tensor, num_coming: int, max_length: int) -> None:
        if self._backlog + num_coming <= self.max_backlog:
            return
        num_rows, self._backlog = self._rows(self._backlog), 0

        def stage(slots_S: Tensor) -> None:
            self.head.write(*self._unseen(state, slots_S, num_rows, max_length), self.cache)

        self.stages.run(("catch up", len(slots_S), num_rows), stage, slots_S)

    def _rows(self, backlog: int) -> int:
        """Rows of the first pass: few different numbers where each is another graph."""
        return backlog if not self.stages.has_fixed_shapes or backlog <= FEW_ROWS else self.max_backlog

    def _unseen(self, state: DeviceState, slots_S: Tensor, num_rows: int, max_length: int) -> tuple[RowBatch, Tensor]:
        """Rows for the last committed tokens, live where the head has not seen them, and their hidden states [T, H]."""
        length_S = state.length_S[slots_S]
        offsets = torch.arange(num_rows, device=state.device)
        positions_SR = length_S.unsqueeze(1) - num_rows + offsets
        # The newest in any case: chains begin at its output, and a round that commits nothing leaves it seen.
        first_S = torch.minimum(state.head_length_S[slots_S], length_S - 1)
        live_SR = (positions_SR >= first_S.unsqueeze(1)) & state.live_S[slots_S].unsqueeze(1)
        ring = state.tap_ring_SWC
        taps_TC = ring[slots_S.unsqueeze(1), positions_SR % ring.shape[1]].flatten(0, 1)
        batch = RowBatch(
            tokens_SR=state.tokens_SN[slots_S.unsqueeze(1), positions_SR.clamp(min=0)],
            positions_SR=positions_SR,  # consecutive: those before the start are negative, and dead
            live_SR=live_SR,
            tables=state.tables_of(slots_S),
            max_length=max_length,
            ops=self._ops,
        )
        state.head_length_S[slots_S] = length_S
        return batch, self.head.fuse(taps_TC, self._ops)

    def _chain(
        self,
        state: DeviceState,
        slots_S: Tensor,
        sequences: list[Sequence],
        output: HeadOutput,
        num_drafts: int,
        max_length: int,
    ) -> Drafts:
        """Draw a token from the head's output, feed it, and so on."""
        tables = state.tables_of(slots_S)
        room_S = _room(state, slots_S, num_drafts) * ~state.by_lookup_S[slots_S]
        position_S = state.length_S[slots_S]
        guesses = []
        for step in range(num_drafts):
            logits = self.head.logits(output.normed, self._ops)
            guess = self.sampler.draft(logits, slots_S, sequences, step, self.head.weights.target_ids_V)
            guesses.append(guess)
            if step + 1 < num_drafts:
                batch = RowBatch(
                    tokens_SR=guess.ids_S.unsqueeze(1),
                    positions_SR=position_S.unsqueeze(1),
                    live_SR=(step + 1 < room_S).unsqueeze(1),  # beyond the budget there are no pages to write to
                    tables=tables,
                    max_length=max_length + step + 1,
                    ops=self._ops,
                )
                output = self.head.forward(batch, self.head.recur(output.hidden_TH), self.cache)
                position_S = position_S + 1
        ids_SK, logprobs_SK = (torch.stack(columns, dim=1) for columns in zip(*guesses, strict=True))
        end = self.sampler.end_chains(logprobs_SK, room_S, slots_S)
        return Drafts(ids_SK, end.num_valid_S, end.levels_SK)
