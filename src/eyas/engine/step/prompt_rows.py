"""The rows of a prompt pass: the chunks of several sequences, each in whole tiles of the absolute grid.

A tile belongs to one sequence, so that it is a sequence of `RowBatch` with a page table of its own; no row is padded
beyond its tile. All that depends on the chunks is in tensors of one number a tile, so a pass of as many tiles can be
replayed. Shape letters: S tiles, R rows of a tile, E ends of pages in a tile, W tap ring, C tap width.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import NamedTuple

import torch
from torch import Tensor

from eyas.engine.round.state import DeviceState
from eyas.engine.step.scheduler import Chunk
from eyas.kernels.reference.ops import Ops
from eyas.kernels.reference.roles import PROMPT_TILE
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

    def numbers(self, num_tiles: int, dead_slot: int) -> list[tuple[int | None, ...]]:
        """Return the numbers of `PromptTiles`, filled up with dead tiles."""
        tiles = [*self._tiles, *([(dead_slot, 0, 0, 0)] * (num_tiles - len(self._tiles)))]
        return list(zip(*tiles, strict=True))

    def max_lengths(self) -> tuple[int, ...]:
        """Return a bound on the positions of each tile."""
        return tuple(place + PROMPT_TILE for _, place, _, _ in self._tiles)


def tile_start(chunk: Chunk) -> int:
    """Return the position at which the tile of a chunk's first row starts."""
    return chunk.start // PROMPT_TILE * PROMPT_TILE


class PromptTiles(NamedTuple):
    """The tiles of a pass on the device, int64: slot, position of the first row, first and end of the chunk.

    Tiles of a chunk follow one another. Dead tiles have the dead slot and end at 0.
    """

    slots_S: Tensor
    places_S: Tensor
    starts_S: Tensor
    ends_S: Tensor

    def batch(
        self,
        state: DeviceState,
        ops: Ops,
        max_length: int,
        max_lengths: tuple[int, ...] | None,
        *,
        first_live: int = 0,
    ) -> RowBatch:
        """Return the rows; live are those of the chunks from position `first_live` on."""
        positions_SR = self.places_S.unsqueeze(1) + torch.arange(PROMPT_TILE, device=state.device)
        starts_S1, ends_S1 = self.starts_S.clamp(min=first_live).unsqueeze(1), self.ends_S.unsqueeze(1)
        return RowBatch(
            tokens_SR=state.tokens_SN[self.slots_S.unsqueeze(1), positions_SR],
            positions_SR=positions_SR,
            live_SR=(positions_SR >= starts_S1) & (positions_SR < ends_S1),
            tables=state.tables_of(self.slots_S),
            max_length=max_length,
            max_lengths=max_lengths,
            ops=ops,
        )

    def paired(self, taps_TC: Tensor, ring_SWC: Tensor) -> Tensor:
        """Return, for each row, the taps of the position before it; the ring holds those before a chunk."""
        paired_TC = taps_TC.roll(1, 0)
        rows_S = self._rows(self.starts_S.clamp(min=self.places_S))
        before_SC = ring_SWC[self.slots_S, self.starts_S % ring_SWC.shape[1]].to(taps_TC.dtype)
        is_first_S1 = (self.starts_S >= self.places_S).unsqueeze(1)
        paired_TC[rows_S] = torch.where(is_first_S1, before_SC, paired_TC[rows_S])
        return paired_TC

    def keep_last(self, taps_TC: Tensor, ring_SWC: Tensor, dead_slot: int) -> None:
        """Keep in the ring the taps of each chunk's last row, which belong to the token after it."""
        last_S = self.ends_S - 1
        is_last_S = (last_S >= self.places_S) & (last_S < self.places_S + PROMPT_TILE)
        slots_S = torch.where(is_last_S, self.slots_S, dead_slot)
        ring_SWC[slots_S, self.ends_S % ring_SWC.shape[1]] = taps_TC[self._rows(last_S)].to(ring_SWC.dtype)

    def keep_of_pages(self, taps_TC: Tensor, pages_PC: Tensor, table_SP: Tensor, page_size: int) -> None:
        """Keep the taps of the last token of each page that the chunks fill; page 0 gets those of the others."""
        step = min(page_size, PROMPT_TILE)
        ends_SE = self.places_S.unsqueeze(1) + torch.arange(step, PROMPT_TILE + 1, step, device=taps_TC.device)
        is_filled_SE = (ends_SE > self.starts_S.unsqueeze(1)) & (ends_SE <= self.ends_S.unsqueeze(1))
        is_filled_SE &= ends_SE % page_size == 0
        pages_SE = table_SP[self.slots_S.unsqueeze(1), (ends_SE // page_size - 1).clamp(min=0)]
        rows_SE = torch.arange(len(self.slots_S), device=taps_TC.device).unsqueeze(1) * PROMPT_TILE
        rows_SE = rows_SE + (ends_SE - 1 - self.places_S.unsqueeze(1))
        pages_PC[torch.where(is_filled_SE, pages_SE, 0)] = taps_TC[rows_SE].to(pages_PC.dtype)

    def _rows(self, positions_S: Tensor) -> Tensor:
        """Return the row of a position of each tile, the nearest for one outside."""
        first_S = torch.arange(len(self.slots_S), device=positions_S.device) * PROMPT_TILE
        return first_S + (positions_S - self.places_S).clamp(0, PROMPT_TILE - 1)
