"""Root-mean-square norms: whole ones, and the split form in which the division is left to the next matrix product.

norm(x) = x w / rms(x), and a matrix product is linear, so W norm(x) = (W (x w)) / rms(x). The operation that makes x
writes x w and sums of x^2; the one that multiplies divides afterwards. So no operation has to see a whole row before it
starts.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Normed", "inverse_rms", "prepare_norm", "rms_norm"]


class Normed(NamedTuple):
    """Rows times the norm's weight, in the compute dtype, and fp32 sums of squares of P parts of each row before it."""

    rows_TH: Tensor
    square_sums_TP: Tensor

    def take(self, rows: Tensor | slice) -> Normed:
        return Normed(self.rows_TH[rows].contiguous(), self.square_sums_TP[rows].contiguous())


def prepare_norm(residual_TH: Tensor, weight_H: Tensor, dtype: torch.dtype) -> Normed:
    """The split form of `rms_norm(residual_TH, weight_H)`, with one part a row."""
    x = residual_TH.float()
    return Normed((x * weight_H).to(dtype), x.square().sum(-1, keepdim=True))


def inverse_rms(normed: Normed, eps: float) -> Tensor:
    """Return the fp32 factors [T, 1] for products with `normed.rows_TH`."""
    return torch.rsqrt(normed.square_sums_TP.sum(-1, keepdim=True) / normed.rows_TH.shape[1] + eps)


def rms_norm(x_TH: Tensor, weight_H: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm in fp32, multiplied by the weight before the cast back (gpt_oss/torch/model.py)."""
    x = x_TH.float()
    x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return (x * weight_H).to(x_TH.dtype)
