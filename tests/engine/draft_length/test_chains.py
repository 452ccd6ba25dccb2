"""Planning with a cut: against the same chains, cut one by one."""

import numpy as np
import pytest
from tools.drafting.machines import H200

from eyas.engine.draft_length.chains import FEWEST, NUM_CHAINS, Chains

SECONDS = np.array([[H200.seconds(2, 2 + rows, steps) for rows in range(9)] for steps in range(5)])


def test_nothing_is_said_of_few_chains():
    chains = Chains(4)
    for _ in range(FEWEST - 1):
        chains.add([0.9])
    assert chains.best_choice(SECONDS, [9, 9]) is None


def test_what_is_expected_is_what_chains_bring():
    """Half of them go well: long chains are drawn for all, and the others end before their first draft."""
    chains, kinds = Chains(4), ([0.99, 0.98, 0.97, 0.96], [0.05, 0.3])
    for number in range(2 * NUM_CHAINS):  # the newest count
        chains.add(kinds[number % 2] if number >= NUM_CHAINS else [0.5])
    choice = chains.best_choice(SECONDS, [9, 3])
    assert choice.limits == (4, 3) and choice.head_drafts == 4 and 0.05 < choice.min_chance < 0.9
    kept = np.cumprod(kinds[0])
    assert choice.tokens == pytest.approx(2 * (1 + kept.sum() / 2))
    assert choice.seconds == pytest.approx(SECONDS[4, 4])
    assert max(chains.best_choice(SECONDS, [1, 0]).limits) == 1
    assert chains.best_choice(SECONDS, [0, 0]) is None


def test_a_draft_that_was_not_drawn_is_like_the_last():
    drawn, short = Chains(4), Chains(4)
    for _ in range(NUM_CHAINS):
        drawn.add([0.9, 0.8, 0.8, 0.8])
        short.add([0.9, 0.8])
    assert drawn.best_choice(SECONDS, [9, 9]) == short.best_choice(SECONDS, [9, 9])
