"""The rows of one forward pass and where their keys and values live.

Shape letters: S sequences, R rows a sequence, T = S R rows flattened, P pages of a sequence, B tokens a page.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["LayerCache", "PageTables", "RowBatch", "Tiles", "write_slots"]


class LayerCache(NamedTuple):
    """Keys and values of one layer, [pages, B, G, D] each. Page 0 takes the writes of dead rows."""

    k: Tensor
    v: Tensor


class PageTables(NamedTuple):
    """Page ids int64 [S, P] by page group: full layers and head; sliding layers. 0 where there is no page."""

    full: Tensor
    sliding: Tensor


class Tiles(NamedTuple):
    """Row tiles of dense layers and of experts; None is plain matrix multiplication, which is not row-invariant."""

    dense: int | None
    experts: int | None


def write_slots(table_SP: Tensor, positions_SR: Tensor, live_SR: Tensor, page_size: int) -> Tensor:
    """Flat cache rows [T] for the tokens at `positions_SR`; dead rows go to page 0."""
    columns = (positions_SR // page_size).clamp(max=table_SP.shape[1] - 1)
    slots = table_SP.gather(1, columns) * page_size + positions_SR % page_size
    return torch.where(live_SR, slots, positions_SR % page_size).flatten()


@dataclass(frozen=True, kw_only=True, slots=True)
class RowBatch:
    """R consecutive positions for each of S sequences; dead rows are computed, write to page 0 and route to no expert.

    `max_length` is a bound on position + 1 that the host knows.
    """

    tokens_SR: Tensor  # int64
    positions_SR: Tensor  # int64
    live_SR: Tensor  # bool
    tables: PageTables
    max_length: int
    tiles: Tiles
