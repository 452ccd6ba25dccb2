"""How many tokens to draft: fixed, or chosen each round from measured costs and the running acceptance, zero included.

Expected tokens of a round with K drafts are 1 + a_1 + a_1 a_2 + ... where a_i is the chance that draft i is
accepted after the ones before it. The best K has the most expected tokens per measured second; a K that has not been
timed lately is tried now and then. The choice never changes a token.
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["AutoDraftLength", "DraftLength", "FixedDraftLength"]


class DraftLength(Protocol):
    def choose(self, num_sequences: int) -> int: ...

    def observe_cost(self, num_sequences: int, num_drafts: int, seconds: float) -> None: ...

    def observe_accepted(self, num_drafts: int, num_accepted: int) -> None: ...

    def forget_acceptance(self) -> None:
        """What was accepted so far says nothing about what comes."""

    @property
    def is_calibrated(self) -> bool:
        """Whether every choice has been timed for one sequence."""


class FixedDraftLength:
    def __init__(self, num_drafts: int) -> None:
        self.num_drafts = num_drafts

    def choose(self, num_sequences: int) -> int:
        return self.num_drafts

    def observe_cost(self, num_sequences: int, num_drafts: int, seconds: float) -> None:
        pass

    def observe_accepted(self, num_drafts: int, num_accepted: int) -> None:
        pass

    def forget_acceptance(self) -> None:
        pass

    @property
    def is_calibrated(self) -> bool:
        return True


class AutoDraftLength:
    """Costs are kept per power of two of sequences; acceptance per draft position over all sequences."""

    TRIALS = 4  # timings of a K before its cost is believed
    PROBE_EVERY = 24  # rounds between trials of a K that is not the best, at first
    PROBE_SELDOM = 384  # and after trials that changed nothing, each of which doubles the distance
    MARGIN = 1.02  # a K must beat none at all by this factor, or timing noise would choose
    FIRST_GUESS = 0.6  # acceptance before any was seen
    PRIOR_TRIES = 4.0  # weight of what the position before says, in drafts
    MEMORY = 0.98  # of acceptance, per draft seen: about the last 50 count
    COST_RATE = 0.15

    def __init__(self, max_drafts: int) -> None:
        self.max_drafts = max_drafts
        self._costs: dict[int, list[float | None]] = {}
        self._trials: dict[int, list[int]] = {}
        self._last_best = 0
        self._probe_every = self.PROBE_EVERY
        self._until_probe = self.PROBE_EVERY
        self._num_probes = 0
        self.forget_acceptance()

    def forget_acceptance(self) -> None:
        self._hits, self._tries = [0.0] * self.max_drafts, [0.0] * self.max_drafts

    @property
    def is_calibrated(self) -> bool:
        _, trials = self._table(1)
        return min(trials) >= self.TRIALS

    @staticmethod
    def _bucket(num_sequences: int) -> int:
        return max(0, num_sequences - 1).bit_length()

    def _table(self, num_sequences: int) -> tuple[list[float | None], list[int]]:
        bucket, size = self._bucket(num_sequences), self.max_drafts + 1
        return self._costs.setdefault(bucket, [None] * size), self._trials.setdefault(bucket, [0] * size)

    def choose(self, num_sequences: int) -> int:
        _, trials = self._table(num_sequences)
        untried = [k for k in range(self.max_drafts, -1, -1) if trials[k] < self.TRIALS]
        if untried:
            return untried[0]
        best = self.best(num_sequences)
        if best != self._last_best:
            self._last_best, self._probe_every = best, self.PROBE_EVERY
        self._until_probe -= 1
        if self._until_probe > 0:
            return best
        # The neighbours, in turn: costs and acceptance drift, and K = 0 learns nothing of acceptance.
        neighbours = [k for k in (best + 1, best - 1, 0) if 0 <= k <= self.max_drafts and k != best]
        self._num_probes += 1
        self._until_probe = self._probe_every
        self._probe_every = min(2 * self._probe_every, self.PROBE_SELDOM)
        return neighbours[self._num_probes % len(neighbours)]

    def best(self, num_sequences: int) -> int:
        """The K with the most expected tokens per second among those timed."""
        costs, _ = self._table(num_sequences)
        goodput, expected, reach = [], 1.0, 1.0
        for cost, accept in zip(costs, (*self.acceptance(), 0.0), strict=True):
            goodput.append(0.0 if cost is None else expected / cost)
            reach *= accept
            expected += reach
        best = max(range(len(goodput)), key=goodput.__getitem__)
        return best if goodput[best] > goodput[0] * self.MARGIN else 0

    def acceptance(self) -> list[float]:
        """a_1, a_2, ...; where little was seen a position is taken to be like the one before it."""
        estimates, before = [], self.FIRST_GUESS
        for hits, tries in zip(self._hits, self._tries, strict=True):
            before = (hits + self.PRIOR_TRIES * before) / (tries + self.PRIOR_TRIES)
            estimates.append(before)
        return estimates

    def observe_cost(self, num_sequences: int, num_drafts: int, seconds: float) -> None:
        costs, trials = self._table(num_sequences)
        trials[num_drafts] += 1
        old = costs[num_drafts]
        # The first timing of a shape pays for allocations; forget it.
        if old is None or trials[num_drafts] == 2:
            costs[num_drafts] = seconds
        else:
            costs[num_drafts] = old + self.COST_RATE * (min(seconds, 3 * old) - old)

    def observe_accepted(self, num_drafts: int, num_accepted: int) -> None:
        for position in range(min(num_accepted + 1, num_drafts)):
            self._hits[position] = self._hits[position] * self.MEMORY + (position < num_accepted)
            self._tries[position] = self._tries[position] * self.MEMORY + 1
