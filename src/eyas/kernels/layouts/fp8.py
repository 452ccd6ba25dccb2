"""Matrices rounded to 8-bit floats (e4m3), each row with a factor that is a power of two.

Such factors cost a float format nothing but range, and a rounded weight times its factor is a bf16 number: wherever the
factor is multiplied in, products are those of the rounded matrix in bf16, bit for bit.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["round_to_fp8", "to_fp8"]

LARGEST = 448.0


def to_fp8(weight: Tensor, shared: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return `weight` in e4m3, and its fp32 factors, of size 1 in the axes `shared`."""
    largest = weight.abs().amax(shared, keepdim=True).float()
    factors = torch.ldexp(torch.ones_like(largest), torch.frexp(largest / LARGEST).exponent)
    return (weight.float() / factors).to(torch.float8_e4m3fn), factors


def round_to_fp8(weight_NK: Tensor) -> Tensor:
    """The numbers that `to_fp8` keeps of a matrix with a factor a row, in the dtype of the matrix."""
    rounded, factors = to_fp8(weight_NK, (1,))
    return (rounded.float() * factors).to(weight_NK.dtype)
