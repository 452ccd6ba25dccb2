"""Planning with a cut: against the same chains, cut one by one."""

import numpy as np
import pytest
from tools.drafting.machines import H200

from eyas.engine.draft_length.chains import FEWEST, NUM_CHAINS, Chains

SECONDS = np.array([[H200.seconds(2, 2 + rows, steps) for rows in range(9)] for steps in range(5)])


def add(chains, chances):
    chains.add(np.array([chances]), np.array([len(chances)]))


def test_nothing_is_said_of_few_chains():
    chains = Chains(4)
    for _ in range(FEWEST - 1):
        add(chains, [0.9])
    assert chains.best_choice(SECONDS, np.array([9, 9])) is None


def test_what_is_expected_is_what_chains_bring():
    """Half of them go well: long chains are drawn for all, and the others end before their first draft."""
    chains, kinds = Chains(4), ([0.99, 0.98, 0.97, 0.96], [0.05, 0.3])
    for number in range(2 * NUM_CHAINS):  # the newest count
        add(chains, kinds[number % 2] if number >= NUM_CHAINS else [0.5])
    choice = chains.best_choice(SECONDS, np.array([9, 3]))
    assert choice.limits == (4, 3) and choice.head_drafts == 4 and 0.05 < choice.min_chance < 0.9
    kept = np.cumprod(kinds[0])
    assert choice.tokens == pytest.approx(2 * (1 + kept.sum() / 2))
    assert choice.seconds == pytest.approx(SECONDS[4, 4])
    assert max(chains.best_choice(SECONDS, np.array([1, 0])).limits) == 1
    assert chains.best_choice(SECONDS, np.array([0, 0])) is None


def test_a_draft_that_was_not_drawn_is_like_the_last():
    drawn, short = Chains(4), Chains(4)
    for _ in range(NUM_CHAINS):
        add(drawn, [0.9, 0.8, 0.8, 0.8])
        add(short, [0.9, 0.8])
    assert drawn.best_choice(SECONDS, np.array([9, 9])) == short.best_choice(SECONDS, np.array([9, 9]))


def test_of_a_large_round_every_sequence_gets_its_turn():
    chains = Chains(1)
    for _ in range(8):
        chains.add(np.linspace(0.1, 0.9, 8 * NUM_CHAINS)[:, None], np.ones(8 * NUM_CHAINS, dtype=int))
        mean = chains._chances_CK.mean()
        assert mean == pytest.approx(0.5, abs=0.01)
    assert chains._num_seen == 8 * NUM_CHAINS
