"""Calibrates head confidence to acceptance rate, and sets the cut-off below which a draft is not worth a row.

A head's probabilities are not calibrated: it is confident where its training text was easy. So they are sorted into
levels, and the acceptance rate of each level is counted. The device cuts a chain where the chance that all of it is
right falls below the cost of a row; `Cut` carries the threshold. Chains are cut only while the levels predict drafts
better than acceptance rates by sequence and position do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from eyas.engine.sequences.decaying import add_outcomes

__all__ = ["LEVELS", "NUM_LEVELS", "ConfidenceCurve", "Cut", "level_of"]

LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)  # edges between the levels of confidence
NUM_LEVELS = len(LEVELS) + 1
KEEP = 1 - 1 / 400  # about the last 400 drafts of a level count
GUESS_TRIES = 8.0
OWN_KEEP = 1 - 1 / 24  # and the last 24 of a sequence
OWN_GUESS_TRIES = 8.0
REFRESH = 32  # chains after which a round updates the curve
EVIDENCE_KEEP = 1 - 1 / 512  # about the last 512 drafts of all sequences judge the levels
EVIDENCE = 4.0  # nats by which levels must have predicted better than history
LEAST = 1e-3  # smallest chance that is not 0
STEP = 0.1  # rounding of the threshold's logarithm, so that the device seldom needs a new one

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Cut(NamedTuple):
    """Logarithms for each of `slots`: the least chance of a chain that is worth its last row, then the chance of a
    draft of each level."""

    slots: tuple[int, ...] = ()
    logs_SN: Floats = np.zeros((0, 1 + NUM_LEVELS))


def level_of(probability: float) -> int:
    return sum(probability > edge for edge in LEVELS)


class ConfidenceCurve:
    """Acceptance rate by level of confidence: one non-decreasing curve, scaled by the odds of each sequence.

    Shape letters: S sequences, K positions, N levels.
    """

    def __init__(self) -> None:
        edges = (0.0, *LEVELS, 1.0)
        self._centres = (np.array(edges[1:]) + np.array(edges[:-1])) / 2
        self._hits, self._tries = np.zeros(NUM_LEVELS), np.zeros(NUM_LEVELS)
        self._num_seen = self._num_refreshed = 0
        self._own = _SequenceOdds()
        self._curve = self._centres  # until drafts are seen, the head's own probabilities
        self._evidence = 0.0

    def enter(self, slot: int) -> None:
        self._own.enter(slot)

    @property
    def is_trusted(self) -> bool:
        """Whether levels predict drafts better than sequence and position do."""
        return self._evidence > EVIDENCE

    def observe(self, slots: Ints, levels_SK: Ints, num_S: Ints, accepted_S: Ints, by_history_SK: Floats) -> None:
        """Learn from the verified drafts of a round: the first `num_S` of each sequence, of which some were accepted.

        `by_history_SK` are their chances without levels. The drafts count one by one, those of a sequence in a row.
        """
        column = np.arange(levels_SK.shape[1])
        is_seen_SK = column < np.minimum(accepted_S + 1, num_S)[:, None]
        if not is_seen_SK.any():
            return
        is_right_SK, curve_SK = column < accepted_S[:, None], self._curve[levels_SK]
        by_level_SK = _scaled(curve_SK, self._own.observe(slots, curve_SK, is_right_SK, is_seen_SK.sum(1)))
        right, by_level, by_history = is_right_SK[is_seen_SK], by_level_SK[is_seen_SK], by_history_SK[is_seen_SK]
        nats = np.log(np.where(right, by_level / by_history, (1 - by_level) / (1 - by_history)))
        fading = EVIDENCE_KEEP ** np.arange(len(nats) - 1, -1, -1)
        self._evidence = self._evidence * EVIDENCE_KEEP ** len(nats) + float(nats @ fading)
        add_outcomes(self._hits, self._tries, levels_SK[is_seen_SK], right, KEEP)
        self._num_seen += int(is_seen_SK[:, 0].sum())
        if self._num_seen - self._num_refreshed >= REFRESH:
            self._num_refreshed = self._num_seen
            weights = self._tries + GUESS_TRIES
            rising = _rising((self._hits + GUESS_TRIES * self._centres) / weights, weights)
            self._curve = rising.clip(LEAST, 1 - LEAST)

    def chances(self, slots: Ints) -> Floats:
        """Return the chance [S, N] of a draft of each level."""
        return _scaled(self._curve, self._own.of(slots)[:, None])

    def cut(self, slots: Sequence[int], min_chance: float) -> Cut:
        """Return the cut of chains whose chance falls below `min_chance`; 0 cuts none."""
        if min_chance <= LEAST or not self.is_trusted:
            return Cut()
        logs = np.empty((len(slots), 1 + NUM_LEVELS))
        logs[:, 0] = round(math.log(min_chance) / STEP) * STEP
        logs[:, 1:] = np.log(self.chances(np.array(slots)))
        return Cut(tuple(slots), logs.round(2))


class _SequenceOdds:
    """The odds of each sequence's recent drafts relative to what their levels predict, by slot."""

    def __init__(self) -> None:
        self._sums_3S = np.zeros((3, 0))  # decaying sums: drafts that were right, those expected to be, all
        self._odds_S = np.ones(0)

    def enter(self, slot: int) -> None:
        self._reach(slot)
        self._sums_3S[:, slot], self._odds_S[slot] = 0.0, 1.0

    def of(self, slots: Ints) -> Floats:
        self._reach(int(slots.max()))
        return self._odds_S[slots]

    def observe(self, slots: Ints, curve_SK: Floats, is_right_SK: Bools, num_S: Ints) -> Floats:
        """Learn from the first `num_S` drafts of each sequence. Returns the odds before each of them."""
        self._reach(int(slots.max()))
        weights_KK1, kept_K1 = _weights(curve_SK.shape[1])
        added = np.stack((is_right_SK.astype(float), curve_SK, np.ones_like(curve_SK))) @ weights_KK1
        sums = self._sums_3S[:, slots, None] * kept_K1 + added
        right, expected, tries = sums[:, :, 1:]
        expected = expected / tries
        found = (right + OWN_GUESS_TRIES * expected) / (tries + OWN_GUESS_TRIES)
        odds = np.empty(sums.shape[1:])
        odds[:, 0] = self._odds_S[slots]
        odds[:, 1:] = found / (1 - found) * (1 - expected) / expected
        row = np.arange(len(slots))
        self._sums_3S[:, slots], self._odds_S[slots] = sums[:, row, num_S], odds[row, num_S]
        return odds[:, :-1]

    def _reach(self, slot: int) -> None:
        more = slot + 1 - len(self._odds_S)
        if more > 0:
            more = max(more, len(self._odds_S))
            self._sums_3S = np.pad(self._sums_3S, ((0, 0), (0, more)))
            self._odds_S = np.pad(self._odds_S, (0, more), constant_values=1.0)


