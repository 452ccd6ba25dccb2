"""Statistics against scipy and against what pairing is for."""

import random

import numpy as np
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st

from eyas.bench.stats import (
    Spread,
    bootstrap_ratio,
    geometric_mean,
    holm,
    p_value,
    paired_ratio,
    percentile,
    poisson_interval,
    ratio_difference,
    ratio_of_medians,
    t_cdf,
)


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


@given(st.floats(-1e3, 1e3), st.integers(1, 60))
def test_students_distribution_is_scipys(t, degrees):
    assert t_cdf(t, degrees) == pytest.approx(scipy.stats.t.cdf(t, degrees), abs=1e-12)


@given(st.lists(st.floats(0.1, 10), min_size=2, max_size=20, unique=True))
def test_interval_and_p_value_of_ratios_are_those_of_a_t_test_of_their_logarithms(ratios):
    theirs = scipy.stats.ttest_1samp(np.log(ratios), 0)
    interval, bounds = geometric_mean(ratios), theirs.confidence_interval(0.95)
    assert p_value(ratios) == pytest.approx(theirs.pvalue, abs=1e-9)
    assert (interval.low, interval.high) == pytest.approx(np.exp(bounds), rel=1e-6)
    assert interval.value == pytest.approx(scipy.stats.gmean(ratios))


def test_equal_ratios_have_no_spread():
    assert geometric_mean([2.0, 2.0, 2.0]).json() == {"value": 2.0, "low": 2.0, "high": 2.0}
    assert (p_value([2.0, 2.0]), p_value([1.0, 1.0])) == (0.0, 1.0)


@given(st.integers(0, 400))
def test_poisson_interval_is_that_of_chi_squared(count):
    low, high = poisson_interval(count)
    assert low == pytest.approx(scipy.stats.chi2.ppf(0.025, 2 * count) / 2 if count else 0.0)
    assert high == pytest.approx(scipy.stats.chi2.ppf(0.975, 2 * count + 2) / 2)


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == [True, False, False, True]
    assert holm([]) == []


def test_holm_keeps_the_rate_of_any_error_where_single_tests_do_not():
    rng = np.random.default_rng(0)
    values = rng.random((4000, 5))  # five true hypotheses each
    assert np.mean([any(row < 0.05) for row in values]) == pytest.approx(1 - 0.95**5, abs=0.02)
    assert np.mean([any(holm(list(row))) for row in values]) == pytest.approx(0.05, abs=0.01)
