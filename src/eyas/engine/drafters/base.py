"""What a drafter is: what it declares, from which the engine makes room for it, and what it does in a step.

A drafter guesses the next K tokens of each running sequence, on the device. It never affects which tokens come out,
only how many a round commits. `registry.py` names the kinds.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from eyas.engine.draft_length.step_costs import HeadWork, chain_work
from eyas.engine.round.stages import Stages
from eyas.engine.round.state import DeviceState
from eyas.engine.round.types import Drafts, Sampler
from eyas.engine.sequences.sequence import Sequence
from eyas.kernels.reference.lookup import LookUp
from eyas.kernels.reference.ops import LayerCache, Ops
from eyas.model.batch import RowBatch
from eyas.model.networks.gpt_oss import GptOss
from eyas.model.weights import Head

__all__ = ["CacheShape", "Drafter", "DrafterNeeds", "DrafterParts", "draft_room"]


class CacheShape(NamedTuple):
    """Keys and values that one layer of a head keeps of each token."""

    num_kv_heads: int
    head_dim: int

    @property
    def width(self) -> int:
        """Elements a token, keys and values together."""
        return 2 * self.num_kv_heads * self.head_dim


@dataclass(frozen=True, kw_only=True, slots=True)
class DrafterNeeds:
    """What a drafter needs of the engine that it is built into. Widths count elements; the default is no head.

    Caches lie in the pages of the target's full layers: prefix hits and preemption carry them along.
    """

    taps: tuple[int, ...] = ()  # of the target's hidden states (`model.taps`)
    tap_width: int = 0  # all taps of one position
    tap_shift: Literal[0, 1] = 1  # the token at p is paired with the taps of p - tap_shift: EAGLE-3 1, DFlash 0
    caches: tuple[CacheShape, ...] = ()
    prompt_row_bytes: int = 0  # that a row of a prompt takes while the drafter reads it
    draft_vocab_size: int | None = None  # logits of a draft; None draws none
    attention_heads: tuple[int, int] | None = None  # query heads, key and value heads

    @property
    def page_tap_width(self) -> int:
        """The taps of a page's last token, which a prefix hit needs where they belong to the token after it."""
        return self.tap_width if self.tap_shift else 0


@dataclass(frozen=True, kw_only=True, slots=True)
class DrafterParts:
    """What a drafter is built from. It may share the target's embedding and lm_head."""

    needs: DrafterNeeds
    head: Head | None
    target: GptOss
    caches: tuple[LayerCache, ...]  # as `needs` has them
    ops: Ops  # of generated rows
    sampler: Sampler
    stages: Stages
    look_up: LookUp
    max_positions: int
    max_backlog: int  # bounds the tokens that a pass takes in; older ones are skipped, which costs acceptance only


class Drafter:
    """The interface, and the drafter that guesses nothing."""

    has_head = False  # a checkpoint of its own
    needs = DrafterNeeds()
    caches: tuple[LayerCache, ...] = ()
    lookup_sizes: Seq[int] = ()  # numbers of tokens that are looked for, in the order of preference
    stages: Stages

    @classmethod
    def needs_of(cls, config: Any, dtype: torch.dtype) -> DrafterNeeds:
        """Return the needs of a head of this kind with this config, computed in `dtype`."""
        return DrafterNeeds()

    @staticmethod
    def work(num_drafts: int) -> HeadWork:
        """Return the passes of the head, and the rows of a sequence in all of them, that so many drafts take."""
        return chain_work(num_drafts)

    @classmethod
    def build(cls, parts: DrafterParts) -> Drafter:
        return cls()

    def propose(
        self, state: DeviceState, slots_S: Tensor, sequences: list[Sequence], num_drafts: int, max_length: int
    ) -> Drafts:
        """Guess `num_drafts` tokens after each sequence's length, which `max_length` bounds."""
        empty = torch.zeros(len(slots_S), num_drafts, dtype=torch.int64, device=state.device)
        return Drafts(empty, torch.zeros_like(slots_S))

    def read(self, batch: RowBatch, taps_TC: Tensor) -> None:
        """Fill the caches at committed positions, from the taps that are paired with them; also chunks of a prompt."""

    def note_commit(self, max_tokens: int) -> None:
        """Note that some sequence may have got that many tokens since the last proposal."""

    def keep_up(self, state: DeviceState, slots_S: Tensor, num_coming: int, max_length: int) -> None:
        """Read what would be lost otherwise: others draft in this round, which may commit `num_coming` tokens."""


def draft_room(state: DeviceState, slots_S: Tensor, num_drafts: int) -> Tensor:
    """Return how many drafts are wanted and can be accepted: the bonus token takes the last of the budget."""
    wanted_S = torch.minimum(state.remaining_S[slots_S] - 1, state.draft_limit_S[slots_S])
    return wanted_S.clamp(0, num_drafts) * state.live_S[slots_S]
