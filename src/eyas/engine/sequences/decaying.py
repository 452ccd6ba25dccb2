"""Decaying counts of outcomes by kind: the newest weigh most. Many outcomes at once count as one after the other."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["add_outcomes"]

Floats = NDArray[np.float64]


def add_outcomes(
    hits: Floats, tries: Floats, kinds: NDArray[np.int64], is_right: NDArray[np.bool_], keep: float
) -> None:
    """Add outcomes in their order to `hits` and `tries` by kind, which fade by `keep` with each outcome of a kind."""
    counts = np.bincount(kinds, minlength=len(hits))
    order = kinds.argsort(kind="stable")
    place = np.empty(len(kinds), dtype=np.int64)  # among the outcomes of a kind
    place[order] = np.arange(len(kinds)) - (counts.cumsum() - counts)[kinds[order]]
    weights = keep ** (counts[kinds] - 1 - place)
    for sums, added in ((hits, weights * is_right), (tries, weights)):
        sums *= keep**counts
        sums += np.bincount(kinds, added, minlength=len(hits))
