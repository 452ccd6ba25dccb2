"""Statistics of benchmarks: median and range, ratios of paired measurements, percentiles, intervals, p values."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, median, stdev
from typing import Any

__all__ = [
    "Interval",
    "Spread",
    "bootstrap_ratio",
    "geometric_mean",
    "holm",
    "p_value",
    "paired_ratio",
    "percentile",
    "poisson_interval",
    "ratio_difference",
    "ratio_of_medians",
    "student_t",
    "t_cdf",
]


@dataclass(frozen=True, slots=True)
class Spread:
    """Values of a repeatedly measured figure."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.values)

    def text(self, digits: int) -> str:
        """Format as `71.2 (69.8..72.0)`: median, then minimum and maximum."""
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
    """Return ratios of measurements that were taken one after the other: disturbances of both cancel."""
    return Spread(tuple(a / b for a, b in zip(figures.values, base.values, strict=True)))


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure with its 95 % interval."""

    value: float
    low: float
    high: float

    def text(self, digits: int) -> str:
        """Format as `0.993 [0.987, 1.001]`."""
        return f"{self.value:.{digits}f} [{self.low:.{digits}f}, {self.high:.{digits}f}]"

    def json(self) -> dict[str, float]:
        return {"value": round(self.value, 4), "low": round(self.low, 4), "high": round(self.high, 4)}


def ratio_of_medians(figures: Spread, base: Spread, *, num_samples: int = 2000, seed: int = 0) -> Interval:
    """Return the ratio of medians; its interval has pairs drawn with replacement (percentile bootstrap)."""
    rng, pairs = random.Random(seed), list(zip(figures.values, base.values, strict=True))
    ratios = []
    for _ in range(num_samples):
        above, below = zip(*rng.choices(pairs, k=len(pairs)), strict=True)
        ratios.append(median(above) / median(below))
    ratios.sort()
    low, high = ratios[round(0.025 * (num_samples - 1))], ratios[round(0.975 * (num_samples - 1))]
    return Interval(figures.median / base.median, low, high)


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile by nearest rank."""
    return sorted(values)[max(1, math.ceil(len(values) * percent / 100)) - 1]


def bootstrap_ratio(
    numerators: Sequence[float], denominators: Sequence[float], *, num_samples: int = 1000, seed: int = 0
) -> tuple[float, float]:
    """Return the 95 % interval of sum(numerators) / sum(denominators) by percentile bootstrap over items."""
    rng, indices = random.Random(seed), range(len(numerators))
    ratios = []
    for _ in range(num_samples):
        drawn = rng.choices(indices, k=len(indices))
        ratios.append(sum(numerators[i] for i in drawn) / sum(denominators[i] for i in drawn))
    ratios.sort()
    return ratios[round(0.025 * (num_samples - 1))], ratios[round(0.975 * (num_samples - 1))]


Parts = Sequence[tuple[float, float]]  # numerator and denominator of each item


def ratio_difference(
    ours: Sequence[Parts], base: Sequence[Parts] | None = None, *, num_samples: int = 1000, seed: int = 0
) -> Interval:
    """Return how much larger our ratio of sums is than the base's, or our ratio itself without a base.

    Both hold the same items for each of the same repeats (e.g. prompts, for each seed of a training run); the ratio is
    the mean of the repeats' own. The interval is by percentile bootstrap over repeats and items, drawn with
    replacement: what was measured on the same item in the same repeat stays together.
    """
    repeats, items = range(len(ours)), range(len(ours[0]))
    assert base is None or [len(parts) for parts in base] == [len(parts) for parts in ours]

    def difference(drawn_repeats: Sequence[int], drawn: Sequence[int]) -> float:
        values = [_ratio(ours[r], drawn) - (_ratio(base[r], drawn) if base else 0.0) for r in drawn_repeats]
        return sum(values) / len(values)

    rng = random.Random(seed)
    found = sorted(
        difference(rng.choices(repeats, k=len(repeats)), rng.choices(items, k=len(items))) for _ in range(num_samples)
    )
    low, high = found[round(0.025 * (num_samples - 1))], found[round(0.975 * (num_samples - 1))]
    return Interval(difference(repeats, items), low, high)


def _ratio(parts: Parts, drawn: Sequence[int]) -> float:
    return sum(parts[i][0] for i in drawn) / sum(parts[i][1] for i in drawn)


def geometric_mean(ratios: Sequence[float]) -> Interval:
    """Return the geometric mean of at least two ratios with Student's t interval of their logarithms."""
    logs = [math.log(ratio) for ratio in ratios]
    half = student_t(0.975, len(logs) - 1) * stdev(logs) / math.sqrt(len(logs))
    return Interval(*(math.exp(mean(logs) + shift) for shift in (0.0, -half, half)))


def p_value(ratios: Sequence[float]) -> float:
    """Return the two-sided p value of Student's t test that the geometric mean of at least two ratios is 1."""
    logs = [math.log(ratio) for ratio in ratios]
    deviation = stdev(logs)
    if deviation == 0:
        return 1.0 if logs[0] == 0 else 0.0
    return 2 * t_cdf(-abs(mean(logs)) / deviation * math.sqrt(len(logs)), len(logs) - 1)


def t_cdf(t: float, degrees: int) -> float:
    """Return the distribution function of Student's t for whole degrees of freedom.

    Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
    """
    angle = math.atan(t / math.sqrt(degrees))
    cosine, is_odd = math.cos(angle), degrees % 2
    term, series = (cosine if is_odd else 1.0), 0.0
    for k in range(1 + is_odd, degrees, 2):
        series += term
        term *= cosine**2 * k / (k + 1)
    inner = 2 / math.pi * (angle + math.sin(angle) * series) if is_odd else math.sin(angle) * series
    return (1 + inner) / 2


def student_t(share: float, degrees: int) -> float:
    """Return the quantile of Student's t at a share above one half."""
    return _solve(lambda t: t_cdf(t, degrees), share)


def holm(p_values: Sequence[float], alpha: float = 0.05) -> list[bool]:
    """Return which hypotheses are rejected so that a false one is among them with probability `alpha` at most.

    Holm, A simple sequentially rejective multiple test procedure (1979).
    """
    rejected = [False] * len(p_values)
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        if p_values[index] > alpha / (len(p_values) - rank):
            break
        rejected[index] = True
    return rejected


def poisson_interval(count: int) -> tuple[float, float]:
    """Return the exact 95 % interval of the mean of a Poisson variable that was `count`.

    Garwood, Fiducial limits for the Poisson distribution (1936): outside of it, what was seen or more, or what was seen
    or less, has a probability below 2.5 %.
    """

    def at_most(k: int, expected: float) -> float:
        return sum(math.exp(i * math.log(expected) - expected - math.lgamma(i + 1)) for i in range(k + 1))

    low = 0.0 if count == 0 else _solve(lambda expected: 1 - at_most(count - 1, expected), 0.025)
    return low, _solve(lambda expected: 1 - at_most(count, expected), 0.975)


def _solve(increasing: Callable[[float], float], value: float) -> float:
    """Return the positive argument where an increasing function has a value, by bisection."""
    low, high = 0.0, 1.0
    while increasing(high) < value:
        low, high = high, high * 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if increasing(middle) < value else (low, middle)
    return (low + high) / 2
