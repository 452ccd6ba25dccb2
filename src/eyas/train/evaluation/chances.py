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

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from eyas.base.errors import UserError
from eyas.train.heads.base import HeadPass, Readout
from eyas.train.heads.numerics import rms_norm, wide
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


def coupled_chance(target_logits_MV: Tensor, draft_logits_MD: Tensor, token_M: Tensor, target_ids_D: Tensor) -> Tensor:
    """Return the chance [M] that the draft takes the token x under the noise with which the target took it.

    Logits are those after division by the temperature; `token_M` int64, ids of the target; `target_ids_D` int64,
    ascending: the target id of every draft id.
    """
    place_M = torch.searchsorted(target_ids_D, token_M).clamp(max=len(target_ids_D) - 1)
    log_norm_M1 = target_logits_MV.logsumexp(-1, keepdim=True)
    p_MD = (target_logits_MV[:, target_ids_D] - log_norm_M1).exp()
    log_p_M1 = target_logits_MV.gather(1, token_M[:, None]) - log_norm_M1
    # q_v / q_x needs no norm of q.
    scaled_MD = (draft_logits_MD - draft_logits_MD.gather(1, place_M[:, None]) + log_p_M1).exp()
    excess_M = (scaled_MD - p_MD).clamp(min=0).sum(-1)
    return (target_ids_D[place_M] == token_M) / (1 + excess_M)


def accepted_chances(
    passes: Iterable[HeadPass],
    readout: Readout,
    batch: Batch,
    states: States,
    teacher: Teacher,
    *,
    num_depths: int,
    temperature: float | None,
    tile: int = TILE,
) -> Chances:
    """Compute the chances of all cells of a head's passes; no `sampled_JT` where `temperature` is None.

    Raises UserError if `temperature` is given and the states hold no hidden states to make distributions from.
    """
    if states.last_TH is None and (temperature is not None or states.best_T is None):
        raise UserError(
            "acceptance at a temperature needs the target's last hidden states, but these states hold labels only; "
            "evaluate at temperature 0, or make the states with them"
        )
    text_JT, target_JT, sampled_JT = (np.zeros((num_depths, batch.num_tokens)) for _ in range(3))
    for one in passes:
        lm_head_DH = readout.lm_head_VH.to(one.outputs[0].dtype)
        used_U = torch.cat([cells.targets_N for cells in one.cells]).unique()
        for targets_N in used_U.split(tile):
            logits_NV = None if states.last_TH is None else F.linear(states.last_TH[targets_N], teacher.lm_head_VH)
            best_N = _best(states, logits_NV, targets_N)
            for depth, (output_RH, cells) in enumerate(zip(one.outputs, one.cells, strict=True)):
                taught_M = torch.isin(cells.targets_N, targets_N).nonzero()[:, 0]
                at_M, rows_M = cells.targets_N[taught_M], cells.rows_N[taught_M]
                place_M = torch.searchsorted(targets_N, at_M)
                normed_MH = rms_norm(output_RH[rows_M], readout.norm_H, readout.eps)
                draft_MD = wide(F.linear(normed_MH, lm_head_DH))
                guess_M, token_M = readout.target_ids_V[draft_MD.argmax(-1)], batch.ids_T[at_M + 1]
                known_M = (at_M - depth).cpu().numpy()
                text_JT[depth, known_M] = (guess_M == token_M).cpu().numpy()
                target_JT[depth, known_M] = (guess_M == best_N[place_M]).cpu().numpy()
                if temperature is not None and logits_NV is not None:
                    target_MV = wide(logits_NV[place_M]) / temperature
                    chance_M = coupled_chance(target_MV, draft_MD / temperature, token_M, readout.target_ids_V)
                    sampled_JT[depth, known_M] = chance_M.cpu().numpy()
    return Chances(text_JT, target_JT, None if temperature is None else sampled_JT)


def _best(states: States, logits_NV: Tensor | None, targets_N: Tensor) -> Tensor:
    """Return the target's most likely token after each of these positions."""
    if logits_NV is not None:
        return logits_NV.argmax(-1)
    assert states.best_T is not None
    return states.best_T[targets_N]
