"""Losses of one cell, each with its gradient with respect to the draft's logits.

With draft logits z and q = softmax(z); p the target's distribution restricted to the draft vocabulary, renormalised;
P the target's probabilities of the draft ids in the full vocabulary, which sum to less than 1;
and alpha = sum_v min(P_v, q_v), the probability that rejection sampling accepts the draft at temperature 1:

    kl    -sum_v p_v log q_v, which differs from KL(p | q) by a constant     d/dz = q - p
    tv    1 - alpha                                                          d/dz = -d(alpha)
    lk    "alpha": -log alpha                                                d/dz = -d(alpha) / alpha
          "lambda": w kl + (1 - w) tv, w = kl_scale exp(-kl_decay alpha), taken for a constant
    hard  -log q(the target's most likely token)                             d/dz = q - onehot

and d(alpha)/dz_i = q_i ([q_i < P_i] - sum_v q_v [q_v < P_v]).

Sources: Li et al., "EAGLE-3", 2025 (kl); Nebius, "LK losses", 2026, and sgl-project/SpecForge `lk_loss_type` (lk). It
takes the alpha of `w` over a batch: here each cell has its own, so that gradients add over tiles and processes.

Shape letters: N cells, V draft vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

__all__ = ["CellTile", "LossSettings", "loss_and_gradient"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LossSettings:
    """A loss by name; the last three are those of `lk`."""

    kind: Literal["kl", "lk", "tv", "hard"] = "kl"
    lk: Literal["lambda", "alpha"] = "lambda"
    kl_scale: float = 1.0
    kl_decay: float = 1.0


class CellTile(NamedTuple):
    """Values of some cells, in fp32 or wider. The last three are None where only the target's best token is known."""

    logits_NV: Tensor
    lse_N: Tensor
    q_NV: Tensor
    labels_N: Tensor  # int64, the draft id of the target's most likely token
    p_NV: Tensor | None
    full_NV: Tensor | None  # P
    alpha_N: Tensor | None


def loss_and_gradient(settings: LossSettings, tile: CellTile) -> tuple[Tensor, Tensor]:
    """Return the loss of each cell [N] and its gradient with respect to the logits [N, V].

    The gradient may take the memory of `tile.q_NV`, which is lost.
    """
    match settings.kind:
        case "hard":
            return _hard(tile)
        case "kl":
            return _kl(tile)
        case "tv":
            assert tile.alpha_N is not None
            return 1 - tile.alpha_N, _alpha_gradient(tile).neg_()
        case "lk":
            return _lk(settings, tile)


def _hard(tile: CellTile) -> tuple[Tensor, Tensor]:
    at = tile.labels_N[:, None]
    loss_N = tile.lse_N - tile.logits_NV.gather(1, at)[:, 0]
    return loss_N, tile.q_NV.scatter_add_(1, at, -torch.ones_like(tile.q_NV[:, :1]))


def _cross_entropy(tile: CellTile) -> Tensor:
    assert tile.p_NV is not None
    return tile.lse_N.sub(torch.linalg.vecdot(tile.p_NV, tile.logits_NV))


def _kl(tile: CellTile) -> tuple[Tensor, Tensor]:
    assert tile.p_NV is not None
    return _cross_entropy(tile), tile.q_NV.sub_(tile.p_NV)


def _alpha_gradient(tile: CellTile) -> Tensor:
    assert tile.full_NV is not None
    gain_NV = torch.where(tile.q_NV < tile.full_NV, tile.q_NV, 0)
    return gain_NV.addcmul_(tile.q_NV, gain_NV.sum(-1, keepdim=True), value=-1)


def _lk(settings: LossSettings, tile: CellTile) -> tuple[Tensor, Tensor]:
    assert tile.p_NV is not None and tile.alpha_N is not None
    alpha_N = tile.alpha_N.clamp(min=torch.finfo(tile.alpha_N.dtype).tiny)
    d_alpha_NV = _alpha_gradient(tile)
    if settings.lk == "alpha":
        return -alpha_N.log(), d_alpha_NV.div_(-alpha_N[:, None])
    weight_N = settings.kl_scale * (-settings.kl_decay * alpha_N).exp()
    loss_N = weight_N * _cross_entropy(tile) + (1 - weight_N) * (1 - alpha_N)
    gradient_NV = tile.q_NV.sub_(tile.p_NV).mul_(weight_N[:, None])
    return loss_N, gradient_NV.addcmul_(d_alpha_NV, 1 - weight_N[:, None], value=-1)
