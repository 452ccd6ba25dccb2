"""Finds where chains of drafts end, in one launch: the Triton twin of `kernels.reference.rounds.chain`."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from eyas.kernels.reference.rounds.chain import ChainEnd

__all__ = ["end_chains"]


@triton.jit(do_not_specialize=["stride", "K"], do_not_specialize_on_alignment=["slots_ptr"])
def _end_chains(
    guesses_ptr,
    logprobs_ptr,
    room_ptr,
    slots_ptr,
    cut_ptr,
    edges_ptr,
    ids_ptr,
    num_valid_ptr,
    levels_ptr,
    stride,
    K,
    EDGES: tl.constexpr,
    COLUMNS: tl.constexpr,
    PADDED: tl.constexpr,
):
    s, column, n = tl.program_id(0), tl.arange(0, COLUMNS), tl.arange(0, PADDED)
    cut_ptr += tl.load(slots_ptr + s) * (EDGES + 2)
    edges = tl.load(edges_ptr + n, mask=n < EDGES, other=float("inf"))
    guesses = tl.load(guesses_ptr + column * stride + s, mask=column < K, other=0)
    tl.store(ids_ptr + s * K + column, guesses, mask=column < K)
    logprobs = tl.load(logprobs_ptr + column * stride + s, mask=column < K, other=float("-inf"))
    levels = tl.sum((logprobs[:, None] > edges[None, :]).to(tl.int32), axis=1)
    chances = tl.load(cut_ptr + 1 + levels)
    so_far = tl.sum(tl.where(column[None, :] <= column[:, None], chances[None, :], 0.0), axis=1)
    is_worth = (so_far >= tl.load(cut_ptr)) & (column < K)
    num_worth = tl.sum(is_worth.to(tl.int64), axis=0)
    tl.store(levels_ptr + s * K + column, levels.to(tl.int64), mask=column < K)
    tl.store(num_valid_ptr + s, tl.minimum(tl.load(room_ptr + s), num_worth))


def end_chains(
    ids_KS: Tensor,
    logprobs_KS: Tensor,
    room_S: Tensor,
    slots_S: Tensor,
    cut_SN: Tensor,
    edges_N: Tensor,
    out: ChainEnd | None = None,
) -> ChainEnd:
    """Cut chains as `kernels.reference.rounds.chain.end_chains_ref` does; fp32 log-probabilities and cuts."""
    num_drafts, num_seqs = ids_KS.shape
    assert ids_KS.stride() == logprobs_KS.stride() and (num_seqs == 1 or ids_KS.stride(1) == 1)
    assert cut_SN.is_contiguous() and cut_SN.shape[1] == len(edges_N) + 2
    if out is None:
        ids_SK, levels_SK = (slots_S.new_empty(num_seqs, num_drafts) for _ in range(2))
        out = ChainEnd(ids_SK, slots_S.new_empty(num_seqs), levels_SK)
    kernel: Any = _end_chains
    kernel[(num_seqs,)](
        ids_KS,
        logprobs_KS,
        room_S,
        slots_S,
        cut_SN,
        edges_N,
        *out,
        ids_KS.stride(0),
        num_drafts,
        EDGES=len(edges_N),
        COLUMNS=triton.next_power_of_2(num_drafts),
        PADDED=triton.next_power_of_2(len(edges_N)),
        num_warps=1,
    )
    return out
