"""Top-k, top-p and min-p without sorting: the programs of a row test one candidate after the other, inside one launch.

All three filters drop a token together with all that rank below it. So the token with the highest perturbed score is
tested first; if it is dropped, the next candidate is the best of those that rank before it. A candidate falls among the
dropped tokens as often as their share of the mass says, so one or two tests nearly always do, and about ln V at worst.
Testing by rejection is FlashInfer's idea (its sorting-free sampling kernels); as the noise here belongs to the ids, the
result is the argmax over the tokens that are kept, however many tests it takes.

For a test every program adds up what ranks before the candidate in its chunk, publishes that and its next candidate,
waits for the other programs of the row, and adds up all chunks in order: all come to the same end. The chunks stay in
registers. The rule is that of `kernels.reference.rounds.sample.filter_scores`, ties included; sums are fp32, in an
order that depends on the size of the vocabulary alone. All programs of a row must fit the device at once.
"""

from __future__ import annotations

import triton
import triton.language as tl

from eyas.kernels.triton.rounds.order import LOWEST, key_of, pack, packed_id, score_of

__all__ = ["BINS", "SHARED", "choose", "meet"]

SHARED = 4  # fp32 numbers that a program publishes at a time
BINS = 32  # or counts
_SHARED = tl.constexpr(SHARED)
_BINS = tl.constexpr(BINS)
_WAYS = tl.constexpr(16)
_BEHIND = tl.constexpr(-3e38)  # instead of -inf, so that differences are numbers


@triton.jit
def meet(arrived_ptr, round, CHUNKS: tl.constexpr):
    """Wait until all programs of a count have published. Rounds have two buffers: no program is two rounds ahead."""
    tl.debug_barrier()
    count = tl.atomic_add(arrived_ptr, 1, sem="acq_rel") + 1
    while count < (round + 1) * CHUNKS:
        count = tl.atomic_add(arrived_ptr, 0, sem="acquire")


@triton.jit
def _by_distance(number, peak):
    """Key 1..15 of 16 parts at growing distances from the peak."""
    steps = number - _WAYS
    return key_of(peak - steps * steps * 0.125)


@triton.jit
def _floor_of_top_k(
    scores, top_k, chunk, arrived_ptr, numbers_ptr, counts_ptr, CHUNKS: tl.constexpr, PADDED: tl.constexpr
):
    """The score that the top k and their ties reach and no other token does, and the number of rounds it took.

    Counts by parts of an interval of keys, then of one of the parts, until all that is from a part on is the top k.
    """
    chunks, bins = tl.arange(0, PADDED), tl.arange(0, _BINS)
    tl.store(numbers_ptr + chunk * _SHARED, tl.max(scores))
    meet(arrived_ptr, 0, CHUNKS)
    peaks = tl.load(numbers_ptr + chunks * _SHARED, mask=chunks < CHUNKS, other=float("-inf"), cache_modifier=".cg")
    peak = tl.max(peaks)
    keys = key_of(scores + 0.0)  # -0 counts as +0
    round = 1
    lo = key_of(tl.full((), float("-inf"), tl.float32)).to(tl.int64)
    hi = key_of(peak + 0.0).to(tl.int64) + 1
    above = 0  # tokens from hi on
    held = 0  # tokens from lo on
    while (hi - lo > 1) & (held != top_k):
        shift = 0
        part = tl.zeros(keys.shape, tl.int32)
        if round == 1:
            number = 1
            while number < _WAYS:
                part += (keys >= _by_distance(number, peak)).to(tl.int32)
                number += 1
        else:
            length = (hi - 1 - lo).to(tl.float32).to(tl.int32, bitcast=True)  # its exponent is that of the length
            shift = tl.maximum((length >> 23) - 131, 0)
            part = ((keys.to(tl.int64) - lo).to(tl.uint32) >> shift.to(tl.uint32)).to(tl.int32)
        own = tl.histogram(part, _BINS, mask=(keys >= lo) & (keys < hi))
        table_ptr = counts_ptr + (round % 2) * (CHUNKS * _BINS)
        tl.store(table_ptr + chunk * _BINS + bins, own)
        meet(arrived_ptr, round, CHUNKS)
        table = tl.load(
            table_ptr + chunks[:, None] * _BINS + bins[None, :],
            mask=(chunks[:, None] < CHUNKS) & (bins[None, :] >= 0),
            other=0,
            cache_modifier=".cg",
        )
        counts = tl.sum(table, axis=0)
        reach = above + tl.cumsum(counts, axis=0, reverse=True)
        best = tl.sum(((bins > 0) & (reach >= top_k)).to(tl.int32))
        held = tl.sum(tl.where(bins == best, reach, 0))
        above = held - tl.sum(tl.where(bins == best, counts, 0))
        if round == 1:
            hi = tl.where(best + 1 < _WAYS, _by_distance(best + 1, peak).to(tl.int64), hi)
            lo = tl.where(best > 0, _by_distance(best, peak).to(tl.int64), lo)
        else:
            lo += best.to(tl.int64) << shift
            hi = tl.minimum(hi, lo + (tl.full((), 1, tl.int64) << shift))
        round += 1
    return score_of(lo), round


