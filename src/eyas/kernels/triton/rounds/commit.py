"""The end of a round in one launch: accept drafts, append tokens, keep hidden states, advance lengths and budgets.

The Triton twin of `kernels.reference.rounds.accept` and of `engine.sampling.commit.commit`: one program for each
sequence, nothing for the host to wait for. Only what is committed is written.

Shape letters: S sequences or slots, R rows of a sequence, K drafts, N positions, W tap ring, C tap width, V vocabulary.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from eyas.kernels.reference.rounds.accept import NUM_NUMBERS

__all__ = ["Committed", "Ledger", "commit"]


class Ledger(NamedTuple):
    """State that a commit reads and updates, a row for each slot."""

    tokens_SN: Tensor  # int64
    length_S: Tensor  # int64
    live_S: Tensor  # bool
    remaining_S: Tensor  # int64
    stop_ids_SN: Tensor  # int64, padded with -1; read only
    output_counts_SV: Tensor | None  # int32
    tap_ring_SWC: Tensor | None


class Committed(NamedTuple):
    """Accepted tokens (`kernels.reference.rounds.accept`), and the sequences that are done; int64, views of
    `packed_SW`.

    That has them side by side, then the number of drafts, the sampled tokens, the drafts and their levels: all that a
    host reads, in the order of `engine.step.results`.
    """

    num_committed_S: Tensor
    num_accepted_S: Tensor
    stopped_S: Tensor
    ended_S: Tensor
    failed_S: Tensor
    packed_SW: Tensor


_NUMBERS = tl.constexpr(NUM_NUMBERS)


@triton.jit
def _copy_taps(taps_ptr, ring_ptr, length, count, width, W, ROWS: tl.constexpr, SIZE: tl.constexpr):
    """Copy rows 0..count - 1 of [R, width] to the ring's places of the positions from `length` on."""
    row = tl.arange(0, ROWS)[:, None]
    source, place = row * width, ((length + row) % W) * width
    start = 0
    while start < width:
        at = start + tl.arange(0, SIZE)[None, :]
        copied = (row < count) & (at < width)
        taps = tl.load(taps_ptr + source + at, mask=copied)
        tl.store(ring_ptr + place + at, taps.to(ring_ptr.dtype.element_ty), mask=copied)
        start += SIZE


