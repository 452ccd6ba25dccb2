"""Final norm and vocabulary projection, as one operation."""

from __future__ import annotations

from torch import Tensor

from eyas.kernels.linear import linear, rms_norm

__all__ = ["head", "head_ref"]


def head_ref(x_TH: Tensor, *, norm_H: Tensor, eps: float, lm_head_VH: Tensor, tile: int | None) -> Tensor:
    """Logits fp32 [T, V]."""
    return linear(rms_norm(x_TH, norm_H, eps), lm_head_VH, None, tile=tile).float()


head = head_ref
