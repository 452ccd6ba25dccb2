"""Statistics against scipy and against what pairing is for."""

import random

import numpy as np
import pytest
import scipy

from eyas.bench.stats import Spread, bootstrap_ratio, paired_ratio, percentile, ratio_difference, ratio_of_medians


def test_spread_is_median_and_range():
    spread = Spread((3.0, 1000.0, 2.0))
    assert spread.text(1) == "3.0 (2.0..1,000.0)"
    assert spread.json() == {"median": 3.0, "min": 2.0, "max": 1000.0, "n": 3}


def test_pairing_cancels_what_slows_both():
    slowness = [1.0, 3.0, 0.5]
    ratio = paired_ratio(Spread(tuple(20 / s for s in slowness)), Spread(tuple(10 / s for s in slowness)))
    assert ratio.values == pytest.approx([2.0, 2.0, 2.0])


def test_bootstrap_interval_is_scipys():
    rng = random.Random(0)
    tokens = [rng.randint(10, 60) for _ in range(80)]
    rounds = [rng.randint(8, 20) for _ in tokens]
    theirs = scipy.stats.bootstrap(
        (tokens, rounds),
        lambda a, b, axis=-1: np.sum(a, axis=axis) / np.sum(b, axis=axis),
        paired=True,
        method="percentile",
        n_resamples=4000,
        rng=np.random.default_rng(0),
    ).confidence_interval
    low, high = bootstrap_ratio(tokens, rounds, num_samples=4000)
    width = theirs.high - theirs.low
    assert abs(low - theirs.low) < 0.1 * width and abs(high - theirs.high) < 0.1 * width


def test_ratio_of_medians():
    rng = random.Random(1)
    base = [rng.gauss(100, 1) for _ in range(9)]
    ratio = ratio_of_medians(Spread(tuple(1.5 * value for value in base)), Spread(tuple(base)))
    assert ratio.value == pytest.approx(1.5) and ratio.low == pytest.approx(1.5) == pytest.approx(ratio.high)
    other = Spread(tuple(rng.gauss(100, 1) for _ in range(9)))
    ratio = ratio_of_medians(other, Spread(tuple(base)))
    assert 0.97 < ratio.low < ratio.value < ratio.high < 1.03
    assert ratio.text(2).count(",") == 1 and set(ratio.json()) == {"value", "low", "high"}


def test_percentiles_are_of_nearest_rank():
    values = list(range(100, 0, -1))
    assert [percentile(values, p) for p in (50, 95, 99)] == [50, 95, 99] and percentile([7.0], 99) == 7.0
    assert percentile([1.0, 2.0, 3.0, 4.0], 50) == 2.0 and percentile(values, 100) == 100 and percentile(values, 0) == 1


def test_difference_of_ratios_over_seeds_and_items():
    """Items that are hard for both arms do not widen the interval of their difference; seeds do."""
    rng = random.Random(2)
    rounds = [rng.randint(5, 40) for _ in range(100)]
    base = [[(number * rng.uniform(1.5, 4.0), number) for number in rounds] for _ in range(3)]
    ours = [[(tokens + 0.5 * number, number) for tokens, number in parts] for parts in base]
    same = ratio_difference(ours, base)
    assert same.value == pytest.approx(0.5) and same.low == pytest.approx(0.5) == pytest.approx(same.high)
    alone = ratio_difference(ours)
    assert alone.high - alone.low > 0.1 and alone.low < alone.value < alone.high
    shifted = [[(tokens + shift * number, number) for tokens, number in parts] for shift, parts in enumerate(base)]
    spread = ratio_difference(shifted, base, num_samples=2000)
    assert spread.value == pytest.approx(1) and spread.low == pytest.approx(0) and spread.high == pytest.approx(2)


def test_interval_of_a_ratio_is_scipys():
    rng = random.Random(3)
    parts = [(rng.randint(10, 60), rng.randint(8, 20)) for _ in range(80)]
    theirs = bootstrap_ratio(*zip(*parts, strict=True), num_samples=4000)
    ours = ratio_difference([parts], num_samples=4000)
    assert (ours.low, ours.high) == pytest.approx(theirs, rel=0.01)
