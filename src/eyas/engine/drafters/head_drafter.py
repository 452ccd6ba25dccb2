"""Base of drafters with a head, which reads committed tokens with the target's hidden states, the taps.

Taps wait in a ring, indexed by the position of the token after them. Tokens that a head has not read are its backlog.
"""

from __future__ import annotations

from torch import Tensor

from eyas.engine.drafters.base import Drafter, DrafterParts
from eyas.engine.round.state import DeviceState
from eyas.model.batch import RowBatch

__all__ = ["HeadDrafter"]

FEW_ROWS = 8  # catch-up passes of up to this many rows have a graph each; larger ones share that of the most rows


class HeadDrafter(Drafter):
    """Base of a kind of head: `needs_of` declares, `read` fills the caches, `propose` drafts after `unseen` rows."""

    has_head = True

    def __init__(self, parts: DrafterParts) -> None:
        self.parts = parts
        self.needs = parts.needs
        self.caches = parts.caches
        self.ops = parts.ops
        self.sampler = parts.sampler
        self.stages = parts.stages
        self.gather = parts.gather
        self.max_backlog = parts.max_backlog
        self.backlog = 1  # bound on the unread tokens of any sequence; the newest is always unread

    @classmethod
    def build(cls, parts: DrafterParts) -> HeadDrafter:
        return cls(parts)

    def note_commit(self, max_tokens: int) -> None:
        self.backlog = min(self.backlog + max_tokens, self.max_backlog)

    def capture_backlogs(self, state: DeviceState, slots_S: Tensor, num_drafts: int, max_length: int) -> None:
        for num_rows in (self.max_backlog, *range(FEW_ROWS, 0, -1)):
            self.backlog = num_rows
            self.propose(state, slots_S, [], num_drafts, max_length)
        self.backlog = self.max_backlog
        self.read_backlog(state, slots_S, 1, max_length)
        self.backlog = 1

    def read_backlog(self, state: DeviceState, slots_S: Tensor, num_coming: int, max_length: int) -> None:
        if self.backlog + num_coming <= self.max_backlog:
            return
        num_rows = self.take_backlog()

        def stage(slots_S: Tensor) -> None:
            self.read(*self.unseen(state, slots_S, num_rows, max_length))

        self.stages.run(("read backlog", len(slots_S), num_rows), stage, slots_S)

    def take_backlog(self) -> int:
        """Return the rows of a catch-up pass, few different numbers with graphs, and sets the backlog to 0."""
        backlog, self.backlog = self.backlog, 0
        return backlog if not self.stages.has_fixed_shapes or backlog <= FEW_ROWS else self.max_backlog

    def unseen(self, state: DeviceState, slots_S: Tensor, num_rows: int, max_length: int) -> tuple[RowBatch, Tensor]:
        """Return the newest rows that have taps, live where the head has not read them, and their taps [T, C]."""
        rows, taps_TC = self.gather.unseen(state.book, slots_S, num_rows, shift=bool(self.needs.tap_shift))
        return RowBatch.of(rows, max_length, self.ops), taps_TC
