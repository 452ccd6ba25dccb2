"""Chances by a head's confidence: taken at its word, then measured; chains are cut where they are not worth a row."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.engine.confidence import NUM_LEVELS, STEP, ConfidenceCurve, Cut, level_of

CENTRES = (np.arange(NUM_LEVELS) + 0.5) / NUM_LEVELS


def test_confidence_is_taken_at_its_word_and_then_measured():
    """A head that is right half as often as it says, and about nothing else."""
    curve, rng = ConfidenceCurve(), random.Random(0)
    assert curve.chances == pytest.approx(CENTRES)
    for _ in range(4000):
        said = [rng.random() for _ in range(3)]
        is_right = [rng.random() < chance / 2 for chance in said]
        curve.observe(list(map(level_of, said)), [*is_right, False].index(False))
    assert curve.chances == pytest.approx(CENTRES / 2, abs=0.08)


@given(st.lists(st.tuples(st.lists(st.integers(0, NUM_LEVELS - 1), max_size=5), st.integers(0, 5)), max_size=80))
def test_more_confidence_is_never_less_chance(rounds):
    curve = ConfidenceCurve()
    for levels, accepted in rounds:
        curve.observe(levels, min(accepted, len(levels)))
    assert (np.diff(curve.chances) >= 0).all() and curve.chances[0] >= 0 and curve.chances[-1] <= 1


def test_a_cut_is_the_chances_and_the_least_one_worth_a_row():
    curve = ConfidenceCurve()
    assert curve.cut(0.3) == Cut() and Cut().threshold == -math.inf  # nothing was seen
    for _ in range(40):
        curve.observe([1, 0], 1)
    cut = curve.cut(0.3)
    assert cut.threshold == pytest.approx(math.log(0.3), abs=STEP)
    assert np.exp(cut.chances) == pytest.approx(curve.chances, rel=0.01) and cut.chances[1] > math.log(0.5)
    assert curve.cut(0.0) == Cut()
