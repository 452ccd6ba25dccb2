"""What rounds cost: tables from noisy timings of known machines, corrected by rounds that run."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tools.drafting.machines import H200, SPARK

from eyas.engine.draft_length.step_costs import RoundCosts, Timing

MAX_DRAFTS = 5


def timed(machine, batches=(1, 2, 4, 8), noise=0.02, seed=0, numbers=range(MAX_DRAFTS + 1)):
    rng = random.Random(seed)
    return [
        Timing(s, s * (k + 1), k, machine.seconds(s, s * (k + 1), k) * rng.gauss(1, noise))
        for s in batches
        for k in numbers
    ]


def learned(machine, **options):
    costs = RoundCosts(MAX_DRAFTS)
    costs.learn(timed(machine, **options))
    return costs


def errors(costs, machine, num_sequences):
    table = costs.table(num_sequences)
    return [
        table[steps, rows] / machine.seconds(num_sequences, num_sequences + rows, steps) - 1
        for steps in range(MAX_DRAFTS + 1)
        for rows in range(steps, num_sequences * MAX_DRAFTS + 1)
    ]


@pytest.mark.parametrize("machine", [H200, SPARK], ids=lambda machine: machine.name)
def test_what_was_not_measured_lies_between(machine):
    """Ragged rounds and numbers of sequences between those measured, from timings that are 2 % off."""
    costs = learned(machine)
    for num_sequences in (1, 3, 6, 8, 12):
        assert np.abs(errors(costs, machine, num_sequences)).max() < 0.06
    assert np.abs(errors(learned(machine, noise=0), machine, 6)).max() < 0.01


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, MAX_DRAFTS), st.floats(1e-4, 1)), min_size=1, max_size=20),
    st.integers(1, 9),
)
def test_tables_never_fall(timings, num_sequences):
    """Whatever was timed; also by rounds that run."""
    costs = RoundCosts(MAX_DRAFTS)
    costs.learn(Timing(s, s * (k + 1), k, t) for s, k, t in timings[: len(timings) // 2])
    for s, k, t in timings[len(timings) // 2 :]:
        costs.observe(Timing(s, s * (k + 1), k, t))
    table = costs.table(num_sequences)
    assert table.shape == (MAX_DRAFTS + 1, num_sequences * MAX_DRAFTS + 1)
    assert (table > 0).all() and np.isfinite(table).all()
    assert (np.diff(table, axis=0) >= 0).all() and (np.diff(table, axis=1) >= 0).all()


def test_one_timing_scales_the_guess():
    """Nothing is free only because it was not measured."""
    for costs in (RoundCosts(MAX_DRAFTS), RoundCosts(MAX_DRAFTS)):
        before = costs.table(1)[:, 1] / costs.table(1)[0, 0]
        if costs.is_measured:
            costs.learn([Timing(1, 1, 0, 0.02)])
        else:
            costs.observe(Timing(1, 1, 0, 0.02))
        assert costs.table(1)[0, 0] == pytest.approx(0.02, rel=0.01)
        assert costs.table(1)[:, 1] / costs.table(1)[0, 0] == pytest.approx(before, rel=0.02)


def test_nothing_timed_is_nothing_learned():
    costs = RoundCosts(MAX_DRAFTS)
    costs.learn([])
    assert not costs.is_measured


def test_an_outlier_moves_little_and_a_change_is_followed():
    costs, before = learned(H200), learned(H200).table(1)
    costs.observe(Timing(1, 3, 2, 50 * before[2, 2]))
    assert np.abs(costs.table(1) / before - 1).max() < 0.1
    rng = random.Random(1)
    for _ in range(150):
        costs.observe(Timing(1, 3, 2, 1.4 * before[2, 2] * rng.gauss(1, 0.03)))
    assert costs.table(1)[2, 2] / before[2, 2] == pytest.approx(1.4, rel=0.03)
    # What grows for one number, a longer context say, grows for the others that were not timed.
    assert costs.table(1)[3, 3] / before[3, 3] == pytest.approx(1.4, rel=0.05)


def test_numbers_keep_their_own_corrections():
    costs, before = learned(H200), learned(H200).table(1)
    for _ in range(64):
        costs.observe(Timing(1, 1, 0, before[0, 0]))
        costs.observe(Timing(1, 5, 4, 1.2 * before[4, 4]))
    assert costs.table(1)[0, 0] / before[0, 0] == pytest.approx(1, abs=0.02)
    assert costs.table(1)[4, 4] / before[4, 4] == pytest.approx(1.2, abs=0.02)


def test_noise_hardly_moves_a_table():
    costs, before, rng = learned(H200), learned(H200).table(4), random.Random(2)
    for _ in range(300):
        costs.observe(Timing(4, 12, 2, H200.seconds(4, 12, 2) * rng.gauss(1, 0.05) * rng.choice((1,) * 49 + (4,))))
    assert np.abs(costs.table(4) / before - 1).max() < 0.05


def test_age_counts_rounds():
    costs = learned(H200)
    assert costs.age(1, 2, 1) > 10**6
    costs.observe(Timing(1, 2, 1, 1.0))
    for _ in range(9):
        costs.observe(Timing(1, 1, 0, 1.0))
    assert costs.age(1, 2, 1) == 9
