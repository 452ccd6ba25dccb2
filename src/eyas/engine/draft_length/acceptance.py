"""Estimates acceptance rates of drafts by sequence and position in the chain, from the rounds that ran.

Each sequence's own history is shrunk towards the mean of all sequences at its own level, and that mean towards the
position before and a first guess. Histories of several lengths are kept, each weighted by how well it predicted
what came (prediction with experts and fixed share: Herbster and Warmuth, "Tracking the best expert", 1998), so that the
long one steadies the estimate and the short one follows a change within a few rounds.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

__all__ = ["Acceptance"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FIRST_GUESS = 0.6
GUESS_TRIES = 4.0  # weight of the first guess, and of the position before, in drafts
MEMORIES = np.array([12.0, 256.0])  # lengths of a sequence's histories, in drafts at a position
SHARED_MEMORIES = np.array([4.0, 256.0])  # lengths of the histories of all sequences together, in rounds
SHRINK_TRIES = 32.0  # weight of the mean of all sequences, and of a sequence's level against one position, in drafts
SHARE = 0.003  # of a history's weight that moves to the others each round
CHANGED = 0.95  # trust in the short history above which the long one restarts from it
LEAST, MOST = 0.005, 0.995


class Acceptance:
    """Acceptance rates by slot; `enter` resets one for a new sequence.

    Shape letters: M histories, S sequences, K positions.
    """

    def __init__(self, max_drafts: int) -> None:
        self.max_drafts = max_drafts
        self._shared = _Histories(SHARED_MEMORIES, 1, np.full(max_drafts, FIRST_GUESS))
        self._own = _Histories(MEMORIES, 8, self._shared.chances_SK[0])
        self._column = np.arange(max_drafts)

    def enter(self, slot: int) -> None:
        if slot >= len(self._own.chances_SK):
            self._own.grow(2 * slot, self._shared.chances_SK[0])
        self._own.forget(slot, self._shared.chances_SK[0])

    def chances(self, slots_S: Ints) -> Floats:
        """Return the chance [S, K] of each draft, given that all before it were accepted."""
        return self._own.chances_SK[slots_S]

    def observe(self, slots_S: Ints, tried_S: Ints, accepted_S: Ints, unseen_S: Floats) -> None:
        """Learn from what a round tried in each sequence; drafts after the first wrong one teach nothing.

        `unseen_S`: the chance of the first draft that was not verified, where a chain was cut before it; else 0.
        """
        accepted_S1 = accepted_S[:, None]
        in_reach_SK = self._column < tried_S[:, None]
        tries_SK = ((self._column <= accepted_S1) & in_reach_SK).astype(float)
        if not tries_SK.any():
            return
        hits_SK = ((self._column < accepted_S1) & in_reach_SK).astype(float)
        if unseen_S.any():
            hits_SK += ((self._column == accepted_S1) & in_reach_SK) * unseen_S[:, None]
        hits_K, tries_K = hits_SK.sum(0, keepdims=True), tries_SK.sum(0, keepdims=True)
        self._shared.add(np.zeros(1, dtype=np.int64), hits_K, tries_K, _shared_estimates)
        shared_K = self._shared.chances_SK[0]
        self._own.add(slots_S, hits_SK, tries_SK, lambda hits, tries: _own_estimates(hits, tries, shared_K))


class _Histories:
    """Decaying sums of hits and tries, an estimate from each, and the estimates' mean, weighted by their likelihood."""

    def __init__(self, memories: Floats, num_rows: int, first_K: Floats) -> None:
        self._keep_M11 = 1 - 1 / memories[:, None, None]
        self._hits_MSK = self._tries_MSK = self._estimates_MSK = np.zeros((len(memories), 0, len(first_K)))
        self._trust_MS = np.zeros((len(memories), 0))
        self.chances_SK = np.zeros((0, len(first_K)))
        self.grow(num_rows, first_K)

    def grow(self, num_rows: int, first_K: Floats) -> None:
        num_old = len(self.chances_SK)
        more = ((0, 0), (0, num_rows - num_old), (0, 0))
        self._hits_MSK, self._tries_MSK, self._estimates_MSK = (
            np.pad(old, more) for old in (self._hits_MSK, self._tries_MSK, self._estimates_MSK)
        )
        self._trust_MS, self.chances_SK = np.pad(self._trust_MS, more[:2]), np.pad(self.chances_SK, more[1:])
        for row in range(num_old, num_rows):
            self.forget(row, first_K)

    def forget(self, row: int, first_K: Floats) -> None:
        self._hits_MSK[:, row] = self._tries_MSK[:, row] = 0
        self._trust_MS[:, row] = 1 / len(self._trust_MS)
        self._estimates_MSK[:, row] = self.chances_SK[row] = first_K

    def add(self, rows: Ints, hits_SK: Floats, tries_SK: Floats, estimates: Callable[[Floats, Floats], Floats]) -> None:
        was_tried_SK = tries_SK > 0
        old_MSK, trust_MS = self._estimates_MSK[:, rows], self._trust_MS[:, rows]
        most = int(was_tried_SK.any(0).sum())  # later positions have no likelihood
        hit_SK, missed_SK, chance_MSK = hits_SK[:, :most], (tries_SK - hits_SK)[:, :most], old_MSK[:, :, :most]
        nats_MS = (hit_SK * np.log(chance_MSK) + missed_SK * np.log(1 - chance_MSK)).sum(2)
        trust_MS = trust_MS * np.exp(nats_MS - nats_MS.max(0)) + 1e-30
        trust_MS /= trust_MS.sum(0)
        trust_MS += (1 / len(trust_MS) - trust_MS) * (SHARE * was_tried_SK[:, 0])
        keep_MSK = np.where(was_tried_SK, self._keep_M11, 1.0)
        hits_MSK = self._hits_MSK[:, rows] * keep_MSK + hits_SK
        tries_MSK = self._tries_MSK[:, rows] * keep_MSK + tries_SK
        if (trust_MS[0] > CHANGED).any():
            changed_S1 = (trust_MS[0] > CHANGED)[:, None]
            hits_MSK[1:] = np.where(changed_S1, hits_MSK[0], hits_MSK[1:])
            tries_MSK[1:] = np.where(changed_S1, tries_MSK[0], tries_MSK[1:])
            trust_MS = np.where(changed_S1.T, 1 / len(trust_MS), trust_MS)
        new_MSK = estimates(hits_MSK, tries_MSK)
        self._hits_MSK[:, rows], self._tries_MSK[:, rows] = hits_MSK, tries_MSK
        self._estimates_MSK[:, rows], self._trust_MS[:, rows] = new_MSK, trust_MS
        self.chances_SK[rows] = (new_MSK * trust_MS[:, :, None]).sum(0)


