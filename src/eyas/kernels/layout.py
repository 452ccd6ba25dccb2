"""Dense matrices in the order in which the matrix instruction reads them, and the way back.

A tile of 16 features by 32 inputs is 1 KB of consecutive memory, and the tiles of 16 features follow each other along
the inputs: a warp reads whole lines, and a kernel streams any run of tiles with one copy.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["BLOCK_COLUMNS", "TILE_ROWS", "BlockedMatrix"]

TILE_ROWS = 16
BLOCK_COLUMNS = 32


@dataclass(frozen=True, slots=True)
class BlockedMatrix:
    """`data` bf16 [N / 16, K / 32, 16, 32]; `gated` says that 8 gate rows and their 8 up rows share a tile."""

    data: Tensor
    gated: bool = False

    @classmethod
    def pack(cls, weight_NK: Tensor, *, gated: bool = False) -> BlockedMatrix:
        """Copies a matrix in; a gated one has all gate rows before all up rows. ValueError for odd shapes."""
        num_rows, num_columns = weight_NK.shape
        if num_rows % TILE_ROWS or num_columns % BLOCK_COLUMNS:
            raise ValueError(
                f"{num_rows} x {num_columns} has no blocked form: not a multiple of {TILE_ROWS} x {BLOCK_COLUMNS}"
            )
        tiles = num_rows // TILE_ROWS
        if gated:  # [half, tile, row of 8, ...] -> [tile, half, row of 8, ...]
            tiled = weight_NK.view(2, tiles, TILE_ROWS // 2, -1).transpose(0, 1).reshape(tiles, TILE_ROWS, -1)
        else:
            tiled = weight_NK.view(tiles, TILE_ROWS, -1)
        blocks = tiled.unflatten(2, (-1, BLOCK_COLUMNS)).transpose(1, 2)
        return cls(blocks.to(torch.bfloat16).contiguous(), gated)

    @property
    def num_rows(self) -> int:
        return self.data.shape[0] * TILE_ROWS

    @property
    def num_columns(self) -> int:
        return self.data.shape[1] * BLOCK_COLUMNS

    def plain(self) -> Tensor:
        """[N, K], as it was packed."""
        tiled = self.data.transpose(1, 2).flatten(2)
        if not self.gated:
            return tiled.flatten(0, 1)
        return tiled.unflatten(1, (2, -1)).transpose(0, 1).flatten(0, 2)
