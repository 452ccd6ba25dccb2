"""Chances by a head's confidence: taken at its word, then measured; chains are cut where they are not worth a row."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.engine.draft_length.confidence import NUM_LEVELS, STEP, ConfidenceCurve, level_of

HALF = [0.5] * 5  # chances of drafts by their positions, where only levels matter
CENTRES = (np.arange(NUM_LEVELS) + 0.5) / NUM_LEVELS


def test_confidence_is_taken_at_its_word_and_then_measured():
    """A head that is right half as often as it says, and about nothing else."""
    curve, rng = ConfidenceCurve(), random.Random(0)
    assert curve.chances(0) == pytest.approx(CENTRES)
    for number in range(4000):
        said = [rng.random() for _ in range(3)]
        is_right = [rng.random() < chance / 2 for chance in said]
        curve.observe(number % 4, list(map(level_of, said)), [*is_right, False].index(False), HALF)
    curve.enter(0)
    assert curve.chances(0) == pytest.approx(CENTRES / 2, abs=0.08)


def test_each_sequence_has_odds_of_its_own():
    """All drafts are of one level, which says nothing: what each sequence did lately does."""
    curve, rng = ConfidenceCurve(), random.Random(0)

    def play(chances):
        for _ in range(200):
            for slot, chance in enumerate(chances):
                curve.observe(slot, [0], rng.random() < chance, HALF)
        return [float(curve.chances(slot)[0]) for slot in (0, 1)]

    assert play((0.9, 0.2)) == pytest.approx([0.9, 0.2], abs=0.2)
    assert play((0.2, 0.9)) == pytest.approx([0.2, 0.9], abs=0.2)


@given(st.lists(st.tuples(st.lists(st.integers(0, NUM_LEVELS - 1), max_size=5), st.integers(0, 5)), max_size=80))
def test_more_confidence_is_never_less_chance(rounds):
    curve = ConfidenceCurve()
    for levels, accepted in rounds:
        curve.observe(0, levels, min(accepted, len(levels)), HALF)
    chances = curve.chances(0)
    assert (np.diff(chances) >= 0).all() and chances[0] > 0 and chances[-1] < 1


def test_a_cut_is_the_chances_and_the_least_one_worth_a_row():
    curve = ConfidenceCurve()
    assert curve.cut([0], 0.3).slots == ()  # nothing was seen
    for _ in range(40):
        curve.observe(3, [1, 0], 1, HALF)
    cut = curve.cut([0, 3], 0.3)
    assert cut.slots == (0, 3) and cut.logs_SN[:, 0] == pytest.approx(math.log(0.3), abs=STEP)
    assert np.exp(cut.logs_SN[1, 1:]) == pytest.approx(curve.chances(3), rel=0.02)
    assert curve.cut([0, 3], 0.0).slots == ()


@pytest.mark.parametrize("knows", [True, False])
def test_levels_are_trusted_while_they_say_more_than_history(knows):
    """Half of the drafts are right: those that the head is sure of, or whichever."""
    curve, rng = ConfidenceCurve(), random.Random(0)
    trusted = []
    for number in range(3000):
        level, is_right = rng.choice([2, 7]), rng.random() < 0.5
        curve.observe(number % 4, [7 if is_right else 2] if knows else [level], is_right, HALF)
        trusted.append(curve.is_trusted)
    assert not trusted[0] and all(trusted[200:]) == any(trusted[200:]) == knows
    for number in range(1500):  # and then as little as the other, or as much
        is_right = rng.random() < 0.5
        curve.observe(number % 4, [rng.choice([2, 7])] if knows else [7 if is_right else 2], is_right, HALF)
    assert curve.is_trusted != knows
