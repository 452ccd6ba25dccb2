"""A rough copy of a matrix in 8 bits, and for each of its rows how far a product with it may be from the exact one.

The copy q of a row w has an int8 for each weight, a power of two for each 32 of them, and one factor. For any x, by
Cauchy and Schwarz,

    |w x - q x| <= |x| |w - q|   (Euclidean norms),

and both products are computed in fp32. A row's `slack` covers all of it: products as kernels compute them differ by at
most |x| slack, up to what underflows. Its second part is rounding. A kernel adds a row's K <= 4,608 products in 16
chains of at most 18 matrix instructions, which add 16 products and what is there. If each of the 17 numbers is cut off
2^-23 below the largest (NVIDIA's cut later: Fasi, Higham, Mikaitis, Pranesh, "Numerical behavior of NVIDIA tensor
cores", 2021), that is 18 * 17 * 2^-23 of sum |w_k x_k| <= |w| |x|; 18 more roundings to fp32 add the chains, the
factor, the scale of the norm and the bound itself. Twice that, for two products, is below 2^-13. The rough product's
rows are in f16, where a power of two for each slice brings their largest number to 2^14 or more: what f16 loses of the
others, 2^-25 at most, is at most 2^-32 of |w| |x|. The copy's numbers without their factor are exact in f16.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from eyas.kernels.layouts.dense import BLOCK_COLUMNS, TILE_ROWS, BlockedMatrix, swap_columns

__all__ = ["ROUNDING", "RoughMatrix", "rough_bytes"]

LARGEST = 127
LEAST_EXPONENT = -14  # of a number of f16 that is not subnormal
LARGEST_NORM = 2.0**40  # what sums lose by underflow is small beside any logit up to there
ROUNDING = 2.0**-13  # of |w| |x|, in two products
MARGIN = 1 + 2.0**-20  # rounds a norm up
AT_ONCE = 32  # tiles of which fp64 numbers are in memory at a time
BIAS = 127  # of an exponent in a byte, as in bf16


@dataclass(frozen=True, slots=True)
class RoughMatrix:
    """`matrix` is the copy as kernels read it, `slack_N` fp32; no row's norm, nor its copy's, is above `largest`.

    A block of 16 x 32 has its bytes in the order of 8-bit matrices, then the exponents of its rows 0, 8, 1, 9, ...
    """

    matrix: BlockedMatrix
    slack_N: Tensor
    largest: float

    @classmethod
    def of(cls, exact: BlockedMatrix) -> RoughMatrix | None:
        """Copy a matrix that is not gated, or return None where a number is not finite or a norm too large.

        Waits for the device.
        """
        assert not exact.gated
        blocks = exact.in_bf16().data
        data = blocks.new_empty(*blocks.shape[:2], rough_bytes(TILE_ROWS, BLOCK_COLUMNS), dtype=torch.int8)
        factors, slack, norms = [], [], []
        for first in range(0, len(data), AT_ONCE):
            part = blocks[first : first + AT_ONCE].double()
            numbers, exponents, factor = _to_int8(part)
            norm, error = (_norms(x) for x in (part, part - torch.ldexp(numbers * factor, exponents)))
            data[first : first + AT_ONCE] = torch.cat((_bytes(numbers), _in_pairs(exponents)), dim=2)
            factors.append(factor.flatten().float())
            slack.append(((error + ROUNDING * norm) * MARGIN).float())
            norms.append(((norm + error) * MARGIN).max())
        largest = float(torch.stack(norms).max())
        if not largest < LARGEST_NORM:
            return None
        return cls(BlockedMatrix(data, factors_N=torch.cat(factors)), torch.cat(slack), largest)

    @property
    def nbytes(self) -> int:
        assert self.matrix.factors_N is not None
        return self.matrix.data.nbytes + self.matrix.factors_N.nbytes + self.slack_N.nbytes

    def plain(self) -> Tensor:
        """Return fp64 [N, K], the numbers of the copy."""
        assert self.matrix.factors_N is not None
        data, size = self.matrix.data, TILE_ROWS * BLOCK_COLUMNS
        numbers = swap_columns(data[..., :size].unflatten(2, (TILE_ROWS, BLOCK_COLUMNS))).double()
        exponents = data[..., size:].unflatten(2, (-1, 2)).transpose(2, 3).flatten(2).int() - BIAS
        tiled = torch.ldexp(numbers, exponents.unsqueeze(3)).transpose(1, 2).flatten(2).flatten(0, 1)
        return tiled * self.matrix.factors_N.double().unsqueeze(1)


def rough_bytes(num_rows: int, num_columns: int) -> int:
    """Return the bytes of a rough copy, but for 8 a row."""
    return num_rows * num_columns + num_rows * num_columns // BLOCK_COLUMNS


def _to_int8(blocks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Whole numbers of -127 .. 127, their exponents int32 [tiles, K / 32, 16, 1], and fp32 factors [tiles, 1, 16, 1].

    `blocks` fp64 [tiles, K / 32, 16, 32]; numbers and factors are fp64 too. A block's largest number is above
    63, or its exponent the least.
    """
    of_blocks = blocks.abs().amax(3, keepdim=True)
    largest = of_blocks.amax(1, keepdim=True)
    factors = torch.where(largest > 0, largest / LARGEST, 1.0).float().double()
    halvings = torch.frexp(largest / of_blocks).exponent - 1
    exponents = torch.where(of_blocks > 0, -halvings, LEAST_EXPONENT).clamp(LEAST_EXPONENT, 0)
    return (torch.ldexp(blocks, -exponents) / factors).round().clamp(-LARGEST, LARGEST), exponents, factors


def _norms(blocks: Tensor) -> Tensor:
    norms: Tensor = blocks.square().sum((1, 3)).sqrt().flatten()
    return norms


def _bytes(numbers: Tensor) -> Tensor:
    return swap_columns(numbers.to(torch.int8)).flatten(2)


def _in_pairs(exponents: Tensor) -> Tensor:
    return torch.unflatten((exponents + BIAS).to(torch.int8), 2, (2, -1)).transpose(2, 3).flatten(2)
