"""Rows of sequences, each kind in one launch: the Triton twin of `kernels.reference.rounds.gather.PlainGather`.

A round has a dozen indexed reads of a few numbers, each of which would take a launch of 2 us.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from eyas.kernels.reference.rounds.gather import Book, Chain, SequenceRows

__all__ = ["DeviceGather"]

_SIZE = tl.constexpr(1024)  # pages, and columns of taps, that a program copies


@triton.jit
def _copy_pages(book, full_ptr, sliding_ptr, s, slot, P):
    at = tl.program_id(1) * _SIZE + tl.arange(0, _SIZE)
    inside = at < P
    tl.store(full_ptr + s * P + at, tl.load(book.full_SP + slot * P + at, mask=inside), mask=inside)
    tl.store(sliding_ptr + s * P + at, tl.load(book.sliding_SP + slot * P + at, mask=inside), mask=inside)


@triton.jit(
    do_not_specialize=["R"],
    do_not_specialize_on_alignment=["slots_ptr", "draft_ptr", "num_valid_ptr", "live_ptr"],
)
def _verified(
    book, slots_ptr, draft_ptr, num_valid_ptr, tokens_ptr, positions_ptr, live_ptr, full_ptr, sliding_ptr, N, P, R,
    ROWS: tl.constexpr,
):  # fmt: skip
    s = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + s)
    _copy_pages(book, full_ptr, sliding_ptr, s, slot, P)
    if tl.program_id(1) == 0:
        column = tl.arange(0, ROWS)
        inside, at = column < R, s * R + column
        newest = tl.load(book.length_S + slot) - 1
        drafts = tl.load(draft_ptr + s * (R - 1) + column - 1, mask=inside & (column > 0), other=0)
        last = tl.load(book.tokens_SN + slot * N + newest)
        live = (column <= tl.load(num_valid_ptr + s)) & (tl.load(book.live_S + slot) != 0)
        tl.store(tokens_ptr + at, tl.where(column == 0, last, drafts), mask=inside)
        tl.store(positions_ptr + at, newest + column, mask=inside)
        tl.store(live_ptr + at, live, mask=inside)


@triton.jit(do_not_specialize=["R"], do_not_specialize_on_alignment=["slots_ptr"])
def _unseen(
    book, slots_ptr, tokens_ptr, positions_ptr, live_ptr, full_ptr, sliding_ptr, taps_ptr, N, P, W, C, R,
    SHIFT: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    s = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + s)
    _copy_pages(book, full_ptr, sliding_ptr, s, slot, P)
    length = tl.load(book.length_S + slot)
    column = tl.program_id(1) * _SIZE + tl.arange(0, _SIZE)
    inside = column < C
    ring_ptr, row = book.tap_ring_SWC + slot * W * C, 0
    while row < R:
        place = (length - R + row) % W
        place = tl.where(place < 0, place + W, place)
        taps = tl.load(ring_ptr + place * C + column, mask=inside)
        tl.store(taps_ptr + (s * R + row) * C + column, taps, mask=inside)
        row += 1
    if tl.program_id(1) == 0:
        rows = tl.arange(0, ROWS)
        inside_rows, at = rows < R, s * R + rows
        newest = length - 1 if SHIFT else length - 2
        positions = newest + 1 - R + rows
        first = tl.minimum(tl.load(book.head_length_S + slot), length - 1)
        tokens = tl.load(book.tokens_SN + slot * N + tl.maximum(positions, 0), mask=inside_rows, other=0)
        tl.store(tokens_ptr + at, tokens, mask=inside_rows)
        tl.store(positions_ptr + at, positions, mask=inside_rows)
        tl.store(live_ptr + at, (positions >= first) & (tl.load(book.live_S + slot) != 0), mask=inside_rows)
        tl.store(book.head_length_S + slot, newest + 1)


@triton.jit(do_not_specialize=["K"], do_not_specialize_on_alignment=["slots_ptr"])
def _chain(
    book, slots_ptr, room_ptr, positions_ptr, live_ptr, full_ptr, sliding_ptr, P, stride, K, STEPS: tl.constexpr
):  # fmt: skip
    s = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + s)
    _copy_pages(book, full_ptr, sliding_ptr, s, slot, P)
    if tl.program_id(1) == 0:
        step = tl.arange(0, STEPS)
        wanted = tl.minimum(tl.load(book.remaining_S + slot) - 1, tl.load(book.draft_limit_S + slot))
        is_drafted = (tl.load(book.live_S + slot) != 0) & (tl.load(book.by_lookup_S + slot) == 0)
        room = tl.where(is_drafted, tl.minimum(tl.maximum(wanted, 0), K), 0)
        tl.store(room_ptr + s, room)
        tl.store(positions_ptr + step * stride + s, tl.load(book.length_S + slot) + step, mask=step < K)
        tl.store(live_ptr + step * stride + s, step + 1 < room, mask=step < K)


def _grid(num_seqs: int, num_columns: int) -> tuple[int, int]:
    return num_seqs, triton.cdiv(num_columns, _SIZE.value)


class DeviceGather:
    """Implements `kernels.reference.rounds.gather.Gather`."""

    def verified(
        self, book: Book, slots_S: Tensor, draft_SK: Tensor, num_valid_S: Tensor, live_T: Tensor | None = None
    ) -> SequenceRows:
        assert draft_SK.is_contiguous()
        rows = _empty(book, slots_S, draft_SK.shape[1] + 1, live_T)
        num_rows, num_pages = rows.tokens_SR.shape[1], rows.full_SP.shape[1]
        kernel: Any = _verified
        kernel[_grid(len(slots_S), num_pages)](
            book, slots_S, draft_SK, num_valid_S, *rows, book.tokens_SN.shape[1], num_pages, num_rows,
            ROWS=triton.next_power_of_2(num_rows),
        )  # fmt: skip
        return rows

    def unseen(self, book: Book, slots_S: Tensor, num_rows: int, *, shift: bool) -> tuple[SequenceRows, Tensor]:
        rows, ring = _empty(book, slots_S, num_rows), book.tap_ring_SWC
        taps_TC = ring.new_empty(len(slots_S) * num_rows, ring.shape[2])
        num_pages = rows.full_SP.shape[1]
        kernel: Any = _unseen
        kernel[_grid(len(slots_S), max(num_pages, ring.shape[2]))](
            book, slots_S, *rows, taps_TC, book.tokens_SN.shape[1], num_pages, ring.shape[1], ring.shape[2], num_rows,
            SHIFT=shift, ROWS=triton.next_power_of_2(num_rows),
        )  # fmt: skip
        return rows, taps_TC

    def chain(self, book: Book, slots_S: Tensor, num_drafts: int) -> Chain:
        num_seqs, num_pages = len(slots_S), book.full_SP.shape[1]
        stride = -(-num_seqs // 16) * 16  # so that each step's are aligned as a tensor of its own is
        chain = Chain(
            torch.empty_like(slots_S),
            slots_S.new_empty(num_drafts, stride)[:, :num_seqs],
            slots_S.new_empty(num_drafts, stride, dtype=torch.bool)[:, :num_seqs],
            *(slots_S.new_empty(num_seqs, num_pages) for _ in range(2)),
        )
        kernel: Any = _chain
        kernel[_grid(num_seqs, num_pages)](
            book, slots_S, *chain, num_pages, stride, num_drafts, STEPS=triton.next_power_of_2(num_drafts)
        )
        return chain


def _empty(book: Book, slots_S: Tensor, num_rows: int, live_T: Tensor | None = None) -> SequenceRows:
    num_seqs, num_pages = len(slots_S), book.full_SP.shape[1]
    if live_T is None:
        live_T = slots_S.new_empty(num_seqs * num_rows, dtype=torch.bool)
    tokens_SR, positions_SR = (slots_S.new_empty(num_seqs, num_rows) for _ in range(2))
    tables = (slots_S.new_empty(num_seqs, num_pages) for _ in range(2))
    return SequenceRows(tokens_SR, positions_SR, live_T.view(num_seqs, num_rows), *tables)
