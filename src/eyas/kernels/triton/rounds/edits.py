"""Edits that requests make to the target's logits: penalties, bias, stop tokens that come too early, grammar masks.

The order and the arithmetic are those of `engine.sampling.sampler`: repetition over prompt and output, frequency and
presence over output (vLLM's order), bias, then masks.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

__all__ = ["Edits", "Masks", "edit_chunk"]


class Edits(NamedTuple):
    """Edits per slot [S, ...], read on the device: neutral values cost a row nothing but reading them."""

    presence_S: Tensor  # fp32, 0 is off
    frequency_S: Tensor  # fp32, 0 is off
    repetition_S: Tensor  # fp32, 1 is off
    output_counts_SV: Tensor  # int32
    in_prompt_SV: Tensor  # bool
    bias_ids_SN: Tensor  # int64, the first `num_bias_S` count
    bias_SN: Tensor  # fp32
    num_bias_S: Tensor  # int64
    stop_ids_SN: Tensor  # int64, padded with -1
    first_stop_S: Tensor  # int64: position from which stop tokens may be drawn


class Masks(NamedTuple):
    """Packed masks, bit v % 32 of word v // 32 keeps token v; `index_T` names each row's mask, -1 for none."""

    words_MW: Tensor  # int32
    index_T: Tensor  # int64


@triton.jit
def _penalize(
    scores,
    ids,
    inside,
    counts_ptr,
    in_prompt_ptr,
    ancestors_ptr,
    first_ancestor,
    num_ancestors,
    presence,
    frequency,
    rep,
):
    counts = tl.load(counts_ptr + ids, mask=inside, other=0)
    if ancestors_ptr is not None:
        k = 0
        while k < num_ancestors:
            counts += (ids == tl.load(ancestors_ptr + first_ancestor + k)).to(tl.int32)
            k += 1
    in_prompt = tl.load(in_prompt_ptr + ids, mask=inside, other=0) != 0
    scaled = tl.where(scores > 0, tl.div_rn(scores, rep), scores * rep)
    scores = tl.where(in_prompt | (counts > 0), scaled, scores)
    return scores - frequency * counts.to(tl.float32) - presence * (counts > 0).to(tl.float32)


@triton.jit
def edit_chunk(
    scores,
    ids,
    inside,
    row,
    slot,
    position,
    edits,
    masks,
    ancestors_ptr,
    first_ancestor,
    num_ancestors,
    V,
    NUM_BIAS: tl.constexpr,
    NUM_STOPS: tl.constexpr,
    SIZE: tl.constexpr,
):
    """Edit the raw logits of one chunk of a row by its slot and its mask. `inside` is false past the vocabulary.

    The `num_ancestors` draft tokens from `first_ancestor` on, those before the row, count as output.
    """
    if edits is not None:
        presence, frequency = tl.load(edits.presence_S + slot), tl.load(edits.frequency_S + slot)
        rep = tl.load(edits.repetition_S + slot)
        if (presence != 0) | (frequency != 0) | (rep != 1):
            counts_ptr, in_prompt_ptr = edits.output_counts_SV + slot * V, edits.in_prompt_SV + slot * V
            scores = _penalize(
                scores,
                ids,
                inside,
                counts_ptr,
                in_prompt_ptr,
                ancestors_ptr,
                first_ancestor,
                num_ancestors,
                presence,
                frequency,
                rep,
            )
        num_bias = tl.load(edits.num_bias_S + slot)
        if num_bias > 0:
            first = tl.min(ids)
            n = tl.arange(0, tl.constexpr(triton.next_power_of_2(NUM_BIAS)))
            listed = tl.load(edits.bias_ids_SN + slot * NUM_BIAS + n, mask=n < num_bias, other=-1).to(tl.int32)
            bias = tl.load(edits.bias_SN + slot * NUM_BIAS + n, mask=n < num_bias, other=0.0)
            near = (listed >= first) & (listed < first + SIZE)
            while tl.max(near.to(tl.int32)) > 0:
                at = tl.min(tl.where(near, listed, 0x7FFFFFFF))
                scores = tl.where(ids == at, scores + tl.sum(tl.where(near & (listed == at), bias, 0.0)), scores)
                near = near & (listed != at)
        if position < tl.load(edits.first_stop_S + slot):
            for n in range(NUM_STOPS):
                stop = tl.load(edits.stop_ids_SN + slot * NUM_STOPS + n)
                scores = tl.where(ids == stop, float("-inf"), scores)
    if masks is not None:
        mask = tl.load(masks.index_T + row)
        if mask >= 0:
            words = tl.load(masks.words_MW + mask * ((V + 31) // 32) + ids // 32, mask=inside, other=0)
            scores = tl.where((words >> (ids % 32)) & 1 != 0, scores, float("-inf"))
    return scores
