"""Counts of values by upper bounds, as in a Prometheus histogram."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

__all__ = ["STEP_TOKENS", "Histogram"]

STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)  # vLLM's, for the tokens of a step


class Histogram:
    """A histogram that takes a value for many observations at once. One thread adds, any may read."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float, count: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += count
        self._sum += value * count

    def buckets(self) -> tuple[list[tuple[str, float]], float]:
        """Return the cumulative counts by upper bound, and the sum."""
        out, total = [], 0
        for bound, count in zip((*map(str, map(float, self._bounds)), "+Inf"), self._counts, strict=True):
            total += count
            out.append((bound, float(total)))
        return out, self._sum