@triton.jit
def choose(
    scores,
    perturbed,
    ids,
    top_k,
    top_p,
    min_p,
    size,
    chunk,
    arrived_ptr,
    numbers_ptr,
    bests_ptr,
    counts_ptr,
    CHUNKS: tl.constexpr,
    PADDED: tl.constexpr,
):
    """The token with the highest perturbed score among those of the row that are kept, and the number of rounds.

    `top_k` is int64; 0, or `size` and above, is off. `top_p` 1 and `min_p` 0 are off. Scores past the end of the
    vocabulary, which has `size` tokens, are -inf.
    """
    chunks = tl.arange(0, PADDED)
    known = chunks < CHUNKS
    by_count = (top_k > 0) & (top_k < size)
    round = 0
    if by_count & (top_p < 1):  # top-p is of what top-k leaves
        floor, round = _floor_of_top_k(scores, top_k, chunk, arrived_ptr, numbers_ptr, counts_ptr, CHUNKS, PADDED)
        scores = tl.where(scores >= floor, scores, float("-inf"))
        by_count = False
    local_peak = tl.maximum(tl.max(scores), _BEHIND)
    weights = tl.exp(scores - local_peak)
    limit = tl.where(by_count, top_k.to(tl.float32), float("inf"))
    peak = local_peak
    candidate = size  # past all tokens: its test finds the first candidate
    score = float("-inf")
    first = True
    searching = True
    while searching:
        before = (scores > score) | ((scores == score) & (ids < candidate))
        counted = tl.where(by_count & (first == 0), (scores > score).to(tl.float32), tl.where(before, weights, 0.0))
        next_best = tl.max(tl.where(before, pack(perturbed, ids), LOWEST))
        round_ptr = numbers_ptr + (round % 2) * (CHUNKS * _SHARED)
        round_bests_ptr = bests_ptr + (round % 2) * CHUNKS
        tl.store(round_ptr + chunk * _SHARED, tl.sum(counted))
        tl.store(round_ptr + chunk * _SHARED + 1, local_peak)
        tl.store(
            round_ptr + chunk * _SHARED + 2,
            tl.max(tl.where(ids == packed_id(next_best), scores, float("-inf"))),
        )
        tl.store(round_bests_ptr + chunk, next_best)
        meet(arrived_ptr, round, CHUNKS)
        round += 1
        sums = tl.load(round_ptr + chunks * _SHARED, mask=known, other=0.0, cache_modifier=".cg")
        peaks = tl.load(round_ptr + chunks * _SHARED + 1, mask=known, other=_BEHIND, cache_modifier=".cg")
        found = tl.load(round_ptr + chunks * _SHARED + 2, mask=known, other=0.0, cache_modifier=".cg")
        bests = tl.load(round_bests_ptr + chunks, mask=known, other=LOWEST, cache_modifier=".cg")
        peak = tl.max(peaks)
        ahead = tl.sum(tl.where(by_count & (first == 0), sums, sums * tl.exp(peaks - peak)))
        kept = ((ahead < limit) | (ahead == 0)) & (tl.exp(score - peak) >= min_p)
        limit = tl.where(first & (top_p < 1), top_p * ahead, limit)
        best = tl.max(bests)
        searching = (first | (kept == 0)) & (best != LOWEST)
        if searching:
            candidate = packed_id(best)
            score = tl.max(tl.where(bests == best, found, float("-inf")))
        first = False
    return candidate, round