@triton.jit(
    do_not_specialize=["width", "R", "K"],
    do_not_specialize_on_alignment=[
        "slots_ptr",
        "draft_ptr",
        "num_drafts_ptr",
        "sampled_ptr",
        "failed_ptr",
        "most_ptr",
        "levels_ptr",
        "out_ptr",
    ],
)
def _commit(
    slots_ptr,
    draft_ptr,
    num_drafts_ptr,
    sampled_ptr,
    failed_ptr,
    taps_ptr,
    most_ptr,
    levels_ptr,
    ledger,
    out_ptr,
    width,
    R,
    K,
    N,
    V,
    W,
    C,
    NUM_STOPS: tl.constexpr,
    STOPS: tl.constexpr,
    ROWS: tl.constexpr,
    SIZE: tl.constexpr,
):
    s = tl.program_id(0)
    slot = tl.load(slots_ptr + s)
    length, remaining = tl.load(ledger.length_S + slot), tl.load(ledger.remaining_S + slot)
    live = tl.load(ledger.live_S + slot) != 0
    column = tl.arange(0, ROWS)
    sampled = tl.load(sampled_ptr + s * R + column, mask=column < R, other=-2)
    failed = tl.load(failed_ptr + s * R + column, mask=column < R, other=0)
    num_drafts = tl.minimum(tl.load(num_drafts_ptr + s), K)
    draft = tl.load(draft_ptr + s * K + column, mask=column < K, other=-1)
    num_accepted = tl.min(tl.where((column < num_drafts) & (draft == sampled), ROWS, column))
    n = tl.arange(0, STOPS)
    stops = tl.load(ledger.stop_ids_SN + slot * NUM_STOPS + n, mask=n < NUM_STOPS, other=-1)
    is_stop = tl.max((sampled[:, None] == stops[None, :]).to(tl.int32), axis=1) > 0
    first_stop = tl.min(tl.where(is_stop, column, R))
    first_failed = tl.min(tl.where(failed != 0, column, R))
    reach = tl.minimum(tl.minimum(num_accepted, first_stop) + 1, remaining.to(tl.int32))
    if most_ptr is not None:
        reach = tl.minimum(reach, tl.load(most_ptr + s).to(tl.int32))
    reach = tl.where(live, reach, 0)
    code = tl.sum(tl.where((column == first_failed) & (column < reach), failed, 0))
    count = tl.minimum(reach, first_failed)
    stopped = live & (first_stop < count)
    left = remaining - count
    ended = live & (stopped | (left == 0) | (code != 0))

    is_new = (column < count) & (length + column < N)
    tl.store(ledger.tokens_SN + slot * N + length + column, sampled, mask=is_new)
    if ledger.output_counts_SV is not None:
        tl.atomic_add(ledger.output_counts_SV + slot * V + sampled, 1, mask=column < count, sem="relaxed")
    if taps_ptr is not None:
        taps_ptr += s.to(tl.int64) * R * C
        _copy_taps(taps_ptr, ledger.tap_ring_SWC + slot * W * C, length, count, C, W, ROWS, SIZE)
    tl.store(ledger.length_S + slot, length + count)
    tl.store(ledger.remaining_S + slot, left)
    tl.store(ledger.live_S + slot, live & (ended == 0))
    out_ptr += s * width
    tl.store(out_ptr, count.to(tl.int64))
    tl.store(out_ptr + 1, tl.minimum(num_accepted, count).to(tl.int64))
    tl.store(out_ptr + 2, stopped.to(tl.int64))
    tl.store(out_ptr + 3, ended.to(tl.int64))
    tl.store(out_ptr + 4, code)
    tl.store(out_ptr + 5, tl.load(num_drafts_ptr + s))
    tl.store(out_ptr + _NUMBERS + column, sampled, mask=column < R)
    tl.store(out_ptr + _NUMBERS + R + column, draft, mask=column < K)
    if levels_ptr is not None:
        levels = tl.load(levels_ptr + s * K + column, mask=column < K)
        tl.store(out_ptr + _NUMBERS + R + K + column, levels, mask=column < K)


def commit(
    ledger: Ledger,
    slots_S: Tensor,
    draft_SK: Tensor,
    num_drafts_S: Tensor,
    sampled_SR: Tensor,
    failed_SR: Tensor,
    taps_TC: Tensor | None = None,
    *,
    most_S: Tensor | None = None,
    levels_SK: Tensor | None = None,
    space: Tensor | None = None,
) -> Committed:
    """Compare K drafts with R = K + 1 sampled tokens, all int64, and bring `ledger` up to date.

    `taps_TC` holds the hidden states of the rows, R for each sequence. Slots of dead sequences may repeat. No more than
    `most_S` tokens are committed, which may be none. `levels_SK` int64 are of drafts that a head drew. The result lies
    in `space`, int64, if it is given.
    """
    assert draft_SK.is_contiguous() and sampled_SR.is_contiguous() and failed_SR.is_contiguous()
    assert all(part is None or part.is_contiguous() for part in (taps_TC, levels_SK))
    num_seqs, num_rows = sampled_SR.shape
    num_drafts = draft_SK.shape[1]
    width = NUM_NUMBERS + num_rows + num_drafts * (1 if levels_SK is None else 2)
    out_SW = (slots_S.new_empty(num_seqs * width) if space is None else space[: num_seqs * width]).view(-1, width)
    ring = ledger.tap_ring_SWC
    num_stops = ledger.stop_ids_SN.shape[1]
    kernel: Any = _commit
    kernel[(num_seqs,)](
        slots_S,
        draft_SK,
        num_drafts_S,
        sampled_SR,
        failed_SR,
        taps_TC,
        most_S,
        levels_SK,
        ledger,
        out_SW,
        width,
        num_rows,
        num_drafts,
        ledger.tokens_SN.shape[1],
        0 if ledger.output_counts_SV is None else ledger.output_counts_SV.shape[1],
        0 if ring is None else ring.shape[1],
        0 if ring is None else ring.shape[2],
        NUM_STOPS=num_stops,
        STOPS=triton.next_power_of_2(num_stops),
        ROWS=triton.next_power_of_2(num_rows),
        SIZE=1024,
        num_warps=8,
    )
    return Committed(*out_SW.unbind(1)[:5], out_SW)
