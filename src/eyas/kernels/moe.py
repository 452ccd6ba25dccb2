"""The mixture-of-experts block: `moe_up` (gate, up, clamped SwiGLU) and `moe_down` (down, weighted sum, residual).

The reference visits each distinct expert once, whatever the number of rows, and asks for no matrix of an expert
that no row picked. It reads the routing on the host; a device kernel must not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from eyas.kernels.linear import linear

__all__ = ["SWIGLU_ALPHA", "ExpertMatrices", "moe_down", "moe_down_ref", "moe_up", "moe_up_ref", "swiglu_clamped"]

SWIGLU_ALPHA = 1.702  # gpt_oss/torch/model.py; not in any config


class ExpertMatrices(Protocol):
    def __getitem__(self, expert: int) -> Tensor:
        """The [N, K] matrix of one expert in the compute dtype."""


def swiglu_clamped(gate_up_TN: Tensor, limit: float) -> Tensor:
    """gate * sigmoid(1.702 gate) * (up + 1), gate and up interleaved, gate <= limit and |up| <= limit."""
    gate = gate_up_TN[..., ::2].clamp(max=limit)
    up = gate_up_TN[..., 1::2].clamp(min=-limit, max=limit)
    # SwiGLU here adds 1 to the linear half. Not torch.sigmoid: its bits depend on the shape of the tensor.
    return gate / (1 + torch.exp(-SWIGLU_ALPHA * gate)) * (up + 1)


def _groups(ids_TK: Tensor) -> Iterator[tuple[int, Tensor]]:
    """(expert, flat indices into [T * k] of the rows that picked it), dead entries left out."""
    flat = ids_TK.flatten()
    ordered, order = flat.sort(stable=True)
    experts, counts = ordered.unique_consecutive(return_counts=True)
    for expert, members in zip(experts.tolist(), order.split(counts.tolist()), strict=True):
        if expert >= 0:
            yield expert, members


def moe_up_ref(
    x_TH: Tensor, ids_TK: Tensor, *, gate_up: ExpertMatrices, bias_EN: Tensor, limit: float, tile: int | None
) -> Tensor:
    """Activations [T, k, I]; `gate_up[e]` is [2 I, H] with alternating gate and up rows. Dead entries are zero."""
    top_k = ids_TK.shape[1]
    out = x_TH.new_zeros(ids_TK.numel(), bias_EN.shape[1])
    for expert, members in _groups(ids_TK):
        out[members] = linear(x_TH[members // top_k], gate_up[expert], bias_EN[expert], tile=tile)
    return swiglu_clamped(out, limit).unflatten(0, ids_TK.shape)


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
    out = act_TKI.new_zeros(ids_TK.numel(), bias_EH.shape[1])
    flat = act_TKI.flatten(0, 1)
    for expert, members in _groups(ids_TK):
        out[members] = linear(flat[members], down[expert], bias_EH[expert], tile=tile)
    weighted = out.unflatten(0, ids_TK.shape) * weights_TK.unsqueeze(-1).to(out.dtype)
    total = weighted[:, 0]
    for rank in range(1, ids_TK.shape[1]):
        total = total + weighted[:, rank]
    return residual_TH + total


moe_up = moe_up_ref
moe_down = moe_down_ref
