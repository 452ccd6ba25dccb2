"""The loss of a head over tiles of target positions, its gradient made in the forward pass.

No tensor of logits for a whole sequence exists, neither the target's nor the head's. Of a tile of positions that teach,
distributions are made once for all depths; the cells of each depth that it teaches then get logits, loss, statistics
and gradient at once. What is kept of a row is O(1) numbers.

The loss of depth j is weight_j / normaliser_j times the sum over its cells; a cell counts iff the target's most likely
token lies in the draft vocabulary, as in `train/reference.py`. Normalisers come from the caller, since they count the
cells of all processes and micro-batches: first `prepare`, then `normalisers`, then the passes.

Source: the gradient in the forward pass, by chunks, as in linkedin/Liger-Kernel's fused linear cross entropy.

Shape letters: J depths, N cells, S positions that teach, R rows of a pass, H hidden, V draft vocabulary, T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from eyas.train.heads.base import HeadPass, Readout
from eyas.train.heads.numerics import add_product, gradient_of, norm_backward, norm_forward, wide_product
from eyas.train.loss.kinds import CellTile, LossSettings, loss_and_gradient
from eyas.train.loss.teacher import DraftTeacher, Taught
from eyas.train.types import Cells, States, Teacher

__all__ = ["Compat", "LossSums", "Prepared", "TiledLoss", "normalisers"]

TILE = 512  # positions that teach
Compat = Literal["none", "specforge"]


class Prepared(NamedTuple):
    """Positions that teach a batch and its counts, known before the head runs. Counts add over processes."""

    taught: Taught
    trained_J: Tensor  # int64: cells that the loss counts
    tokens: int  # of the batch


@dataclass(frozen=True, kw_only=True, slots=True)
class LossSums:
    """Sums over cells by depth; they add over passes, micro-batches and processes."""

    losses_J: Tensor  # fp64, over trained cells, without weight and normaliser
    trained_J: Tensor  # int64
    counted_J: Tensor  # int64: cells, those whose best token lies outside the draft vocabulary included
    hits_J: Tensor  # int64, of counted: the draft's most likely token is the target's
    overlap_J: Tensor  # fp64, over counted: sum_v min(P_v, q_v), full vocabulary; nan where only labels are known

    def __add__(self, other: LossSums) -> LossSums:
        return LossSums(**{name: getattr(self, name) + getattr(other, name) for name in LossSums.__slots__})

    @classmethod
    def zero(cls, num_depths: int, device: torch.device) -> LossSums:
        def zeros(dtype: torch.dtype) -> Tensor:
            return torch.zeros(num_depths, dtype=dtype, device=device)

        floats, ints = torch.float64, torch.int64
        return cls(
            losses_J=zeros(floats),
            trained_J=zeros(ints),
            counted_J=zeros(ints),
            hits_J=zeros(ints),
            overlap_J=zeros(floats),
        )

    def loss(self, normalisers_J: Tensor, decay: float) -> Tensor:
        """Return sum_j decay^j losses_j / normaliser_j, fp64."""
        weights_J = decay ** torch.arange(len(self.losses_J), device=self.losses_J.device, dtype=torch.float64)
        return (weights_J * self.losses_J / normalisers_J).sum()


def normalisers(trained_J: Tensor, tokens: int, compat: Compat = "none") -> Tensor:
    """Return what each depth's sum is divided by, fp64 [J], from counts over all processes and micro-batches.

    "none": the depth's trained cells. "specforge": all tokens, as sgl-project/SpecForge and SafeAILab/EAGLE do.
    """
    counts_J = trained_J.double()
    return torch.full_like(counts_J, tokens) if compat == "specforge" else counts_J.clamp(min=1)


class TiledLoss:
    """The loss of one head against one teacher. Memory follows `tile` alone: a few [tile, Vd] tensors."""

    def __init__(self, readout: Readout, teacher: Teacher, settings: LossSettings, *, tile: int = TILE) -> None:
        self.readout, self.settings, self.tile_size = readout, settings, tile
        self._teacher = DraftTeacher(teacher, readout.target_ids_V)
        self._uses_kernels = self._teacher.uses_kernels

    def prepare(self, cells: Sequence[Cells], states: States) -> Prepared:
        """Find what teaches `cells` (those of `TrainableHead.cells`), and count. Raises ValueError without states."""
        if states.last_TH is None and self.settings.kind != "hard":
            raise ValueError(f"the loss {self.settings.kind} needs the target's last hidden states")
        taught = self._teacher.taught(cells, states, tile=self.tile_size)
        trained = [(_at(taught, one.targets_N, taught.labels_S) >= 0).sum() for one in cells]
        known = states.taps_TC
        return Prepared(taught, torch.stack(trained), len(known))

    def __call__(
        self, one: HeadPass, prepared: Prepared, states: States, normalisers_J: Tensor | None
    ) -> tuple[LossSums, list[Tensor]]:
        """Return the sums of a pass and, by depth, the gradients of its outputs [R, H].

        Gradients of the readout's parameters are added to their `.grad`. Without normalisers there are no gradients.
        """
        total = (_FusedTotal if self._uses_kernels else _Total)(self, one, normalisers_J)
        edges = self._edges(one.cells, prepared.taught)
        ends_J = [torch.searchsorted(cells.targets_N, edges[1]) for cells in one.cells]
        ends_JE = torch.stack(ends_J).tolist()  # the only wait for the device
        for number, some in enumerate(edges[0]):
            teacher = None
            if states.last_TH is not None:
                make = self._teacher.logits if self._uses_kernels else self._teacher.tile
                teacher = make(prepared.taught, some, states.last_TH)
            for depth, ends in enumerate(ends_JE):
                if ends[number] < ends[number + 1]:
                    total.add(depth, slice(ends[number], ends[number + 1]), prepared.taught, some, teacher)
        return total.sums, total.grads

    def _edges(self, cells: Sequence[Cells], taught: Taught) -> tuple[list[slice], Tensor]:
        """Return the tiles that teach a pass, and the first position of each, with one beyond the last."""
        targets = [x.targets_N for x in cells if len(x.targets_N)]
        if not targets:
            return [], taught.positions_S[:0]
        ends = torch.stack([torch.stack([x[0] for x in targets]).min(), torch.stack([x[-1] for x in targets]).max()])
        first, last = torch.searchsorted(taught.positions_S, ends).tolist()
        tiles = [slice(at, min(at + self.tile_size, last + 1)) for at in range(first, last + 1, self.tile_size)]
        begins = taught.positions_S[first : last + 1 : self.tile_size]
        return tiles, torch.cat((begins, taught.positions_S[last : last + 1] + 1))


def _at(taught: Taught, targets_N: Tensor, values_S: Tensor) -> Tensor:
    return values_S[torch.searchsorted(taught.positions_S, targets_N)]


class _Cells(NamedTuple):
    """Results of some cells; `alpha_N` is None where only labels are known, the gradient is that of scaled losses."""

    loss_N: Tensor
    alpha_N: Tensor | None
    best_N: Tensor
    d_logits_NV: Tensor


class _Total:
    """Sums and gradients of one pass."""

    def __init__(self, loss: TiledLoss, one: HeadPass, normalisers_J: Tensor | None) -> None:
        self._one, self._readout, self._settings = one, loss.readout, loss.settings
        self._normalisers_J = normalisers_J
        self._matrix_VH = loss.readout.lm_head_VH.detach().to(one.outputs[0].dtype)
        self.sums = LossSums.zero(len(one.outputs), one.outputs[0].device)
        self.grads = [] if normalisers_J is None else [torch.zeros_like(x) for x in one.outputs]

    def add(self, depth: int, some: slice, taught: Taught, tile: slice, teacher: Any) -> None:
        """Add the cells `some` of a depth, which the positions `tile` teach."""
        cells = self._one.cells[depth]
        rows_N = cells.rows_N[some]
        at_N = torch.searchsorted(taught.positions_S[tile], cells.targets_N[some])
        labels_N = taught.labels_S[tile][at_N]
        norm_H = self._readout.norm_H.detach()
        output_NH = self._one.outputs[depth][rows_N]
        normed_NH, factor_N1 = norm_forward(output_NH, norm_H, self._readout.eps)
        logits_NV = wide_product(normed_NH, self._matrix_VH.T)
        scale_N = torch.zeros_like(factor_N1[:, 0])
        if self._normalisers_J is not None:
            scale_N = ((labels_N >= 0) * (cells.weight / self._normalisers_J[depth])).to(scale_N.dtype)
        found = self._losses(logits_NV, labels_N, scale_N, teacher, at_N)
        self._count(depth, found, labels_N)
        if self._normalisers_J is not None:
            d_logits_NV = found.d_logits_NV.to(normed_NH.dtype)
            add_product(gradient_of(self._readout.lm_head_VH), d_logits_NV.T, normed_NH)
            d_output, d_norm_H = norm_backward(d_logits_NV @ self._matrix_VH, output_NH, factor_N1, norm_H)
            gradient_of(self._readout.norm_H).add_(d_norm_H)
            self.grads[depth][rows_N] = d_output

    def _losses(self, logits_NV: Tensor, labels_N: Tensor, scale_N: Tensor, teacher: Any, at_N: Tensor) -> _Cells:
        """Return losses and scaled gradients of cells; labels may be -1. `teacher` is a `TeacherTile` or None."""
        lse_N = logits_NV.logsumexp(-1)
        best_N = logits_NV.argmax(-1)
        q_NV = (logits_NV - lse_N[:, None]).exp_()
        p_NV = full_NV = alpha_N = None
        if teacher is not None:
            p_NV, full_NV = teacher.p_SV[at_N], teacher.full_SV[at_N]
            alpha_N = torch.minimum(full_NV, q_NV).sum(-1)
        values = CellTile(logits_NV, lse_N, q_NV, labels_N.clamp(min=0), p_NV, full_NV, alpha_N)
        loss_N, d_logits_NV = loss_and_gradient(self._settings, values)
        return _Cells(loss_N, alpha_N, best_N, d_logits_NV.mul_(scale_N[:, None]))

    def _count(self, depth: int, found: _Cells, labels_N: Tensor) -> None:
        sums, trained_N = self.sums, labels_N >= 0
        sums.losses_J[depth] += torch.where(trained_N, found.loss_N, 0).sum(dtype=torch.float64)
        sums.trained_J[depth] += trained_N.sum()
        sums.counted_J[depth] += len(labels_N)
        sums.hits_J[depth] += (found.best_N == labels_N).sum()
        sums.overlap_J[depth] += torch.nan if found.alpha_N is None else found.alpha_N.sum(dtype=torch.float64)


class _FusedTotal(_Total):
    """The same by kernels, which read a row of logits twice; `teacher` is `TeacherRows` or None."""

    def _losses(self, logits_NV: Tensor, labels_N: Tensor, scale_N: Tensor, teacher: Any, at_N: Tensor) -> _Cells:
        from eyas.kernels.training.loss import cell_losses, row_stats

        settings, stats = self._settings, row_stats(logits_NV)
        found = cell_losses(
            settings.lk if settings.kind == "lk" else settings.kind,
            logits_NV, stats.lse_N, labels_N.clamp(min=0), scale_N, teacher, at_N,
            kl_scale=settings.kl_scale, kl_decay=settings.kl_decay, dtype=self._matrix_VH.dtype,
        )  # fmt: skip
        return _Cells(found.loss_N, None if teacher is None else found.alpha_N, stats.best_N, found.d_logits_NV)
