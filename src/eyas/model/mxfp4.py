"""MXFP4: blocks of 32 E2M1 values that share one E8M0 scale.

Layout of the checkpoints (openai/gpt-oss, gpt_oss/torch/weights.py): 16 bytes a block, low nibble first,
scale byte s means 2^(s - 127). The quantiser is our own: the smallest power of two that keeps a block's largest
magnitude within a rounding of the format's maximum of 6.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["BLOCK", "Mxfp4Tensor", "dequantize", "fake_quantize", "quantize"]

BLOCK = 32
E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
# Halfway points between neighbouring magnitudes; ties go to the code with an even mantissa bit (round to nearest even).
_MIDPOINTS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)


@dataclass(frozen=True, slots=True)
class Mxfp4Tensor:
    """A packed matrix or stack of matrices: blocks U8 [..., N, K/32, 16], scales U8 [..., N, K/32]."""

    blocks: Tensor
    scales: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.scales.shape[:-1], self.scales.shape[-1] * BLOCK)

    def __getitem__(self, index: int) -> Mxfp4Tensor:
        return Mxfp4Tensor(self.blocks[index], self.scales[index])


def dequantize(packed: Mxfp4Tensor, dtype: torch.dtype) -> Tensor:
    """Return [..., N, K] in `dtype`; exact in bf16 and fp32 unless the exponent leaves their range."""
    values = torch.tensor(E2M1_VALUES, dtype=torch.float32, device=packed.blocks.device)
    low, high = packed.blocks & 0xF, packed.blocks >> 4
    codes = torch.stack((low, high), dim=-1).flatten(-2)
    exponent = packed.scales.to(torch.int32) - 127
    return torch.ldexp(values[codes.int()], exponent.unsqueeze(-1)).flatten(-2).to(dtype)


def _block_exponent(blocks: Tensor) -> Tensor:
    """Exponent e per block of [..., 32] with max|x| / 2^e <= 7, so at most a rounding above the maximum of 6."""
    largest = blocks.abs().amax(-1)
    _, exponent = torch.frexp(largest / 7.0)  # largest / 7 = m 2^e with m in [0.5, 1)
    exact = largest == torch.ldexp(torch.full_like(largest, 3.5), exponent)  # m == 0.5: one less would do
    exponent = exponent - exact.to(exponent.dtype)
    return torch.where(largest > 0, exponent, torch.zeros_like(exponent)).clamp(-127, 127)


def _codes(scaled: Tensor) -> Tensor:
    magnitude = scaled.abs()
    midpoints = torch.tensor(_MIDPOINTS, dtype=scaled.dtype, device=scaled.device)
    below = torch.bucketize(magnitude, midpoints, right=False)  # a tie stays below
    above = torch.bucketize(magnitude, midpoints, right=True)  # a tie goes up
    code = torch.where(below % 2 == 0, below, above)
    return code + 8 * (scaled < 0)


def quantize(weight: Tensor) -> Mxfp4Tensor:
    """Pack [..., N, K] (K a multiple of 32), rounding to nearest even."""
    if weight.shape[-1] % BLOCK:
        raise ValueError(f"the last axis must be a multiple of {BLOCK}, got {weight.shape[-1]}")
    blocks = torch.unflatten(weight.float(), -1, (-1, BLOCK))
    exponent = _block_exponent(blocks)
    codes = _codes(torch.ldexp(blocks, -exponent.unsqueeze(-1))).to(torch.uint8)
    pairs = torch.unflatten(codes, -1, (BLOCK // 2, 2))
    return Mxfp4Tensor(pairs[..., 0] | (pairs[..., 1] << 4), (exponent + 127).to(torch.uint8))


def fake_quantize(weight: Tensor) -> Tensor:
    """Quantise and dequantise `weight`, with the gradient of the identity (straight-through estimator)."""
    rounded = dequantize(quantize(weight.detach()), weight.dtype)
    return weight + (rounded - weight).detach()
