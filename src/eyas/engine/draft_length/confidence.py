"""Calibrates head confidence to acceptance rate, and sets the cut-off below which a draft is not worth a row.

A head's probabilities are not calibrated: it is confident where its training text was easy. So they are sorted into
levels, and the acceptance rate of each level is counted. The device cuts a chain where the chance that all of it is
right falls below the cost of a row; `Cut` carries the threshold. Chains are cut only while the levels predict drafts
better than acceptance rates by sequence and position do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["LEVELS", "NUM_LEVELS", "ConfidenceCurve", "Cut", "level_of"]

LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)  # edges between the levels of confidence
NUM_LEVELS = len(LEVELS) + 1
KEEP = 1 - 1 / 400  # about the last 400 drafts of a level count
GUESS_TRIES = 8.0
OWN_KEEP = 1 - 1 / 24  # and the last 24 of a sequence
OWN_GUESS_TRIES = 8.0
REFRESH = 32  # chains between two updates of the curve
EVIDENCE_KEEP = 1 - 1 / 512  # about the last 512 drafts of all sequences judge the levels
EVIDENCE = 4.0  # nats by which levels must have predicted better than history
LEAST = 1e-3  # smallest chance that is not 0
STEP = 0.1  # rounding of the threshold's logarithm, so that the device seldom needs a new one

Floats = NDArray[np.float64]


class Cut(NamedTuple):
    """Logarithms for each of `slots`: the least chance of a chain that is worth its last row, then the chance of a
    draft of each level."""

    slots: tuple[int, ...] = ()
    logs_SN: Floats = np.zeros((0, 1 + NUM_LEVELS))


def level_of(probability: float) -> int:
    return sum(probability > edge for edge in LEVELS)


class ConfidenceCurve:
    """Acceptance rate by level of confidence: one non-decreasing curve, scaled by the odds of each sequence."""

    def __init__(self) -> None:
        edges = (0.0, *LEVELS, 1.0)
        self._centres = (np.array(edges[1:]) + np.array(edges[:-1])) / 2
        self._hits, self._tries = np.zeros(NUM_LEVELS), np.zeros(NUM_LEVELS)
        self._num_seen = 0
        self._own: dict[int, _SequenceOdds] = {}
        self._curve = self._centres  # until drafts are seen, the head's own probabilities
        self._evidence = 0.0

    def enter(self, slot: int) -> None:
        self._own[slot] = _SequenceOdds()

    @property
    def is_trusted(self) -> bool:
        """Whether levels predict drafts better than sequence and position do."""
        return self._evidence > EVIDENCE

    def observe(self, slot: int, levels: Sequence[int], num_accepted: int, by_history: Sequence[float]) -> None:
        """Learn from one sequence's verified drafts, in order; `by_history` are their chances without levels."""
        own = self._own.setdefault(slot, _SequenceOdds())
        for position, level in enumerate(levels[: num_accepted + 1]):
            is_right, by_level = position < num_accepted, float(own.adjusted(self._curve[level]))
            ratio = by_level / by_history[position] if is_right else (1 - by_level) / (1 - by_history[position])
            self._evidence = self._evidence * EVIDENCE_KEEP + math.log(ratio)
            self._hits[level] = self._hits[level] * KEEP + is_right
            self._tries[level] = self._tries[level] * KEEP + 1
            own.observe(float(self._curve[level]), is_right)
        self._num_seen += 1
        if self._num_seen % REFRESH == 0:
            weights = self._tries + GUESS_TRIES
            rising = _rising((self._hits + GUESS_TRIES * self._centres) / weights, weights)
            self._curve = rising.clip(LEAST, 1 - LEAST)

    def chances(self, slot: int) -> Floats:
        """Return the chance of a draft of each level."""
        return self._own.setdefault(slot, _SequenceOdds()).adjusted(self._curve)

    def cut(self, slots: Sequence[int], min_chance: float) -> Cut:
        """Return the cut of chains whose chance falls below `min_chance`; 0 cuts none."""
        if min_chance <= LEAST or not self.is_trusted:
            return Cut()
        logs = np.empty((len(slots), 1 + NUM_LEVELS))
        logs[:, 0] = round(math.log(min_chance) / STEP) * STEP
        for row, slot in enumerate(slots):
            logs[row, 1:] = np.log(self.chances(slot))
        return Cut(tuple(slots), logs.round(2))


class _SequenceOdds:
    """The odds of one sequence's recent drafts relative to what their levels predict."""

    def __init__(self) -> None:
        self._hits = self._expected = self._tries = 0.0
        self.odds = 1.0

    def adjusted(self, chances: Floats) -> Floats:
        odds = chances / (1 - chances) * self.odds
        return odds / (1 + odds)

    def observe(self, chance: float, is_right: bool) -> None:
        self._hits = self._hits * OWN_KEEP + is_right
        self._expected = self._expected * OWN_KEEP + chance
        self._tries = self._tries * OWN_KEEP + 1
        expected = self._expected / self._tries
        found = (self._hits + OWN_GUESS_TRIES * expected) / (self._tries + OWN_GUESS_TRIES)
        self.odds = found / (1 - found) * (1 - expected) / expected


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
