"""Prompt lookup: drafts what followed the last tokens of a sequence where they occurred before."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from eyas.engine.drafters.base import Drafter, DrafterParts
from eyas.engine.round.stages import Stages
from eyas.engine.round.state import DeviceState
from eyas.engine.round.types import Drafts
from eyas.engine.sequences.sequence import Sequence
from eyas.kernels.reference.rounds.gather import draft_room
from eyas.kernels.reference.rounds.lookup import LookUp

__all__ = ["NgramDrafter"]


class NgramDrafter(Drafter):
    """Looks up the longest n-gram of `max_match` .. `min_match` last tokens (`kernels.reference.rounds.lookup`)."""

    def __init__(self, look_up: LookUp, stages: Stages, *, min_match: int = 2, max_match: int = 5) -> None:
        self.lookup_sizes = range(max_match, min_match - 1, -1)
        self._look_up = partial(look_up, min_match=min_match, max_match=max_match)
        self.stages = stages

    @classmethod
    def build(cls, parts: DrafterParts) -> NgramDrafter:
        return cls(parts.look_up, parts.stages)

    def propose(
        self, state: DeviceState, slots_S: Tensor, sequences: list[Sequence], num_drafts: int, max_length: int
    ) -> Drafts:
        key = ("ngram", len(slots_S), num_drafts)
        return self.stages.run(key, lambda slots_S: self._drafts(state, slots_S, num_drafts, max_length), slots_S)

    def replace(self, state: DeviceState, slots_S: Tensor, drafts: Drafts, num_drafts: int, max_length: int) -> Drafts:
        """Return the drafts of another drafter, replaced for sequences that use prompt lookup."""
        others_SK = torch.nn.functional.pad(drafts.ids_SK, (0, num_drafts - drafts.ids_SK.shape[1]))

        def stage(slots_S: Tensor, others_SK: Tensor, num_valid_S: Tensor) -> Drafts:
            own, looks_up_S = self._drafts(state, slots_S, num_drafts, max_length), state.by_lookup_S[slots_S]
            ids_SK = torch.where(looks_up_S.unsqueeze(1), own.ids_SK, others_SK)
            return Drafts(ids_SK, torch.where(looks_up_S, own.num_valid_S, num_valid_S))

        key = ("lookup", len(slots_S), num_drafts)
        return self.stages.run(key, stage, slots_S, others_SK, drafts.num_valid_S)._replace(levels_SN=drafts.levels_SN)

    def _drafts(self, state: DeviceState, slots_S: Tensor, num_drafts: int, max_length: int) -> Drafts:
        found = self._look_up(state.tokens_SN, slots_S, state.length_S, num_drafts, max_length=max_length)
        return Drafts(found.ids_SK, draft_room(state.book, slots_S, num_drafts) * found.is_found_S)
