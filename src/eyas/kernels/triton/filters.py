"""Top-k, top-p and min-p without sorting: the programs of a row narrow the cut together, inside one launch.

A row's chunks stay in registers. In each round every program publishes what its chunk weighs above 15 pivots, waits for
the others, and adds up all chunks in order, so all find the same narrower interval. A round divides the interval by 16;
most rows need four to seven. Programs wait for one another: all chunks of a row must fit the device at once.

The rule is that of `kernels.sample.filter_scores`, ties included. Weights are fp32, added in an order that depends on
the size of the vocabulary alone.
"""

from __future__ import annotations

import triton
import triton.language as tl

from eyas.kernels.triton.order import key_of, score_of

__all__ = ["SHARED", "filter_chunk"]

SHARED = 16  # numbers that a program publishes in a round: a total, and the weight above each pivot
_SHARED = tl.constexpr(SHARED)


@triton.jit
def meet(arrived_ptr, shared_ptr, round, CHUNKS: tl.constexpr, PADDED: tl.constexpr):
    """Wait until all programs of the row have published; what they have, fp32 [PADDED, SHARED], 0 in the padding."""
    tl.debug_barrier()
    count = tl.atomic_add(arrived_ptr, 1, sem="acq_rel") + 1
    while count < (round + 1) * CHUNKS:
        count = tl.atomic_add(arrived_ptr, 0, sem="acquire")
    chunks, columns = tl.arange(0, PADDED)[:, None], tl.arange(0, _SHARED)[None, :]
    # Two buffers: who is a round ahead cannot be two ahead.
    table = shared_ptr + (round % 2) * (CHUNKS * _SHARED) + chunks * _SHARED + columns
    return tl.load(table, mask=(chunks < CHUNKS) & (columns >= 0), other=0.0, cache_modifier=".cg")


@triton.jit
def _pivot(number, lo, hi, peak, first_round):
    """Pivot 1..15 as a key: score distances from the peak in the first round, then equal parts of the interval."""
    steps = (number - _SHARED).to(tl.float32)
    by_score = tl.maximum(key_of(peak - steps * steps * 0.125).to(tl.int64), lo)
    return tl.where(first_round, by_score, lo + (hi - lo) * number // _SHARED)


@triton.jit
def _cut(
    scores,
    weights,
    lo,
    peak,
    wanted,
    share,
    chunk,
    arrived_ptr,
    shared_ptr,
    round,
    CHUNKS: tl.constexpr,
    PADDED: tl.constexpr,
):
    """The interval [lo, hi) of keys with the largest score t such that the scores >= t weigh at least the target.

    The target is `wanted`, or the part `share` of the weight of all scores above `lo`. Also returned: the target, the
    weight of the scores >= hi, the number of scores of the interval as of one round before, and the next round.
    """
    columns = tl.arange(0, _SHARED)
    hi = key_of(peak).to(tl.int64) + 1
    target = wanted
    above = 0.0
    inside = 2.0
    first_round = True
    while first_round | ((hi - lo > 1) & (inside != 1.0)):
        below_hi = scores < score_of(hi)
        mine = shared_ptr + (round % 2) * (CHUNKS * _SHARED) + chunk * _SHARED
        in_interval = (scores >= score_of(lo)) & below_hi
        tl.store(mine, tl.sum(tl.where(in_interval, tl.where(first_round, weights, 1.0), 0.0)))
        number = 1
        while number < _SHARED:
            pivot = score_of(_pivot(number, lo, hi, peak, first_round))
            tl.store(mine + number, tl.sum(tl.where((scores >= pivot) & below_hi, weights, 0.0)))
            number += 1
        sums = tl.sum(meet(arrived_ptr, shared_ptr, round, CHUNKS, PADDED), axis=0)
        round += 1
        first = tl.sum(tl.where(columns == 0, sums, 0.0))
        target = tl.where(first_round & (share < 1.0), share * first, target)
        inside = tl.where(first_round, inside, first)
        best = tl.sum(((columns > 0) & (above + sums >= target)).to(tl.int32))
        above += tl.sum(tl.where(columns == best + 1, sums, 0.0))
        next_hi = tl.where(best + 1 < _SHARED, _pivot(best + 1, lo, hi, peak, first_round), hi)
        lo = tl.where(best > 0, _pivot(best, lo, hi, peak, first_round), lo)
        hi = next_hi
        first_round = False
    return lo, hi, target, above, inside, round


@triton.jit
def filter_chunk(
    scores, top_k, top_p, min_p, chunk, arrived_ptr, shared_ptr, size, CHUNKS: tl.constexpr, PADDED: tl.constexpr
):
    """One chunk's scores with -inf where the row's filters drop a token, and the number of rounds it took.

    `top_k` is int64 and 0 or `size` and above is off; `top_p` 1 and `min_p` 0 are off. Scores behind the end of the
    vocabulary are -inf.
    """
    chunks, columns = tl.arange(0, PADDED)[:, None], tl.arange(0, _SHARED)[None, :]
    published = (chunks < CHUNKS) & (columns == 0)
    tl.store(shared_ptr + chunk * _SHARED, tl.max(scores))
    table = meet(arrived_ptr, shared_ptr, 0, CHUNKS, PADDED)
    round = 1
    peak = tl.max(tl.max(tl.where(published, table, float("-inf")), axis=1), axis=0)
    weights = tl.exp(scores - peak)
    lo = key_of(tl.full((), float("-inf"), tl.float32)).to(tl.int64)
    hi = lo
    target = 0.0
    above = 0.0
    inside = 1.0
    by_count = (top_k > 0) & (top_k < size)
    phase = tl.where(by_count, 0, 1)
    while phase < tl.where(top_p < 1, 2, 1):  # one copy of the code for both: top-k in phase 0, top-p in phase 1
        counted = tl.where(phase == 0, 1.0, weights)
        wanted = tl.where(phase == 0, top_k, 0).to(tl.float32)
        share = tl.where(phase == 0, 1.0, top_p)
        lo, hi, target, above, inside, round = _cut(
            scores, counted, lo, peak, wanted, share, chunk, arrived_ptr, shared_ptr, round, CHUNKS, PADDED
        )
        phase += 1
    kept = scores >= score_of(lo)
    if (top_p < 1) & (inside != 1.0):  # one value is left in the interval, but several ids may have it
        tied = kept & (scores < score_of(hi))
        mine = shared_ptr + (round % 2) * (CHUNKS * _SHARED) + chunk * _SHARED
        tl.store(mine, tl.sum(tied.to(tl.float32)))
        table = meet(arrived_ptr, shared_ptr, round, CHUNKS, PADDED)
        round += 1
        before = tl.sum(tl.sum(tl.where(published & (chunks < chunk), table, 0.0), axis=1), axis=0)
        rank = before + tl.cumsum(tied.to(tl.float32)) - 1.0
        room = tl.maximum((target - above) / tl.exp(score_of(lo) - peak), 1.0)
        kept = kept & ((rank < room) | (scores >= score_of(hi)))
    kept = kept & (weights >= min_p)  # p / p_max is the weight, however much was dropped
    return tl.where(kept, scores, float("-inf")), round
