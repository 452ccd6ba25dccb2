"""Dense matrices in the order in which the matrix instruction reads them, and the way back.

A tile of 16 features by 32 inputs is 1 KB of consecutive memory (half of it in 8 bits), and the tiles of 16 features
follow each other along the inputs: a warp reads whole lines, and a kernel streams any run of tiles with one copy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eyas.kernels.layouts.bits12 import to_12_bits
from eyas.kernels.layouts.fp8 import to_fp8

__all__ = ["BLOCK_COLUMNS", "TILE_ROWS", "BlockedMatrix", "swap_columns"]

TILE_ROWS = 16
BLOCK_COLUMNS = 32


@dataclass(frozen=True, slots=True)
class BlockedMatrix:
    """Blocked matrix `data` [N / 16, K / 32, 16, 32]; `gated` says that 8 gate rows and their 8 up rows share a tile.

    `data` is bf16, or e4m3 where `factors_N`, in the order of the tiles' rows, say what its rows are to be multiplied
    with (see `kernels.layouts.fp8`), or the bytes of `kernels.layouts.int8`, which have their own form. In 8 bits the
    middle two of every 4 columns change places: the other two bytes of a word then widen to the two halves of a
    register, and so do these. `tiles12` has the numbers of a bf16 matrix once more, in fewer bytes, for kernels of few
    rows (see `kernels.layouts.bits12`).
    """

    data: Tensor
    gated: bool = False
    factors_N: Tensor | None = None  # fp32
    tiles12: Tensor | None = None  # uint8 [N / 16, K / 32, 784]

    @classmethod
    def pack(cls, weight_NK: Tensor, *, gated: bool = False) -> BlockedMatrix:
        """Copy a matrix in; a gated one has all gate rows before all up rows. ValueError for odd shapes."""
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

    def with_12_bits(self) -> BlockedMatrix:
        """The same matrix with a copy in 12 bits, if that pays."""
        return replace(self, tiles12=to_12_bits(self.data))

    def in_fp8(self) -> BlockedMatrix:
        """The same matrix rounded to e4m3."""
        rounded, factors = to_fp8(self.data, (1, 3))
        return replace(self, data=swap_columns(rounded).contiguous(), factors_N=factors.flatten(), tiles12=None)

    def in_bf16(self) -> BlockedMatrix:
        """The numbers that this matrix holds, in bf16."""
        if self.factors_N is None:
            return self
        factors = self.factors_N.view(-1, 1, TILE_ROWS, 1)
        return BlockedMatrix((swap_columns(self.data).float() * factors).to(torch.bfloat16).contiguous(), self.gated)

    def plain(self) -> Tensor:
        """Return [N, K] in bf16, as it was packed or rounded."""
        tiled = self.in_bf16().data.transpose(1, 2).flatten(2)
        if not self.gated:
            return tiled.flatten(0, 1)
        return torch.unflatten(tiled, 1, (2, -1)).transpose(0, 1).flatten(0, 2)


def swap_columns(data: Tensor) -> Tensor:
    """Swap the middle two of every 4 columns."""
    return torch.unflatten(data, -1, (-1, 2, 2)).transpose(-1, -2).flatten(-3)