@cache
def _weights(num_drafts: int) -> tuple[Floats, Floats]:
    """Return the weight of each draft, and of what was before them, after 0, 1, ... of `num_drafts` drafts."""
    kept_K1 = np.array([OWN_KEEP**count for count in range(num_drafts + 1)])
    age = np.arange(num_drafts + 1) - 1 - np.arange(num_drafts)[:, None]
    weights_KK1: Floats = np.where(age >= 0, kept_K1[age.clip(0)], 0.0)
    return weights_KK1, kept_K1


def _scaled(chances: Floats, odds: Floats) -> Floats:
    """Return the chances whose odds are those of `chances` times `odds`."""
    odds = chances / (1 - chances) * odds
    return odds / (1 + odds)


def _rising(values: Floats, weights: Floats) -> Floats:
    """Return the nearest non-decreasing values: weighted least squares, by pooling adjacent violators."""
    pools: list[list[float]] = []  # mean, weight, length
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        pools.append([value, weight, 1])
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            mean, total, length = pools.pop()
            last = pools[-1]
            last[0] = (last[0] * last[1] + mean * total) / (last[1] + total)
            last[1], last[2] = last[1] + total, last[2] + length
    return np.repeat([mean for mean, _, _ in pools], [int(length) for _, _, length in pools])
