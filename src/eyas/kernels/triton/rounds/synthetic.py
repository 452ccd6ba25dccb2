"""Synthetic acceptance in a launch a draft and one a round, as a real head takes no time for it.

Twins of the functions of `kernels.reference.rounds.synthetic`.

Shape letters: S sequences or slots, N positions, K drafts, R rows of a sequence, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

__all__ = ["decide", "guess"]


@triton.jit(do_not_specialize=["step", "R"], do_not_specialize_on_alignment=["slots_ptr", "out_ptr"])
def _guess(ids_ptr, slots_ptr, length_ptr, out_ptr, step, N, R):
    row = tl.program_id(0)
    slot = tl.load(slots_ptr + row // R)
    position = tl.minimum(tl.load(length_ptr + slot) + step + row % R, N - 1)
    tl.store(out_ptr + row, tl.load(ids_ptr + slot * N + position))


@triton.jit(do_not_specialize=["K", "certain"], do_not_specialize_on_alignment=["slots_ptr", "draft_ptr"])
def _decide(logits_ptr, right_ptr, slots_ptr, length_ptr, draft_ptr, certain, V, N, K):
    s, k = (tl.program_id(0) // K).to(tl.int64), tl.program_id(0) % K
    slot = tl.load(slots_ptr + s)
    position = tl.minimum(tl.load(length_ptr + slot) + k, N - 1)
    is_right = tl.load(right_ptr + slot * N + position) != 0
    draft = tl.load(draft_ptr + s * K + k)
    tl.store(logits_ptr + (s * (K + 1) + k) * V + draft, tl.where(is_right, certain, -certain))


def guess(ids_SN: Tensor, slots_S: Tensor, length_S: Tensor, step: int, out_T: Tensor) -> None:
    """Write the ids at the positions of drafts: row r of a sequence stands `step` + r after its length."""
    kernel: Any = _guess
    kernel[(len(out_T),)](
        ids_SN, slots_S, length_S, out_T, step, ids_SN.shape[1], len(out_T) // len(slots_S), num_warps=1
    )


def decide(
    logits_SRV: Tensor, right_SN: Tensor, slots_S: Tensor, length_S: Tensor, draft_SK: Tensor, certain: float
) -> None:
    """Set the logit of each draft to `certain` where `right_SN` says so at its position, else to its negative."""
    num_seqs, num_drafts = draft_SK.shape
    assert (
        logits_SRV.is_contiguous() and draft_SK.is_contiguous() and logits_SRV.shape[:2] == (num_seqs, num_drafts + 1)
    )
    if num_drafts:
        kernel: Any = _decide
        kernel[(num_seqs * num_drafts,)](
            logits_SRV, right_SN, slots_S, length_S, draft_SK, certain, logits_SRV.shape[2], right_SN.shape[1],
            num_drafts, num_warps=1,
        )  # fmt: skip
