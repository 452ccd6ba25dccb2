"""Losses of cells from logits, with their gradients, in two readings of a row: log-sum-exp first, then all else.

The formulas are those of `train/loss/kinds.py`, whose plain operations are the twin: with q = softmax(z), p the
target's distribution over the draft vocabulary, P = `share` p and alpha = sum min(P, q), each gradient but hard's is

    a (q - p) + b (gain - q sum(gain)),   gain = q where q < P, else 0

with (1, 0) for kl, (0, -1) for tv, (0, -1 / alpha) for lk's "alpha", (w, w - 1) for its "lambda".

Shape letters: N cells, S positions that teach, V vocabulary.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["CellLosses", "Kind", "RowStats", "TeacherRows", "cell_losses", "row_stats"]

Kind = Literal["kl", "tv", "alpha", "lambda", "hard"]
_KINDS: dict[Kind, int] = {"kl": 0, "tv": 1, "alpha": 2, "lambda": 3, "hard": 4}
_BLOCK = 4096
_LAUNCH = dict(num_warps=8, num_stages=2)


class RowStats(NamedTuple):
    lse_N: Tensor
    peak_N: Tensor
    best_N: Tensor  # int64, the first of equals


class TeacherRows(NamedTuple):
    """Logits of the target over the draft vocabulary, their log-sum-exp, and its share exp(lse - lse of all tokens)."""

    logits_SV: Tensor
    lse_S: Tensor
    share_S: Tensor


class CellLosses(NamedTuple):
    loss_N: Tensor
    alpha_N: Tensor  # undefined without a teacher
    d_logits_NV: Tensor


@triton.jit
def _stats_kernel(logits_ptr, lse_ptr, peak_ptr, best_ptr, num_columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * num_columns
    v = tl.arange(0, BLOCK)
    peaks = tl.full((BLOCK,), float("-inf"), tl.float32)
    places = tl.zeros((BLOCK,), tl.int32)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in tl.range(0, num_columns, BLOCK):
        z = tl.load(logits_ptr + start + v, mask=start + v < num_columns, other=float("-inf"))
        larger = z > peaks
        new = tl.where(larger, z, peaks)
        safe = tl.where(new == float("-inf"), 0.0, new)  # not -inf - -inf
        total = total * tl.exp(peaks - safe) + tl.exp(z - safe)
        places = tl.where(larger, start + v, places)
        peaks = new
    peak = tl.max(peaks, 0)
    total = tl.sum(total * tl.exp(peaks - peak), 0)
    best = tl.min(tl.where(peaks == peak, places, 2147483647), 0)
    tl.store(lse_ptr + row, peak + tl.log(total))
    tl.store(peak_ptr + row, peak)
    tl.store(best_ptr + row, best.to(tl.int64))


def row_stats(logits_NV: Tensor) -> RowStats:
    """Return log-sum-exp, largest value and its place for rows of fp32 logits, which are contiguous and finite."""
    num_rows, num_columns = logits_NV.shape
    lse, peak = (torch.empty(num_rows, dtype=torch.float32, device=logits_NV.device) for _ in range(2))
    best = torch.empty(num_rows, dtype=torch.int64, device=logits_NV.device)
    _stats_kernel[(num_rows,)](logits_NV, lse, peak, best, num_columns, BLOCK=_BLOCK, **_LAUNCH)
    return RowStats(lse, peak, best)


@triton.jit
def _values(logits_ptr, teacher_ptr, lse, teacher_lse, share, at, num_columns):
    """z, q, p, P of some columns; 0 for q, p and P beyond the last."""
    inside = at < num_columns
    z = tl.load(logits_ptr + at, mask=inside, other=0.0)
    q = tl.where(inside, tl.exp(z - lse), 0.0)
    p = tl.where(inside, tl.exp(tl.load(teacher_ptr + at, mask=inside, other=0.0) - teacher_lse), 0.0)
    return z, q, p, p * share


@triton.jit
def _cells_kernel(
    logits_ptr, lse_ptr, labels_ptr, scale_ptr, teacher_ptr, teacher_lse_ptr, share_ptr, teachers_ptr,
    loss_ptr, alpha_ptr, d_logits_ptr, num_columns, kl_scale, kl_decay,
    KIND: tl.constexpr, HAS_TEACHER: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * num_columns
    d_logits_ptr += row * num_columns
    lse = tl.load(lse_ptr + row)
    scale = tl.load(scale_ptr + row)
    label = tl.load(labels_ptr + row).to(tl.int32)
    v = tl.arange(0, BLOCK)
    dtype: tl.constexpr = d_logits_ptr.dtype.element_ty
    teacher_lse = 0.0
    share = 0.0
    if HAS_TEACHER:
        teacher = tl.load(teachers_ptr + row)
        teacher_lse = tl.load(teacher_lse_ptr + teacher)
        share = tl.load(share_ptr + teacher)
        teacher_ptr += teacher * num_columns
    products = tl.zeros((BLOCK,), tl.float32)
    overlaps = tl.zeros((BLOCK,), tl.float32)
    gains = tl.zeros((BLOCK,), tl.float32)
    for start in tl.range(0, num_columns, BLOCK):
        at = start + v
        if HAS_TEACHER:
            z, q, p, full = _values(logits_ptr, teacher_ptr, lse, teacher_lse, share, at, num_columns)
            products += p * z
            overlaps += tl.minimum(full, q)
            gains += tl.where(q < full, q, 0.0)
            if KIND == 0:
                tl.store(d_logits_ptr + at, ((q - p) * scale).to(dtype), mask=at < num_columns)
        if KIND == 4:
            own = tl.exp(tl.load(logits_ptr + at, mask=at < num_columns, other=0.0) - lse)
            own = tl.where(at == label, own - 1.0, own)
            tl.store(d_logits_ptr + at, (own * scale).to(dtype), mask=at < num_columns)
    alpha = tl.sum(overlaps, 0)
    cross = lse - tl.sum(products, 0)
    if HAS_TEACHER:
        tl.store(alpha_ptr + row, alpha)
    if KIND == 4:
        tl.store(loss_ptr + row, lse - tl.load(logits_ptr + label))
    elif KIND == 0:
        tl.store(loss_ptr + row, cross)
    else:
        gain_sum = tl.sum(gains, 0)
        safe = tl.maximum(alpha, 1.1754943508222875e-38)
        if KIND == 1:
            a = 0.0
            b = -1.0
            loss = 1.0 - alpha
        elif KIND == 2:
            a = 0.0
            b = -1.0 / safe
            loss = -tl.log(safe)
        else:
            a = kl_scale * tl.exp(-kl_decay * safe)
            b = a - 1.0
            loss = a * cross - b * (1.0 - safe)
        tl.store(loss_ptr + row, loss)
        for start in tl.range(0, num_columns, BLOCK):
            at = start + v
            z, q, p, full = _values(logits_ptr, teacher_ptr, lse, teacher_lse, share, at, num_columns)
            gain = tl.where(q < full, q, 0.0)
            gradient = a * (q - p) + b * (gain - q * gain_sum)
            tl.store(d_logits_ptr + at, (gradient * scale).to(dtype), mask=at < num_columns)


def cell_losses(
    kind: Kind,
    logits_NV: Tensor,
    lse_N: Tensor,
    labels_N: Tensor,
    scale_N: Tensor,
    teacher: TeacherRows | None,
    teachers_N: Tensor,
    *,
    kl_scale: float,
    kl_decay: float,
    dtype: torch.dtype,
) -> CellLosses:
    """Return the losses of cells, and the gradients of `scale_N` times them in `dtype`.

    Logits are fp32 and contiguous; `labels_N` (not negative) and `teachers_N`, rows of the teacher, are int64. Only
    `hard` does without a teacher.
    """
    num_cells, num_columns = logits_NV.shape
    loss, alpha = torch.empty_like(lse_N), torch.empty_like(lse_N)
    d_logits = torch.empty(logits_NV.shape, dtype=dtype, device=logits_NV.device)
    given = TeacherRows(logits_NV, lse_N, lse_N) if teacher is None else teacher
    _cells_kernel[(num_cells,)](
        logits_NV, lse_N, labels_N, scale_N, *given, teachers_N, loss, alpha, d_logits, num_columns, kl_scale, kl_decay,
        KIND=_KINDS[kind], HAS_TEACHER=teacher is not None, BLOCK=_BLOCK, **_LAUNCH,
    )  # fmt: skip
    return CellLosses(loss, alpha, d_logits)
