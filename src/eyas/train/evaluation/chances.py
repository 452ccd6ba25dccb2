"""Chances that drafts are accepted on given text, one for each depth and each token that a round can start from.

A draft at temperature 0 is accepted or not. At a temperature above 0 the engine adds the same Gumbel noise to the
scores of target and draft, so given that the target drew the token x of the text, the draft equals x with a chance.
In exponential form the target takes the least E_v / p_v and the draft the least E_v / q_v, with E_v standard
exponential and independent; both take x iff E_v >= E_x max(p_v / p_x, q_v / q_x) for all v, which has the chance
1 / sum_v max(p_v / p_x, q_v / q_x). Divided by p_x, the chance that the target takes x:

    a = 1 / sum_v max(p_v, q_v p_x / q_x) = 1 / (1 + sum_v max(0, q_v p_x / q_x - p_v))

with q_v = 0 outside of the draft vocabulary, where a = 0 if x is not in it (Daliri, Musco, Suresh, "Coupling without
communication and drafter-invariant speculative decoding", 2024, conditioned on the target's draw).

Shape letters: J depths, T tokens of a batch, N target positions of a tile, M cells of a depth in it, H hidden, V
vocabulary, D draft vocabulary. No tensor of [T, V] or [T, D] is made.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from eyas.base.errors import UserError
from eyas.train.heads.base import HeadPass, Readout
from eyas.train.types import Batch, States, Teacher

__all__ = ["TILE", "Chances", "accepted_chances", "coupled_chance"]

TILE = 128  # target positions whose distributions exist at a time


class Chances(NamedTuple):
    """Chances fp64 [J, T] that the draft at depth j of a round is accepted, whose newest known token is at t.

    The draft is for the token at t + 1 + j. 0 where the head has no cell, so where no run goes on as far as that.
    """

    text_JT: NDArray[np.float64]  # temperature 0: the draft is the token of the text
    target_JT: NDArray[np.float64]  # temperature 0: the draft is the target's most likely token after the text
    sampled_JT: NDArray[np.float64] | None  # `coupled_chance`, if a temperature was given


def coupled_chance(target_logits_MV: Tensor, draft_logits_MD: Tensor, token_M: Tensor, readout: Readout) -> Tensor:
    """Return the chance [M] that the draft takes token x under the noise with which the target took x.

    Logits are those after division by the temperature; `token_M` int64, ids of the target.
    """
    ids_D = readout.target_ids_V
    place_M = torch.searchsorted(ids_D, token_M).clamp(max=len(ids_D) - 1)
    log_p_M1 = target_logits_MV.gather(1, token_M[:, None])
    log_norm_M1 = target_logits_MV.logsumexp(-1, keepdim=True)
    p_MD = (target_logits_MV[:, ids_D] - log_norm_M1).exp()
    scale_M1 = log_p_M1 - log_norm_M1 - draft_logits_MD.gather(1, place_M[:, None])
    excess_M = ((draft_logits_MD + scale_M1).exp() - p_MD).clamp(min=0).sum(-1)
    return (ids_D[place_M] == token_M) / (1 + excess_M)


def accepted_chances(
    done: HeadPass,
    readout: Readout,
    batch: Batch,
    states: States,
    teacher: Teacher,
    *,
    temperature: float | None,
    tile: int = TILE,
) -> Chances:
    """Compute the chances of all cells of a pass; no `sampled_JT` where `temperature` is None.

    Raises UserError if `temperature` is given and the states hold no hidden states to make distributions from.
    """
    if states.last_TH is None and (temperature is not None or states.best_T is None):
        raise UserError(
            "acceptance at a temperature needs the target's last hidden states, and these states have labels"
        )
    num_depths, num_tokens = len(done.outputs), batch.num_tokens
    found = [np.zeros((num_depths, num_tokens)) for _ in range(3)]
    used_U = torch.cat([cells.targets_N for cells in done.cells]).unique()
    for low in range(0, len(used_U), tile):
        targets_N = used_U[low : low + tile]
        logits_NV = None if states.last_TH is None else F.linear(states.last_TH[targets_N], teacher.lm_head_VH)
        best_N = states.best_T[targets_N] if logits_NV is None else logits_NV.argmax(-1)  # type: ignore[index]
        for depth, (output_RH, cells) in enumerate(zip(done.outputs, done.cells, strict=True)):
            first, end = torch.searchsorted(cells.targets_N, targets_N[[0, -1]] + targets_N.new_tensor([0, 1])).tolist()
            if first == end:
                continue
            at_M, rows_M = cells.targets_N[first:end], cells.rows_N[first:end]
            within_M = torch.searchsorted(targets_N, at_M)
            draft_MD = _draft_logits(output_RH[rows_M], readout)
            guess_M, token_M = readout.target_ids_V[draft_MD.argmax(-1)], batch.ids_T[at_M + 1]
            known_M = (at_M - depth).cpu().numpy()
            found[0][depth, known_M] = (guess_M == token_M).cpu().numpy()
            found[1][depth, known_M] = (guess_M == best_N[within_M]).cpu().numpy()
            if temperature is not None and logits_NV is not None:
                target_MV = _wide(logits_NV)[within_M] / temperature
                log_q_MD = (draft_MD / temperature).log_softmax(-1)
                found[2][depth, known_M] = coupled_chance(target_MV, log_q_MD, token_M, readout).cpu().numpy()
    return Chances(found[0], found[1], None if temperature is None else found[2])


def _draft_logits(output_MH: Tensor, readout: Readout) -> Tensor:
    """Return logits [M, D], fp32 or wider."""
    wide = _wide(output_MH)
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + readout.eps) * readout.norm_H
    return _wide(F.linear(normed.to(readout.lm_head_VH.dtype), readout.lm_head_VH))


def _wide(x: Tensor) -> Tensor:
    """Return x in fp32 or wider."""
    return x if x.dtype == torch.float64 else x.float()
