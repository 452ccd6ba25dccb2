"""The rows of a prompt pass: the chunks of several sequences, each in whole tiles of the absolute grid.

A tile belongs to one sequence, so that it is a sequence of `RowBatch` with a page table of its own; no row is padded
beyond its tile. All that depends on the chunks is in tensors of a few numbers a tile, so a pass of as many tiles can be
replayed. What the host can work out it does: each step of such arithmetic would be a kernel of every pass.

Shape letters: S tiles, R rows of a tile, E ends of pages in a tile, W tap ring, C tap width, N numbers of a tile.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import NamedTuple

import torch
from torch import Tensor

from eyas.engine.round.state import DeviceState
from eyas.engine.step.scheduler import Chunk
from eyas.kernels.reference.layers.ops import Ops
from eyas.kernels.reference.layers.roles import PROMPT_TILE
from eyas.model.batch import RowBatch

__all__ = ["PromptRows", "PromptTiles", "tile_start"]


class PromptRows:
    """Layout of the rows of some chunks, on the host."""

    def __init__(self, chunks: Seq[Chunk]) -> None:
        self.chunks = chunks
        self._tiles: list[tuple[int | None, int, int, int]] = []
        self._firsts = []  # the row of each chunk's first tile
        for chunk in chunks:
            self._firsts.append(len(self._tiles) * PROMPT_TILE)
            low, slot = tile_start(chunk), chunk.sequence.slot
            self._tiles += [(slot, place, chunk.start, chunk.end) for place in range(low, chunk.end, PROMPT_TILE)]

    @property
    def num_tiles(self) -> int:
        return len(self._tiles)

    def row(self, index: int, position: int) -> int:
        """Return the row of a position of a chunk."""
        return self._firsts[index] + position - tile_start(self.chunks[index])

    def numbers(self, num_tiles: int, dead_slot: int, *, ring: int, page_size: int) -> list[tuple[int | None, ...]]:
        """Return the numbers of `PromptTiles` [N, S], filled up with dead tiles."""
        tiles = [*self._tiles, *([(dead_slot, 0, 0, 0)] * (num_tiles - len(self._tiles)))]
        step, columns = min(page_size, PROMPT_TILE), []
        for index, (slot, place, start, end) in enumerate(tiles):
            row, last = index * PROMPT_TILE, end - 1 - place
            has_last = 0 <= last < PROMPT_TILE
            ends = range(place + step, place + PROMPT_TILE + 1, step)
            is_filled = [start < page_end <= end and page_end % page_size == 0 for page_end in ends]
            columns.append(
                (
                    *(slot, place, start, end),
                    *(int(start >= place), row + max(start - place, 0), start % ring),
                    *(slot if has_last else dead_slot, row + last if has_last else row, end % ring),
                    *(slot if filled else dead_slot for filled in is_filled),
                    *(max(page_end // page_size - 1, 0) for page_end in ends),
                )
            )
        return list(zip(*columns, strict=True))

    def max_lengths(self) -> tuple[int, ...]:
        """Return a bound on the positions of each tile."""
        return tuple(place + PROMPT_TILE for _, place, _, _ in self._tiles)


def tile_start(chunk: Chunk) -> int:
    """Return the position at which the tile of a chunk's first row starts."""
    return chunk.start // PROMPT_TILE * PROMPT_TILE


class PromptTiles(NamedTuple):
    """The tiles of a pass on the device, int64: slot, position of the first row, first and end of the chunk.

    Tiles of a chunk follow one another. Dead tiles have the dead slot and end at 0. `first_` and `last_` are about the
    chunk's ends, where they lie in the tile: rows of the pass and places of the ring. Where a tile has nothing to keep,
    slots are the dead one.
    """

    slots_S: Tensor
    places_S: Tensor
    starts_S: Tensor
    ends_S: Tensor
    begins_S: Tensor  # 1 in the tile in which the chunk begins
    first_rows_S: Tensor
    first_places_S: Tensor
    last_slots_S: Tensor
    last_rows_S: Tensor
    last_places_S: Tensor
    page_slots_ES: Tensor
    page_columns_ES: Tensor  # of the page tables, whose row of the dead slot has page 0 alone

    @classmethod
    def of(cls, numbers_NS: Tensor) -> PromptTiles:
        """Take the numbers of `PromptRows` apart."""
        singles = len(cls._fields) - 2
        return cls(*numbers_NS[:singles], *numbers_NS[singles:].chunk(2))

    def batch(self, state: DeviceState, ops: Ops, max_length: int, max_lengths: tuple[int, ...] | None) -> RowBatch:
        """Return the rows; live are those of the chunks."""
        positions_SR = self.places_S.unsqueeze(1) + torch.arange(PROMPT_TILE, device=state.device)
        return RowBatch(
            tokens_SR=state.tokens_SN[self.slots_S.unsqueeze(1), positions_SR],
            positions_SR=positions_SR,
            live_SR=(positions_SR >= self.starts_S.unsqueeze(1)) & (positions_SR < self.ends_S.unsqueeze(1)),
            tables=state.tables_of(self.slots_S),
            max_length=max_length,
            max_lengths=max_lengths,
            ops=ops,
        )

    def paired(self, taps_TC: Tensor, ring_SWC: Tensor) -> Tensor:
        """Return, for each row, the taps of the position before it; the ring holds those before a chunk."""
        paired_TC = taps_TC.roll(1, 0)
        before_SC = ring_SWC[self.slots_S, self.first_places_S].to(taps_TC.dtype)
        others_SC = paired_TC[self.first_rows_S]
        paired_TC[self.first_rows_S] = torch.where(self.begins_S.unsqueeze(1) != 0, before_SC, others_SC)
        return paired_TC

    def keep_last(self, taps_TC: Tensor, ring_SWC: Tensor) -> None:
        """Keep in the ring the taps of each chunk's last row, which belong to the token after it."""
        ring_SWC[self.last_slots_S, self.last_places_S] = taps_TC[self.last_rows_S].to(ring_SWC.dtype)

    def keep_of_pages(self, taps_TC: Tensor, pages_PC: Tensor, table_SP: Tensor) -> None:
        """Keep the taps of the last token of each page that the chunks fill; page 0 gets those of the others."""
        num_ends, num_tiles = self.page_slots_ES.shape
        taps_ESC = taps_TC.view(num_tiles, num_ends, -1, taps_TC.shape[1])[:, :, -1].transpose(0, 1)
        pages_PC[table_SP[self.page_slots_ES, self.page_columns_ES]] = taps_ESC.to(pages_PC.dtype)
