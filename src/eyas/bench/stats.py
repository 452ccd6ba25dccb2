"""Statistics of benchmarks: median with its range, ratios of paired measurements, bootstrap intervals."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

__all__ = ["Spread", "bootstrap_ratio", "paired_ratio"]


@dataclass(frozen=True, slots=True)
class Spread:
    """Repeated measurements of one figure."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.values)

    def text(self, digits: int) -> str:
        """E.g. `71.2 (69.8..72.0)`: median, then minimum and maximum."""
        low, high = min(self.values), max(self.values)
        return f"{self.median:,.{digits}f} ({low:,.{digits}f}..{high:,.{digits}f})"

    def json(self) -> dict[str, Any]:
        return {
            "median": round(self.median, 4),
            "min": round(min(self.values), 4),
            "max": round(max(self.values), 4),
            "n": len(self.values),
        }


def paired_ratio(figures: Spread, base: Spread) -> Spread:
    """Ratios of measurements that were taken one after the other: what slows both cancels."""
    return Spread(tuple(a / b for a, b in zip(figures.values, base.values, strict=True)))


def bootstrap_ratio(
    numerators: Sequence[float], denominators: Sequence[float], *, num_samples: int = 1000, seed: int = 0
) -> tuple[float, float]:
    """95 % interval of sum(numerators) / sum(denominators), items drawn with replacement (percentile bootstrap)."""
    rng, indices = random.Random(seed), range(len(numerators))
    ratios = []
    for _ in range(num_samples):
        drawn = rng.choices(indices, k=len(indices))
        ratios.append(sum(numerators[i] for i in drawn) / sum(denominators[i] for i in drawn))
    ratios.sort()
    return ratios[round(0.025 * (num_samples - 1))], ratios[round(0.975 * (num_samples - 1))]
