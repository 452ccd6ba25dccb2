"""Norms and rotation of trainable heads, in fp32 or wider inside."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["rms_norm", "rotate", "wide"]


def wide(x: Tensor) -> Tensor:
    """Return x in fp32 or wider."""
    return x if x.dtype == torch.float64 else x.float()


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return x / sqrt(mean(x^2) + eps) times `weight`, in x's dtype."""
    values = wide(x)
    return (values * torch.rsqrt(values.square().mean(-1, keepdim=True) + eps) * weight).to(x.dtype)


def rotate(x_RND: Tensor, cos_RD: Tensor, sin_RD: Tensor) -> Tensor:
    """Return rotated queries or keys [R, N, D]; half-split form (NeoX), tables of D / 2."""
    a, b = wide(x_RND).chunk(2, dim=-1)
    cos, sin = cos_RD[:, None], sin_RD[:, None]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x_RND.dtype)
