"""Estimates, from recent drafts, how many head passes pay when low-confidence drafts are dropped.

A head pass costs time whether its drafts are verified or not, a row only if they are. With a cut, more passes can pay
than the mean acceptance suggests: chains that go well are long, the others cost no rows. Pure functions of numbers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from eyas.engine.draft_length.goodput import DraftChoice

__all__ = ["Chains"]

NUM_CHAINS = 64  # newest chains that count
FEWEST = 32
REFRESH = 8  # chains after which a round updates the means
THRESHOLDS = np.array([0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8])

Floats = NDArray[np.float64]


class Chains:
    """The newest chains. Shape letters: C chains, K positions, T thresholds."""

    def __init__(self, max_drafts: int) -> None:
        self._max_drafts = max_drafts
        self._chances_CK = np.zeros((NUM_CHAINS, max_drafts))
        self._num_seen = self._num_refreshed = self._num_rounds = 0
        self._means_TK: tuple[Floats, Floats] | None = None  # accepted and verified drafts up to a position

    def add(self, chances_CK: Floats, num_C: NDArray[np.int64]) -> None:
        """Add the chains of a round: the chance of each draft if those before it are right.

        Each has `num_C` drafts, at least 1; those not drawn count as the last. Of more chains than are kept every
        second, third, ... is taken, each round others.
        """
        stride = -(-len(num_C) // NUM_CHAINS)
        taken = slice(self._num_rounds % stride, None, stride)
        chances_CK, num_C = chances_CK[taken], num_C[taken]
        column = np.minimum(np.arange(self._max_drafts), num_C[:, None] - 1)
        places = (self._num_seen + np.arange(len(num_C))) % NUM_CHAINS
        self._chances_CK[places] = np.take_along_axis(chances_CK, column, axis=1)
        self._num_seen, self._num_rounds = self._num_seen + len(num_C), self._num_rounds + 1
        if self._num_seen - self._num_refreshed >= REFRESH:
            self._num_refreshed = self._num_seen
            survival_CK = self._chances_CK[: self._num_seen].cumprod(1)
            kept_TCK = survival_CK >= THRESHOLDS[:, None, None]
            self._means_TK = (survival_CK * kept_TCK).mean(1).cumsum(1), kept_TCK.mean(1).cumsum(1)

    def best_choice(self, seconds: Floats, caps: NDArray[np.int64]) -> DraftChoice | None:
        """Return the draft length, the same for all, and the threshold with the most tokens per second.

        While few chains are known it is None. `seconds` and `caps` are those of `goodput.best_choice`.
        """
        if self._means_TK is None or self._num_seen < FEWEST:
            return None
        num_sequences, all_rows = len(caps), np.arange(seconds.shape[1])
        right_TK, verified_TK = (num_sequences * means for means in self._means_TK)
        lengths = range(1, min(len(seconds) - 1, int(caps.max())) + 1)
        columns = [np.interp(verified_TK[:, length - 1], all_rows, seconds[length]) for length in lengths]
        if not columns:
            return None
        seconds_TK, tokens_TK = np.stack(columns, axis=1), num_sequences + right_TK[:, : len(columns)]
        t, k = np.unravel_index(int((tokens_TK / seconds_TK).argmax()), seconds_TK.shape)
        return DraftChoice(
            tuple(np.minimum(k + 1, caps).tolist()),
            int(k) + 1,
            (False,) * num_sequences,
            float(tokens_TK[t, k]),
            float(seconds_TK[t, k]),
            float(THRESHOLDS[t]),
        )
