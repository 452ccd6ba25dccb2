"""Rows and cells of heads whose row r predicts x_{r+2+j} at depth j, when x_{r+1} is the newest known token.

Shape letters: R rows, N cells, T tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from eyas.train.heads.base import Share
from eyas.train.types import Batch, Cells, Rule, supervises

__all__ = ["cells_of", "taught_rows"]


def _taught(batch: Batch, rows_R: Tensor, depth: int, rule: Rule) -> Tensor:
    """Whether each row is taught at a depth, bool [R]. The newest known token must be of the row's document too."""
    known_R = rows_R + 1
    documents = batch.documents_T
    same_R = documents[known_R.clamp(max=batch.num_tokens - 1)] == documents[rows_R]
    return same_R & supervises(batch, known_R, known_R + 1 + depth, rule)


def taught_rows(batch: Batch, num_depths: int, rule: Rule, share: Share) -> Tensor:
    """Return this share of the rows that are taught at some depth, int64 [R], ascending."""
    rows_T = torch.arange(batch.num_tokens, device=batch.ids_T.device)
    taught_T = torch.zeros_like(rows_T, dtype=torch.bool)
    for depth in range(num_depths):
        taught_T |= _taught(batch, rows_T, depth, rule)
    return taught_T.nonzero()[:, 0][share.index :: share.of]


def cells_of(batch: Batch, rows_R: Tensor, num_depths: int, rule: Rule, decay: float) -> list[Cells]:
    """Return the cells of these rows by depth, their rows counted within `rows_R`. Depth j's weigh decay^j.

    Row r at depth j is taught by the target's distribution at r + 1 + j, which is that of x_{r+2+j}.
    """
    cells = []
    for depth in range(num_depths):
        at_N = _taught(batch, rows_R, depth, rule).nonzero()[:, 0]
        cells.append(Cells(at_N, rows_R[at_N] + 1 + depth, decay**depth))
    return cells
