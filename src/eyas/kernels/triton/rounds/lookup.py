"""Prompt lookup in the tokens of sequences on a GPU: the Triton twin of `kernels.reference.rounds.lookup.look_up_ref`.

Several programs search a sequence and agree by an atomic maximum of (length of the match, position); then one program
for each sequence reads what follows.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from eyas.kernels.reference.rounds.lookup import Found

__all__ = ["look_up"]

_SIZE = 2048  # positions of a program


@triton.jit(do_not_specialize_on_alignment=["slots_ptr"])
def _search(tokens_ptr, slots_ptr, length_ptr, best_ptr, N, MIN: tl.constexpr, MAX: tl.constexpr, SIZE: tl.constexpr):
    s, first = tl.program_id(0), tl.program_id(1) * SIZE
    slot = tl.load(slots_ptr + s)
    length = tl.load(length_ptr + slot)
    if first >= length:
        return
    tokens_ptr += slot * N
    column = first + tl.arange(0, SIZE)
    unbroken = (column > 0) & (column < length)
    matched = tl.zeros([SIZE], tl.int32)
    for back in tl.static_range(1, MAX + 1):
        unbroken &= column >= back
        suffix = tl.load(tokens_ptr + length - back, mask=length >= back, other=-1)
        token = tl.load(tokens_ptr + column - back, mask=unbroken, other=-2)
        unbroken &= token == suffix
        matched += unbroken.to(tl.int32)
    best = tl.max(tl.where(matched >= MIN, (matched.to(tl.int64) << 32) + column, -1))
    if best >= 0:
        tl.atomic_max(best_ptr + s, best, sem="relaxed")


@triton.jit(do_not_specialize=["K"], do_not_specialize_on_alignment=["slots_ptr"])
def _read(tokens_ptr, slots_ptr, length_ptr, best_ptr, ids_ptr, found_ptr, N, K, COLUMNS: tl.constexpr):
    s, column = tl.program_id(0), tl.arange(0, COLUMNS)
    slot, best = tl.load(slots_ptr + s), tl.load(best_ptr + s)
    is_found = best >= 0
    start = tl.where(is_found, best & 0xFFFFFFFF, 0)
    place = start + column % (tl.load(length_ptr + slot) - start)
    ids = tl.load(tokens_ptr + slot * N + place, mask=is_found & (column < K), other=0)
    tl.store(ids_ptr + s * K + column, ids, mask=column < K)
    tl.store(found_ptr + s, is_found)


def look_up(
    tokens_SN: Tensor,
    slots_S: Tensor,
    length_S: Tensor,
    num_drafts: int,
    *,
    min_match: int,
    max_match: int,
    max_length: int,
) -> Found:
    """Do prompt lookup; see `kernels.reference.rounds.lookup.LookUp`. Every length is at least 1."""
    num_seqs = len(slots_S)
    best_S = torch.full_like(slots_S, -1)
    found = Found(slots_S.new_empty(num_seqs, num_drafts), slots_S.new_empty(num_seqs, dtype=torch.bool))
    search: Any = _search
    read: Any = _read
    search[(num_seqs, triton.cdiv(max_length, _SIZE))](
        tokens_SN,
        slots_S,
        length_S,
        best_S,
        tokens_SN.stride(0),
        MIN=min_match,
        MAX=max_match,
        SIZE=_SIZE,
        num_warps=8,
    )
    read[(num_seqs,)](
        tokens_SN,
        slots_S,
        length_S,
        best_S,
        *found,
        tokens_SN.stride(0),
        num_drafts,
        COLUMNS=triton.next_power_of_2(num_drafts),
        num_warps=1,
    )
    return found
