"""Cost of a round in seconds, by sequences, verified rows and head passes: fitted, then corrected.

The fit to start-up timings has terms for the bytes read: a fixed part, the experts that n rows read (uniform routing,
E (1 - (1 - k/E)^n) of E), a part per row, a part per head pass. The residual at a measured point is kept as a factor,
and later rounds correct it further. Tables are monotone whatever was measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eyas.engine.draft_length.round_limit import most_drafts

__all__ = ["HeadWork", "RoundCosts", "Timing", "chain_work"]

Floats = NDArray[np.float64]
Numbers = int | NDArray[Any]
Cell = tuple[int, int, int]  # sequences, as a power of two; head passes; draft rows per sequence

# Shares of a round of one sequence without drafts: fixed, experts, a row; a head pass, a sequence in a head pass.
GUESS = (0.6, 0.38, 0.02, 0.1, 0.01)
TRUST_IN_GUESS = 0.01  # a part of twice its guess weighs as much as a timing that is 1 % off
FIT_REACH = 0.02  # weight of a timing one cell away against one in the cell, for residuals of the fit
LIVE_REACH = 0.05  # and for corrections by later rounds
MEMORY = 32.0  # most timings of a cell that count
FADE = 512.0  # rounds in which the weight of an untimed cell falls by a factor e
REFRESH = 8  # rounds between two updates of a table
CLIP = 3.0  # usual deviations at which a slow round is clipped; no round is fast by accident


class Timing(NamedTuple):
    """The time of a round that verified `num_rows` rows, last tokens included, with `head_drafts` a sequence.

    Where the step read prompts too, their time is part of it.
    """

    num_sequences: int
    num_rows: int
    head_drafts: int
    seconds: float
    num_prompt_rows: int = 0


class HeadWork(NamedTuple):
    """Head passes, and the rows of one sequence in all of them together."""

    passes: int
    rows: int


def chain_work(num_drafts: int) -> HeadWork:
    """Return the work of a chain: one head pass of one row for each draft."""
    return HeadWork(num_drafts, num_drafts)


class RoundCosts:
    """Seconds by sequences, verified rows, and the passes and rows of the head that the drafts take."""

    def __init__(
        self,
        max_drafts: int,
        *,
        max_rows: int | None = None,
        expert_share: float = 4 / 128,
        work: Callable[[int], HeadWork] = chain_work,
    ) -> None:
        """`expert_share` is the part of a layer's experts that one token reads, `work` the head's work for K drafts.

        No round has more than `max_rows` rows.
        """
        self.max_drafts = max_drafts
        self.max_rows = max_rows
        self.expert_share = expert_share
        self._passes_K, self._head_rows_K = np.array([work(k) for k in range(max_drafts + 1)]).T
        self._parts = np.array(GUESS)
        self._missed, self._live = self._factors(FIT_REACH), self._factors(LIVE_REACH)
        self._tables: dict[int, Floats] = {}
        self._round = 0
        self._deviation = 0.05  # usual deviation of a timing from its expectation, of the logarithm
        self.is_measured = False

    def learn(self, timings: Iterable[Timing]) -> None:
        """Refit from start-up timings, which should be medians of a few rounds each."""
        timings = list(timings)
        if not timings:
            return
        sequences, rows, head_drafts = np.array([timing[:3] for timing in timings]).T
        columns = self._columns(sequences, rows, head_drafts)
        self._parts = _fit(columns, np.array([timing.seconds for timing in timings]))
        self._missed, self._live = self._factors(FIT_REACH), self._factors(LIVE_REACH)
        for timing, expected in zip(timings, (columns @ self._parts).tolist(), strict=True):
            miss = math.log(timing.seconds / expected)
            cell = self._cell(*timing[:3])
            self._missed.log[cell], self._missed.weight[cell] = miss, 1.0
        self._tables.clear()
        self.is_measured = True

    @property
    def knows_scale(self) -> bool:
        """Whether any round was timed."""
        return self.is_measured or bool(self._live.weight.any())

    def expected(self, timing: Timing) -> float:
        """Return the expected seconds of the round of a timing."""
        return float(self.table(timing.num_sequences)[timing.head_drafts, timing.num_rows - timing.num_sequences])

    def observe(self, timing: Timing, beside_s: float = 0.0) -> None:
        """Correct the costs by the time of a round. One slow round changes little.

        `beside_s` are the expected seconds of other work in the same step. The noise of a step is a share of all its
        time, so the smaller the round's part, the less it says of the round.
        """
        self._round += 1
        live, cell, expected = self._live, self._cell(*timing[:3]), self.expected(timing)
        before = live.log[cell] if live.weight[cell] else live.near(cell, self._round)
        share, surprise = expected / (expected + beside_s), math.log(timing.seconds / (expected + beside_s))
        if self.knows_scale:
            bound = CLIP * self._deviation
            self._deviation += (min(abs(surprise), bound + 0.01) - self._deviation) / 16
            surprise = min(surprise, bound) if share == 1 else min(max(surprise, -bound), bound)
            prior = 0.0 if live.weight[cell] else 1.0  # what is near counts as one timing
            weight = min(live.faded(cell, self._round), MEMORY - share**2) + share**2 + prior
        else:
            weight = 1.0  # the very first timing sets the scale
        live.log[cell] = before + surprise * share / weight  # of surprise / share, its information: share ** 2
        live.weight[cell], live.last[cell] = weight, self._round
        if weight < REFRESH or self._round % REFRESH == 0:
            self._tables.clear()

    def age(self, num_sequences: int, num_rows: int, head_drafts: int) -> int:
        """Return the number of rounds since such a round was timed."""
        return int(self._round - self._live.last[self._cell(num_sequences, num_rows, head_drafts)])

    def table(self, num_sequences: int) -> Floats:
        """Return seconds [head drafts, draft rows], which never fall along either axis, as far as rounds may go."""
        found = self._tables.get(num_sequences)
        if found is None:
            found = self._tables[num_sequences] = self._make(num_sequences)
        return found

    def _make(self, num_sequences: int) -> Floats:
        most = most_drafts(num_sequences, self.max_drafts, self.max_rows)
        numbers, drafts = np.arange(most + 1), np.arange(num_sequences * most + 1)
        # The columns of heads do not depend on the rows, nor those of rows on the heads.
        of_rows = self._columns(num_sequences, num_sequences + drafts, 0) @ self._parts
        of_heads = self._columns(num_sequences, 0, numbers) @ self._parts
        seconds = of_rows + (of_heads - of_heads[0])[:, None]
        bucket = _bucket(num_sequences)
        logs = (self._missed.of(bucket, self._round) + self._live.of(bucket, self._round))[self._passes_K[numbers]]
        between = np.arange(num_sequences) / num_sequences
        below, above = logs[:, :most, None], logs[:, 1 : most + 1, None]
        between_depths = (below * (1 - between) + above * between).reshape(most + 1, -1)
        return _monotone(seconds * np.exp(np.append(between_depths, logs[:, most : most + 1], axis=1)))

    def _columns(self, sequences: Numbers, rows: Numbers, head_drafts: Numbers) -> Floats:
        """Return [..., 5]: the factor of each part of the cost."""
        s, n, k = np.broadcast_arrays(sequences, rows, head_drafts)
        distinct = (1 - (1 - self.expert_share) ** n) / self.expert_share
        columns = (np.ones(n.shape), distinct, n, self._passes_K[k], self._head_rows_K[k] * s)
        return np.stack(columns, axis=-1).astype(float)

    def _cell(self, num_sequences: int, num_rows: int, head_drafts: int) -> Cell:
        depth = round((num_rows - num_sequences) / num_sequences)
        return _bucket(num_sequences), int(self._passes_K[head_drafts]), depth

    def _factors(self, reach: float) -> _Factors:
        return _Factors(int(self._passes_K.max()), self.max_drafts, reach)


def _fit(columns: Floats, seconds: Floats) -> Floats:
    """Return the seconds of each part: fixed, all experts, a row, a head pass, a row in a head pass.

    Minimises relative squared errors with no part below 0; a part that was not measured keeps its share of the guess.
    """
    guess = np.array(GUESS) * float(np.median(seconds / (columns @ GUESS)))
    matrix = np.concatenate((columns / seconds[:, None], TRUST_IN_GUESS * np.diag(1 / guess)))
    target = np.concatenate((np.ones(len(seconds)), np.full(len(guess), TRUST_IN_GUESS)))
    parts: Floats = np.maximum(_nonnegative_least_squares(matrix, target), 0.01 * guess)  # none is free
    return parts


def _nonnegative_least_squares(matrix: Floats, target: Floats) -> Floats:
    """Return the best solution over all subsets of columns, of which there are few."""
    best, least = np.zeros(matrix.shape[1]), float("inf")
    for size in range(1, matrix.shape[1] + 1):
        for used in map(list, combinations(range(matrix.shape[1]), size)):
            solution = np.linalg.lstsq(matrix[:, used], target)[0]
            error = float(((matrix[:, used] @ solution - target) ** 2).sum())
            if error < least and (solution >= 0).all():
                least, best = error, np.zeros_like(best)
                best[used] = solution
    return best


class _Factors:
    """Logarithms of correction factors. A cell without weight takes the mean of its neighbours, near ones first."""

    def __init__(self, max_passes: int, max_depth: int, reach: float) -> None:
        passes, depths = np.arange(max_passes + 1), np.arange(max_depth + 1)
        # Chebyshev distance of (passes, depth) pairs.
        distance = np.maximum(
            np.abs(passes[:, None] - passes)[:, None, :, None], np.abs(depths[:, None] - depths)[None, :, None, :]
        )
        self._near_cells = reach ** distance.reshape(len(passes) * len(depths), -1).astype(float)
        buckets = np.arange(12)
        self._near_buckets = reach ** np.abs(buckets[:, None] - buckets).astype(float)
        shape = (len(buckets), len(passes), len(depths))
        self.log, self.weight = np.zeros(shape), np.zeros(shape)
        self.last = np.full(shape, -(10**9))

    def faded(self, cell: Cell, now: int) -> float:
        return float(self.weight[cell]) * math.exp((int(self.last[cell]) - now) / FADE)

    def near(self, cell: Cell, now: int) -> float:
        return float(self.of(cell[0], now)[cell[1:]])

    def of(self, bucket: int, now: int) -> Floats:
        """Return the logarithms [passes, depth] of one bucket."""
        weight = self.weight * np.exp((np.maximum(self.last, now - 20 * FADE) - now) / FADE)
        over_buckets = self._near_buckets[bucket] @ np.stack((weight * self.log, weight)).reshape(2, len(weight), -1)
        total, weights = over_buckets @ self._near_cells
        means: Floats = np.divide(total, weights, out=np.zeros_like(total), where=weights > 0)
        return means.reshape(self.log.shape[1:])


def _bucket(num_sequences: int) -> int:
    return (num_sequences - 1).bit_length()


def _monotone(seconds: Floats) -> Floats:
    """Return a table that never falls along either axis: halfway between the tightest ones above and below."""
    if (seconds[1:] >= seconds[:-1]).all() and (seconds[:, 1:] >= seconds[:, :-1]).all():
        return seconds
    above = np.maximum.accumulate(np.maximum.accumulate(seconds, axis=0), axis=1)
    below = seconds[::-1, ::-1]
    below = np.minimum.accumulate(np.minimum.accumulate(below, axis=0), axis=1)[::-1, ::-1]
    return (above + below) / 2
