"""What is learned of acceptance: by sequence and position, steady where nothing changes and quick where it does."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.engine.draft_length.acceptance import FIRST_GUESS, Acceptance

MAX_DRAFTS = 4


def observe(acceptance, *parts):
    """Slots, tried and accepted drafts, and chances of drafts that were not seen."""
    *numbers, unseen = parts if len(parts) == 4 else (*parts, [0.0] * len(parts[0]))
    acceptance.observe(*map(np.array, numbers), np.array(unseen))


def right(rng, chances):
    """Drafts accepted of a chain with these conditional chances."""
    count = 0
    while count < len(chances) and rng.random() < chances[count]:
        count += 1
    return count


def learned(profiles, num_rounds, *, acceptance=None, seed=0):
    """After rounds in which each slot tries as many drafts as its profile has."""
    acceptance, rng = acceptance or Acceptance(MAX_DRAFTS), random.Random(seed)
    for _ in range(num_rounds):
        accepted = [right(rng, profile) for profile in profiles]
        observe(acceptance, range(len(profiles)), [len(p) for p in profiles], accepted)
    return acceptance


def test_each_position_is_found():
    profile = (0.8, 0.6, 0.4, 0.7)
    estimates = [learned([profile], 600, seed=seed).chances([0])[0] for seed in range(8)]
    assert np.mean(estimates, axis=0) == pytest.approx(profile, abs=0.06)
    assert np.std(estimates, axis=0).max() < 0.12


def test_each_sequence_is_found():
    acceptance = learned([(0.9,) * 3, (0.2,) * 3] * 4, 100)
    first = acceptance.chances(np.arange(8))[:, 0]
    assert first[::2].min() > 0.75 and first[1::2].max() < 0.35


def test_little_history_is_like_the_others():
    """First like the guess, then like all sequences, then like itself."""
    acceptance = Acceptance(MAX_DRAFTS)
    acceptance.enter(0)
    assert acceptance.chances([0])[0] == pytest.approx(FIRST_GUESS)
    learned([(0.3,) * 2] * 4, 200, acceptance=acceptance)
    acceptance.enter(4)
    assert acceptance.chances([4])[0, :2] == pytest.approx(0.3, abs=0.1)
    learned([(0.3,) * 2] * 4 + [(0.95,) * 2], 40, acceptance=acceptance)
    assert acceptance.chances([4])[0, 0] > 0.7


def test_a_position_that_was_not_tried_is_like_the_one_before():
    acceptance = learned([(0.9, 0.9)], 200)
    assert acceptance.chances([0])[0, 2:].min() > 0.75
    acceptance = learned([(0.1, 0.1)], 200)
    assert acceptance.chances([0])[0, 2:].max() < 0.3


@pytest.mark.parametrize(("before", "after"), [(0.9, 0.1), (0.1, 0.9), (0.8, 0.4)])
@pytest.mark.parametrize("num_sequences", [1, pytest.param(8, marks=pytest.mark.slow)])
def test_a_change_is_followed_within_rounds(before, after, num_sequences):
    """40 rounds after 500 others, with as many drafts tried as before."""
    errors = []
    for seed in range(6):
        acceptance = learned([(before,) * 2] * num_sequences, 500, seed=seed)
        learned([(after,) * 2] * num_sequences, 40, acceptance=acceptance, seed=seed + 100)
        errors += list(acceptance.chances(np.arange(num_sequences))[:, 0] - after)
    assert abs(np.mean(errors)) < 0.12


def test_a_new_sequence_in_a_slot_has_no_history():
    acceptance = learned([(0.9,) * 3, (0.2,) * 3] * 4, 100)
    acceptance.enter(1)
    assert 0.4 < acceptance.chances([1])[0, 0] < 0.75
    assert acceptance.chances([3])[0, 0] < 0.35


def test_slots_beyond_the_first_few():
    acceptance = Acceptance(MAX_DRAFTS)
    for slot in (3, 40, 17):
        acceptance.enter(slot)
    for _ in range(50):
        observe(acceptance, [40, 3], [2, 2], [2, 0])
    assert acceptance.chances([40])[0, 0] > 0.8 and acceptance.chances([3])[0, 0] < 0.2


def test_a_draft_that_was_not_verified_counts_by_its_chance():
    acceptance = Acceptance(1)
    for _ in range(300):
        observe(acceptance, [0], [1], [0], [0.7])
    assert acceptance.chances([0])[0, 0] == pytest.approx(0.7, abs=0.02)


def test_rounds_without_drafts_teach_nothing():
    acceptance = learned([(0.9,) * 3], 50)
    before = acceptance.chances([0])
    observe(acceptance, [0], [0], [0])
    assert (acceptance.chances([0]) == before).all()


@given(
    st.lists(st.tuples(st.integers(0, MAX_DRAFTS), st.integers(0, MAX_DRAFTS), st.booleans()), max_size=60),
)
def test_chances_stay_chances(rounds):
    acceptance = Acceptance(MAX_DRAFTS)
    for tried, accepted, enters in rounds:
        if enters:
            acceptance.enter(1)
        observe(acceptance, [0, 1], [tried, 1], [min(accepted, tried), 1])
    chances = acceptance.chances([0, 1])
    assert np.isfinite(chances).all() and (chances > 0).all() and (chances < 1).all()
