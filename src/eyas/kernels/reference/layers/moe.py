"""The mixture-of-experts block: `moe_up` (gate, up, clamped SwiGLU) and `moe_down` (down, weighted sum, residual).

The reference visits each distinct expert once for any number of rows, and asks for no matrix of an expert
that no row picked. It reads the routing on the host; a device kernel must not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from eyas.kernels.reference.layers.linear import linear

__all__ = ["SWIGLU_ALPHA", "ExpertMatrices", "moe_down_ref", "moe_up_ref", "swiglu_clamped"]

SWIGLU_ALPHA = 1.702  # gpt_oss/torch/model.py; not in any config


class ExpertMatrices(Protocol):
    def __getitem__(self, expert: int) -> Tensor:
        """The [N, K] matrix of one expert in the compute dtype."""


def swiglu_clamped(gate_up_TN: Tensor, limit: float) -> Tensor:
    """Compute gate * sigmoid(1.702 gate) * (up + 1), gate and up interleaved, gate <= limit and |up| <= limit."""
    gate = gate_up_TN[..., ::2].clamp(max=limit)
    up = gate_up_TN[..., 1::2].clamp(min=-limit, max=limit)
    # SwiGLU here adds 1 to the linear half. Not torch.sigmoid: its bits depend on the shape of the tensor.
    return gate / (1 + torch.exp(-SWIGLU_ALPHA * gate)) * (up + 1)


def _groups(ids_TK: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Yield (expert, flat indices into [T * k] of the rows that picked it), dead entries left out."""
    flat = ids_TK.flatten()
    ordered, order = flat.sort(stable=True)
    experts, counts = ordered.unique_consecutive(return_counts=True)
    for expert, members in zip(experts.tolist(), order.split(counts.tolist()), strict=True):
        if expert >= 0:
            yield expert, members


def moe_up_ref(
    x_TH: Tensor,
    scale_T1: Tensor,
    ids_TK: Tensor,
    *,
    gate_up: ExpertMatrices,
    bias_EN: Tensor,
    limit: float,
    tile: int | None,
) -> Tensor:
    """Activations [T, k, I] of rows whose products are to be scaled by `scale_T1`. Dead entries are zero.

    `gate_up[e]` is [2 I, H] with alternating gate and up rows.
    """
    top_k = ids_TK.shape[1]
    out = scale_T1.new_zeros(ids_TK.numel(), bias_EN.shape[1])
    for expert, members in _groups(ids_TK):
        rows = members // top_k
        out[members] = linear(x_TH[rows], gate_up[expert], None, tile=tile) * scale_T1[rows] + bias_EN[expert]
    return torch.unflatten(swiglu_clamped(out, limit).to(x_TH.dtype), 0, ids_TK.shape)


def moe_down_ref(
    act_TKI: Tensor,
    ids_TK: Tensor,
    weights_TK: Tensor,
    residual_TH: Tensor,
    *,
    down: ExpertMatrices,
    bias_EH: Tensor,
    tile: int | None,
) -> Tensor:
    """residual + sum_k weight_k (down_k act_k + bias_k), summed in rank order; dead rows keep their residual."""
    out = weights_TK.new_zeros(ids_TK.numel(), bias_EH.shape[1])
    flat = act_TKI.flatten(0, 1)
    for expert, members in _groups(ids_TK):
        out[members] = linear(flat[members], down[expert], None, tile=tile) + bias_EH[expert]
    weighted = torch.unflatten(out, 0, ids_TK.shape) * weights_TK.unsqueeze(-1)
    total = weighted[:, 0]
    for rank in range(1, ids_TK.shape[1]):
        total = total + weighted[:, rank]
    return residual_TH + total
