"""The rows of one forward pass and where their keys and values live.

Shape letters: S sequences, R rows a sequence, T = S R rows flattened, P pages of a sequence, B tokens a page.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from eyas.kernels.reference.layers.ops import Ops, Rows
from eyas.kernels.reference.rounds.gather import SequenceRows

__all__ = ["PageTables", "RowBatch"]


class PageTables(NamedTuple):
    """Page ids int64 [S, P] by page group: full layers and head; sliding layers. 0 where there is no page."""

    full: Tensor
    sliding: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class RowBatch:
    """R consecutive positions for each of S sequences, negative where dead rows stand before a sequence's start.

    Nothing of dead rows is used: keys and values go to page 0 or nowhere, and they route to no expert.

    `max_length` is a bound on position + 1 that the host knows, `max_lengths` one for each sequence where they differ
    much, `ops` the operations of the rows' role.
    """

    tokens_SR: Tensor  # int64
    positions_SR: Tensor  # int64
    live_SR: Tensor  # bool
    tables: PageTables
    max_length: int
    ops: Ops
    max_lengths: tuple[int, ...] | None = None

    @classmethod
    def of(cls, rows: SequenceRows, max_length: int, ops: Ops) -> RowBatch:
        return cls(
            tokens_SR=rows.tokens_SR,
            positions_SR=rows.positions_SR,
            live_SR=rows.live_SR,
            tables=PageTables(rows.full_SP, rows.sliding_SP),
            max_length=max_length,
            ops=ops,
        )

    def rows(self, table_SP: Tensor) -> Rows:
        """Return the rows over the pages of one group."""
        return Rows(self.positions_SR, self.live_SR, table_SP, self.max_length, self.max_lengths)
