"""The target as a teacher: distributions made again from its last hidden states, some positions at a time.

Shape letters: S positions that teach, T tokens of a batch, H hidden, V vocabulary, Vd draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from eyas.train.heads.numerics import has_kernels, wide, wide_product
from eyas.train.types import Cells, States, Teacher

if TYPE_CHECKING:
    from eyas.kernels.training.loss import TeacherRows

__all__ = ["DraftTeacher", "Taught", "TeacherTile"]

VOCABULARY = 16384  # ids of a block in the pass over the full vocabulary


class Taught(NamedTuple):
    """The positions that teach some cell and O(1) numbers of each: all that is kept of the target's distributions."""

    positions_S: Tensor  # int64, ascending
    labels_S: Tensor  # int64: the draft id of the target's most likely token, -1 outside the draft vocabulary
    lse_S: Tensor | None  # log-sum-exp over the full vocabulary; None where only labels are known


class TeacherTile(NamedTuple):
    """Distributions of some positions over the draft vocabulary, in fp32 or wider."""

    p_SV: Tensor  # renormalised
    full_SV: Tensor  # probabilities in the full vocabulary


class DraftTeacher:
    """The target's lm_head, and its rows of a draft vocabulary. `target_ids_V` is ascending."""

    def __init__(self, teacher: Teacher, target_ids_V: Tensor) -> None:
        self._full_VH, self._ids_V = teacher.lm_head_VH, target_ids_V
        self._draft_VH = teacher.lm_head_VH[target_ids_V]
        self.uses_kernels = has_kernels(self._draft_VH)

    def taught(self, cells: Sequence[Cells], states: States, *, tile: int) -> Taught:
        """Return the positions that teach these cells, from one pass over the full vocabulary in blocks."""
        known = states.best_T if states.last_TH is None else states.last_TH
        if known is None:
            raise ValueError("the states hold neither the last hidden states nor the most likely tokens")
        teaches_T = torch.zeros(len(known), dtype=torch.bool, device=known.device)
        for one in cells:
            teaches_T[one.targets_N] = True
        positions_S = teaches_T.nonzero()[:, 0]
        if states.last_TH is None:
            return Taught(positions_S, self._labels(known[positions_S]), None)
        best_S = torch.empty_like(positions_S)
        lse_S = torch.empty(len(positions_S), dtype=wide(known[:0]).dtype, device=known.device)
        for start in range(0, len(positions_S), tile):
            some = slice(start, start + tile)
            best_S[some], lse_S[some] = self._over_vocabulary(states.last_TH[positions_S[some]])
        return Taught(positions_S, self._labels(best_S), lse_S)

    def tile(self, taught: Taught, some: slice, last_TH: Tensor) -> TeacherTile:
        """Return the distributions of the positions `taught.positions_S[some]`."""
        assert taught.lse_S is not None
        logits_SV = wide_product(last_TH[taught.positions_S[some]], self._draft_VH.T)
        lse_S = logits_SV.logsumexp(-1)
        p_SV = logits_SV.sub_(lse_S[:, None]).exp_()
        return TeacherTile(p_SV, p_SV * (lse_S - taught.lse_S[some]).exp()[:, None])

    def logits(self, taught: Taught, some: slice, last_TH: Tensor) -> TeacherRows:
        """Return the same as logits, for kernels that make distributions of them."""
        from eyas.kernels.training.loss import TeacherRows, row_stats

        assert taught.lse_S is not None
        logits_SV = wide_product(last_TH[taught.positions_S[some]], self._draft_VH.T)
        lse_S = row_stats(logits_SV).lse_N
        return TeacherRows(logits_SV, lse_S, (lse_S - taught.lse_S[some]).exp())

    def _labels(self, best_S: Tensor) -> Tensor:
        at_S = torch.searchsorted(self._ids_V, best_S).clamp(max=len(self._ids_V) - 1)
        return torch.where(self._ids_V[at_S] == best_S, at_S, -1)

    def _over_vocabulary(self, last_SH: Tensor) -> tuple[Tensor, Tensor]:
        """Return the most likely token of each position, the first of equals, and the log-sum-exp of its logits."""
        best_S = torch.zeros(len(last_SH), dtype=torch.int64, device=last_SH.device)
        top_S: Tensor | None = None
        lse_S: Tensor | None = None
        for start in range(0, len(self._full_VH), VOCABULARY):
            logits_SV = wide_product(last_SH, self._full_VH[start : start + VOCABULARY].T)
            if self.uses_kernels:
                from eyas.kernels.training.loss import row_stats

                some_lse_S, some_top_S, some_best_S = row_stats(logits_SV)
            else:
                some_top_S, some_best_S = logits_SV.max(-1)
                some_lse_S = logits_SV.logsumexp(-1)
            if top_S is None or lse_S is None:
                best_S, top_S, lse_S = some_best_S, some_top_S, some_lse_S
            else:
                best_S = torch.where(some_top_S > top_S, some_best_S + start, best_S)
                top_S, lse_S = torch.maximum(top_S, some_top_S), torch.logaddexp(lse_S, some_lse_S)
        assert lse_S is not None
        return best_S, lse_S
