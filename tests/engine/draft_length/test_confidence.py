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


def observe(curve, slot, levels, accepted, by_history):
    """Observe one sequence's drafts."""
    padded = np.array([[*levels, 0]])
    history = np.array([by_history])[:, : padded.shape[1]]
    history = np.pad(history, ((0, 0), (0, padded.shape[1] - history.shape[1])), constant_values=0.5)
    curve.observe(np.array([slot]), padded, np.array([len(levels)]), np.array([int(accepted)]), history)


def of(curve, slot):
    """Chances of the levels."""
    return curve.chances(np.array([slot]))[0]


def test_confidence_is_taken_at_its_word_and_then_measured():
    """A head that is right half as often as it says, and about nothing else."""
    curve, rng = ConfidenceCurve(), random.Random(0)
    assert of(curve, 0) == pytest.approx(CENTRES)
    for number in range(4000):
        said = [rng.random() for _ in range(3)]
        is_right = [rng.random() < chance / 2 for chance in said]
        observe(curve, number % 4, list(map(level_of, said)), [*is_right, False].index(False), HALF)
    curve.enter(0)
    assert of(curve, 0) == pytest.approx(CENTRES / 2, abs=0.08)


def test_each_sequence_has_odds_of_its_own():
    """All drafts are of one level, which says nothing: what each sequence did lately does."""
    curve, rng = ConfidenceCurve(), random.Random(0)

    def play(chances):
        for _ in range(200):
            for slot, chance in enumerate(chances):
                observe(curve, slot, [0], rng.random() < chance, HALF)
        return [float(of(curve, slot)[0]) for slot in (0, 1)]

    assert play((0.9, 0.2)) == pytest.approx([0.9, 0.2], abs=0.2)
    assert play((0.2, 0.9)) == pytest.approx([0.2, 0.9], abs=0.2)


@given(st.lists(st.tuples(st.lists(st.integers(0, NUM_LEVELS - 1), max_size=5), st.integers(0, 5)), max_size=80))
def test_more_confidence_is_never_less_chance(rounds):
    curve = ConfidenceCurve()
    for levels, accepted in rounds:
        observe(curve, 0, levels, min(accepted, len(levels)), HALF)
    chances = of(curve, 0)
    assert (np.diff(chances) >= 0).all() and chances[0] > 0 and chances[-1] < 1


def test_a_cut_is_the_chances_and_the_least_one_worth_a_row():
    curve = ConfidenceCurve()
    assert curve.cut([0], 0.3).slots == ()  # nothing was seen
    for _ in range(40):
        observe(curve, 3, [1, 0], 1, HALF)
    cut = curve.cut([0, 3], 0.3)
    assert cut.slots == (0, 3) and cut.logs_SN[:, 0] == pytest.approx(math.log(0.3), abs=STEP)
    assert np.exp(cut.logs_SN[1, 1:]) == pytest.approx(of(curve, 3), rel=0.02)
    assert curve.cut([0, 3], 0.0).slots == ()


@pytest.mark.parametrize("knows", [True, False])
def test_levels_are_trusted_while_they_say_more_than_history(knows):
    """Half of the drafts are right: those that the head is sure of, or whichever."""
    curve, rng = ConfidenceCurve(), random.Random(0)
    trusted = []
    for number in range(3000):
        level, is_right = rng.choice([2, 7]), rng.random() < 0.5
        observe(curve, number % 4, [7 if is_right else 2] if knows else [level], is_right, HALF)
        trusted.append(curve.is_trusted)
    assert not trusted[0] and all(trusted[200:]) == any(trusted[200:]) == knows
    for number in range(1500):  # and then as little as the other, or as much
        is_right = rng.random() < 0.5
        observe(curve, number % 4, [rng.choice([2, 7])] if knows else [7 if is_right else 2], is_right, HALF)
    assert curve.is_trusted != knows


@given(st.integers(0, 2**32))
def test_sequences_at_once_count_as_one_after_the_other(seed):
    """As long as the curve is not renewed in between."""
    rng, (together, apart) = np.random.default_rng(seed), (ConfidenceCurve(), ConfidenceCurve())
    for _ in range(3):
        slots = rng.permutation(12)[:9]
        levels, num = rng.integers(0, NUM_LEVELS, (9, 5)), rng.integers(0, 6, 9)
        accepted, history = np.minimum(rng.integers(0, 6, 9), num), rng.uniform(0.05, 0.95, (9, 5))
        together.observe(slots, levels, num, accepted, history)
        for row in range(9):
            part = slice(row, row + 1)
            apart.observe(slots[part], levels[part], num[part], accepted[part], history[part])
    assert apart._evidence == pytest.approx(together._evidence)
    everyone = np.arange(12)
    assert apart.chances(everyone) == pytest.approx(together.chances(everyone))
    for name in ("_hits", "_tries"):
        assert getattr(apart, name) == pytest.approx(getattr(together, name))