def _shared_estimates(hits_MSK: Floats, tries_MSK: Floats) -> Floats:
    """Return estimates over all sequences: a position with few drafts is drawn to the one before it."""
    estimates = []
    for hits_K, tries_K in zip(hits_MSK[:, 0].tolist(), tries_MSK[:, 0].tolist(), strict=True):
        before = FIRST_GUESS
        for hits, tries in zip(hits_K, tries_K, strict=True):
            before = (hits + GUESS_TRIES * before) / (tries + GUESS_TRIES)
            estimates.append(min(max(before, LEAST), MOST))
    return np.array(estimates).reshape(hits_MSK.shape)


def _own_estimates(hits_MSK: Floats, tries_MSK: Floats, shared_K: Floats) -> Floats:
    """Return estimates of each sequence: first its level relative to all sequences, then its drafts at a position."""
    weight_MS = tries_MSK.sum(2) + SHRINK_TRIES
    expected_MS = (tries_MSK @ shared_K + SHRINK_TRIES * shared_K[0]) / weight_MS
    level_MS = (hits_MSK.sum(2) + SHRINK_TRIES * shared_K[0]) / weight_MS
    odds_MS = level_MS * (1 - expected_MS) / ((1 - level_MS) * expected_MS)
    odds_MSK = odds_MS[:, :, None] * (shared_K / (1 - shared_K))
    estimates: Floats = (hits_MSK + SHRINK_TRIES * odds_MSK / (1 + odds_MSK)) / (tries_MSK + SHRINK_TRIES)
    return estimates.clip(LEAST, MOST)
