"""The interface of drafters: the needs that a drafter declares, from which the engine is sized, and its steps.

A drafter proposes the next K tokens of each running sequence, on the device. It never affects which tokens are
generated, only how many a round commits. `registry.py` names the kinds.
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
from eyas.kernels.reference.layers.ops import LayerCache, Ops
from eyas.kernels.reference.rounds.gather import Gather
from eyas.kernels.reference.rounds.lookup import LookUp
from eyas.model.batch import RowBatch
from eyas.model.networks.gpt_oss import GptOss
from eyas.model.weights import Head

__all__ = ["CacheShape", "Drafter", "DrafterNeeds", "DrafterParts"]


class CacheShape(NamedTuple):
    """Shape of the keys and values that one layer of a head caches per token."""

    num_kv_heads: int
    head_dim: int

    @property
    def width(self) -> int:
        """Elements per token, keys and values together."""
        return 2 * self.num_kv_heads * self.head_dim


@dataclass(frozen=True, kw_only=True, slots=True)
class DrafterNeeds:
    """Needs that a drafter declares to the engine. Widths count elements; the default is that of no head.

    Caches share the pages of the target's full layers, so prefix hits and preemption include them.
    """

    taps: tuple[int, ...] = ()  # which hidden states of the target it reads (`model.taps`)
    tap_width: int = 0  # all taps of one position
    tap_shift: Literal[0, 1] = 1  # the token at p is paired with the taps of p - tap_shift: EAGLE-3 1, DFlash 0
    caches: tuple[CacheShape, ...] = ()
    prompt_row_bytes: int = 0  # memory per prompt row while the drafter reads it
    draft_vocab_size: int | None = None  # number of logits of a draft; None without logits

    @property
    def page_tap_width(self) -> int:
        """Width of the taps kept of a page's last token: a prefix hit needs them if they pair with the next token."""
        return self.tap_width if self.tap_shift else 0


@dataclass(frozen=True, kw_only=True, slots=True)
class DrafterParts:
    """Parts that a drafter is built from. It may use the target's embedding and lm_head."""

    needs: DrafterNeeds
    head: Head | None
    target: GptOss
    caches: tuple[LayerCache, ...]  # shaped as in `needs.caches`
    ops: Ops  # operations of generated rows
    sampler: Sampler
    stages: Stages
    gather: Gather
    look_up: LookUp
    max_positions: int
    max_backlog: int  # most tokens that a catch-up pass reads; older ones are skipped, which costs acceptance only


class Drafter:
    """The interface, and the drafter that proposes nothing."""

    has_head = False  # whether it has a checkpoint of its own
    needs = DrafterNeeds()
    caches: tuple[LayerCache, ...] = ()
    lookup_sizes: Seq[int] = ()  # n-gram sizes to look for, in order of preference
    stages: Stages

    @classmethod
    def needs_of(cls, config: Any, dtype: torch.dtype) -> DrafterNeeds:
        """Return the needs of a head of this kind with this config, computed in `dtype`."""
        return DrafterNeeds()

    @staticmethod
    def work(num_drafts: int) -> HeadWork:
        """Return the head passes that `num_drafts` take, and the rows of one sequence in all of them."""
        return chain_work(num_drafts)

    @classmethod
    def build(cls, parts: DrafterParts) -> Drafter:
        return cls()

    def propose(
        self, state: DeviceState, slots_S: Tensor, sequences: list[Sequence], num_drafts: int, max_length: int
    ) -> Drafts:
        """Propose `num_drafts` tokens after the end of each sequence; `max_length` bounds the lengths."""
        empty = torch.zeros(len(slots_S), num_drafts, dtype=torch.int64, device=state.device)
        return Drafts(empty, torch.zeros_like(slots_S))

    def capture_backlogs(self, state: DeviceState, slots_S: Tensor, num_drafts: int, max_length: int) -> None:
        """Run, on dead sequences, the stages that reading committed tokens takes, for all numbers of them."""

    def read(self, batch: RowBatch, taps_TC: Tensor) -> None:
        """Fill the caches at committed positions from the taps paired with them; also used for prompt chunks."""

    def note_commit(self, max_tokens: int) -> None:
        """Note that sequences may have got up to `max_tokens` tokens since the last proposal."""

    def read_backlog(self, state: DeviceState, slots_S: Tensor, num_coming: int, max_length: int) -> None:
        """Read tokens that would leave the ring in a round of up to `num_coming` tokens that others draft."""
