"""Attention of listed rows of a head in training, forward and backward: a range of keys of depth 0, then own keys.

A row sees the keys low:at + 1 of its batch and its own keys of later depths, in one softmax. Rows are an ascending
list, so hundreds of short runs are one launch; `low` and `at` do not fall from row to row. The softmax may have begun
elsewhere: the forward pass then starts from an output and a log-sum-exp, and `low` lies behind the keys seen there. The
backward pass takes the log-sum-exp and the output of the whole softmax.

The query heads of a key/value head lie side by side in a tile of rows. Programs of the gradients of keys and values own
a block of keys and add to sums in fp32, so no atomic operation is used and results do not vary from run to run.

Source: Dao, "FlashAttention-2", 2023.

Shape letters: T tokens of a batch, R rows, G key/value heads, Q query heads for each of them, D head dimension, J own
keys, B blocks of keys.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from eyas.kernels.training.attention_backward import key_kernel, query_kernel
from eyas.kernels.training.row_tiles import LOG2_E, key_ranges, listed_rows

__all__ = ["Begun", "RowList", "attention_backward", "attention_forward"]

# Compiled for sm_90 without spills: two programs of the first two share an SM, one of the last has 236 registers.
_FORWARD = dict(BLOCK_M=128, BLOCK_N=64, num_warps=8, num_stages=3, maxnreg=128)
_QUERIES = dict(BLOCK_M=64, BLOCK_N=64, num_warps=4, num_stages=3)
_KEYS = dict(BLOCK_M=64, BLOCK_N=128, num_warps=8, num_stages=3)


class RowList(NamedTuple):
    """Rows of a batch: each sees the keys low:at + 1. Both int64 [R] and ascending."""

    at_R: Tensor
    low_R: Tensor


class Begun(NamedTuple):
    """Output and log-sum-exp, fp32, of the first N rows over keys before their `low`."""

    out_NGQD: Tensor
    lse_NGQ: Tensor


@triton.jit
def _step(
    q, peak, total, acc, start, end, at, low, k_ptr, v_ptr, inner, stride, scale,
    BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """One step of the online softmax, in powers of 2; `scale` includes log2(e)."""
    key = start + tl.arange(0, BLOCK_N)
    place = tl.minimum(key, end - 1) if MASKED else key
    offsets = place.to(tl.int64)[:, None] * stride + inner[None, :]
    k = tl.load(k_ptr + offsets)
    scores = tl.dot(q, k.T) * scale
    if MASKED:
        hidden = (key[None, :] > at[:, None]) | (key[None, :] < low[:, None])
        scores = tl.where(hidden, float("-inf"), scores)
    new_peak = tl.maximum(peak, tl.max(scores, 1))
    weights = tl.exp2(scores - new_peak[:, None])
    fade = tl.exp2(peak - new_peak)
    v = tl.load(v_ptr + offsets)
    acc = tl.dot(weights.to(v.dtype), v, acc * fade[:, None])
    return new_peak, total * fade + tl.sum(weights, 1), acc


@triton.jit(do_not_specialize=["num_rows", "num_own", "num_begun"])  # that vary from pass to pass
def _forward_kernel(
    q_ptr, k_ptr, v_ptr, own_k_ptr, own_v_ptr, at_ptr, low_ptr, begun_out_ptr, begun_lse_ptr, out_ptr, lse_ptr,
    num_rows, num_own, num_begun, scale,
    G: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    tile = tl.num_programs(0) - 1 - tl.program_id(0)  # the longest rows first
    kv_head = tl.program_id(1)
    first, last, row, inside, at, low, head = listed_rows(
        at_ptr, low_ptr, tile, num_rows, kv_head, G, GROUP, BLOCK_M
    )  # fmt: skip
    d = tl.arange(0, D)
    offsets = head[:, None] * D + d[None, :]
    q = tl.load(q_ptr + offsets)

    peak = tl.full((BLOCK_M,), -1e30, tl.float32)  # not -inf, whose difference with itself is NaN
    total = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, D), tl.float32)
    if num_begun > first:
        begun = row < num_begun
        peak = tl.load(begun_lse_ptr + head, mask=begun, other=-1e30) * LOG2_E
        total = tl.where(begun, 1.0, 0.0)
        acc = tl.load(begun_out_ptr + offsets, mask=begun[:, None], other=0.0).to(tl.float32)

    begin, open_from, open_to, rest, end = key_ranges(at_ptr, low_ptr, first, last, BLOCK_N)
    k_ptr += kv_head * D
    v_ptr += kv_head * D
    stride: tl.constexpr = G * D
    for start in tl.range(begin, open_from, BLOCK_N):
        peak, total, acc = _step(
            q, peak, total, acc, start, end, at, low, k_ptr, v_ptr, d, stride, scale, BLOCK_N, True
        )  # fmt: skip
    for start in tl.range(open_from, open_to, BLOCK_N):
        peak, total, acc = _step(
            q, peak, total, acc, start, end, at, low, k_ptr, v_ptr, d, stride, scale, BLOCK_N, False
        )  # fmt: skip
    for start in tl.range(rest, end, BLOCK_N):
        peak, total, acc = _step(
            q, peak, total, acc, start, end, at, low, k_ptr, v_ptr, d, stride, scale, BLOCK_N, True
        )  # fmt: skip
    wide = q.to(tl.float32)
    for j in tl.range(num_own):
        own = ((j * num_rows + row) * G + kv_head)[:, None] * D + d[None, :]
        score = tl.sum(wide * tl.load(own_k_ptr + own).to(tl.float32), 1) * scale
        new_peak = tl.maximum(peak, score)
        weight = tl.exp2(score - new_peak)
        fade = tl.exp2(peak - new_peak)
        total = total * fade + weight
        acc = acc * fade[:, None] + weight[:, None] * tl.load(own_v_ptr + own).to(tl.float32)
        peak = new_peak
    tl.store(out_ptr + offsets, (acc / total[:, None]).to(out_ptr.dtype.element_ty), mask=inside[:, None])
    tl.store(lse_ptr + head, (peak + tl.log2(total)) / LOG2_E, mask=inside)


def attention_forward(
    q_RGQD: Tensor,
    keys_TGD: Tensor,
    values_TGD: Tensor,
    rows: RowList,
    own_keys_JRGD: Tensor,
    own_values_JRGD: Tensor,
    begun: Begun | None = None,
) -> tuple[Tensor, Tensor]:
    """Return attention [R, G, Q, D] and the log-sum-exp of scores, fp32 [R, G, Q]. All tensors are contiguous.

    Q and D are powers of two, Q at most 16, D at least 16; every row sees a key, here or in `begun`.
    """
    num_rows, groups, queries, dim = q_RGQD.shape
    out = torch.empty_like(q_RGQD)
    lse = torch.empty(q_RGQD.shape[:3], dtype=torch.float32, device=q_RGQD.device)
    grid = (triton.cdiv(num_rows, _FORWARD["BLOCK_M"] // queries), groups)
    _forward_kernel[grid](
        q_RGQD, keys_TGD, values_TGD, own_keys_JRGD, own_values_JRGD, rows.at_R, rows.low_R,
        out if begun is None else begun.out_NGQD, lse if begun is None else begun.lse_NGQ, out, lse,
        num_rows, len(own_keys_JRGD), 0 if begun is None else len(begun.lse_NGQ), dim**-0.5 * LOG2_E.value,
        G=groups, GROUP=queries, D=dim, **_FORWARD,
    )  # fmt: skip
    return out, lse


class _Gradients(NamedTuple):
    q_RGQD: Tensor
    own_keys_JRGD: Tensor
    own_values_JRGD: Tensor


def attention_backward(
    d_out_RGQD: Tensor,
    q_RGQD: Tensor,
    out_RGQD: Tensor,
    lse_RGQ: Tensor,
    keys_TGD: Tensor,
    values_TGD: Tensor,
    key_sums_TGD: Tensor,
    value_sums_TGD: Tensor,
    rows: RowList,
    own_keys_JRGD: Tensor,
    own_values_JRGD: Tensor,
    *,
    first_key: int,
    last_key: int,
    begun_NGQD: Tensor | None = None,
) -> _Gradients:
    """Return the gradients of queries and own keys and values; add those of depth 0's keys and values to fp32 sums.

    `first_key` and `last_key` bound the keys that some row sees here: the least `low`, and the largest `at` + 1.
    `begun_NGQD` are gradients of the first rows' queries from keys before their `low`.
    """
    num_rows, groups, queries, dim = q_RGQD.shape
    scale = dim**-0.5
    d_q = torch.empty_like(q_RGQD)
    d_own_keys, d_own_values = torch.empty_like(own_keys_JRGD), torch.empty_like(own_values_JRGD)
    delta = torch.empty_like(lse_RGQ)
    grid = (triton.cdiv(num_rows, _QUERIES["BLOCK_M"] // queries), groups)
    query_kernel[grid](
        q_RGQD, keys_TGD, values_TGD, own_keys_JRGD, own_values_JRGD, rows.at_R, rows.low_R, out_RGQD, lse_RGQ,
        d_out_RGQD, d_q if begun_NGQD is None else begun_NGQD, d_q, d_own_keys, d_own_values, delta,
        num_rows, len(own_keys_JRGD), 0 if begun_NGQD is None else len(begun_NGQD), scale, scale * LOG2_E.value,
        G=groups, GROUP=queries, D=dim, **_QUERIES,
    )  # fmt: skip
    size = _KEYS["BLOCK_N"]
    first_block, num_blocks = first_key // size, triton.cdiv(last_key, size) - first_key // size
    if num_blocks > 0:
        edges_B = torch.arange(first_block, first_block + num_blocks, device=q_RGQD.device) * size
        places_4B = torch.stack(
            (
                torch.searchsorted(rows.at_R, edges_B),  # the first row that sees some key of a block,
                torch.searchsorted(rows.at_R, edges_B + size - 1),  # all of it;
                torch.searchsorted(rows.low_R, edges_B, right=True),  # behind the last row that sees all of it,
                torch.searchsorted(rows.low_R, edges_B + size),  # some key of it
            )
        )
        key_kernel[(num_blocks, groups)](
            q_RGQD, keys_TGD, values_TGD, rows.at_R, rows.low_R, lse_RGQ, delta, d_out_RGQD, *places_4B,
            key_sums_TGD, value_sums_TGD, first_block, last_key, scale, scale * LOG2_E.value,
            G=groups, GROUP=queries, D=dim, **_KEYS,
        )  # fmt: skip
    return _Gradients(d_q, d_own_keys, d_own_values)
