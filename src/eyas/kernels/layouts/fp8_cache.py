"""Keys and values in 8 bits: e4m3, with a power of two for each token and head, from that token alone.

So an entry depends neither on drafts that were rejected nor on where a chunk ended. A value times its power of two is a
bf16 number: attention over such a cache is attention over a bf16 cache whose entries were rounded, bit for bit.

Powers of two are kept as in e8m0 (OCP microscaling formats, 2023): the byte b means 2^(b - 127). Here b is 10 .. 134,
which makes 2^-126 the smallest number beside 0, and 57,344 what all numbers must stay below; 255 marks a broken key.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["BOUND", "BROKEN", "LARGEST_SCALE", "SMALLEST_SCALE", "from_fp8", "to_fp8", "to_fp8_pair"]

SMALLEST_SCALE, LARGEST_SCALE, BROKEN = 10, 134, 255
BOUND = 57_344.0  # 1.75 x 2^15; what is not below it counts as not finite
_NAN = 0x7F  # in e4m3


def to_fp8(x_D: Tensor) -> tuple[Tensor, Tensor]:
    """Return numbers below `BOUND` [.., D] as e4m3 in bytes, and the bytes of their powers of two [..].

    The largest comes to lie in 224 .. 448: the exponent is one higher where its mantissa is 1.75 or more.
    """
    largest = x_D.float().abs().amax(-1)
    scales = ((largest.view(torch.int32) + 0x200000 >> 23) - 8).clamp(SMALLEST_SCALE, LARGEST_SCALE)
    to_fit = (254 - scales << 23).view(torch.float32)
    rounded = (x_D.float() * to_fit.unsqueeze(-1)).to(torch.float8_e4m3fn)
    return rounded.view(torch.uint8), scales.to(torch.uint8)


def from_fp8(bytes_D: Tensor, scales: Tensor) -> Tensor:
    """Return the numbers fp32 [.., D]; NaN where a key is broken."""
    factors = (scales.int() << 23).view(torch.float32)
    return bytes_D.view(torch.float8_e4m3fn).float() * factors.unsqueeze(-1)


def to_fp8_pair(keys_D: Tensor, values_D: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return keys and values [.., D] in bytes, and their powers of two [.., 2].

    Where one of them has a number that is not finite or too large, the key is NaN and the value 0.
    """
    fits = ((keys_D.abs() < BOUND) & (values_D.abs() < BOUND)).all(-1)
    fits_D = fits.unsqueeze(-1)
    keys, key_scales = to_fp8(torch.where(fits_D, keys_D, 0.0))
    values, value_scales = to_fp8(torch.where(fits_D, values_D, 0.0))
    scales = torch.stack((key_scales.masked_fill(~fits, BROKEN), value_scales), dim=-1)
    return torch.where(fits_D, keys, _NAN), values, scales
