"""Rounds of many sequences draft fewer tokens for each."""

import pytest
from tools.drafting.machines import H200
from tools.drafting.simulate import auto

from eyas.engine.draft_length.choice import FixedDraftLength, RoundOutcome, RoundTimer, Tried
from eyas.engine.draft_length.round_limit import most_drafts


@pytest.mark.parametrize(
    ("num_sequences", "max_rows", "most"),
    [(1, 2048, 7), (256, 2048, 7), (512, 2048, 3), (300, 2048, 5), (2048, 2048, 0), (4096, 2048, 0), (512, None, 7)],
)
def test_a_round_has_as_many_rows_as_fit(num_sequences, max_rows, most):
    assert most_drafts(num_sequences, 7, max_rows) == most


def test_policies_draft_no_more():
    """The one that measures, too: not in what it takes for best, and not to see what more would cost."""
    policy = auto(H200, 7, (8,), max_rows=32)
    for slot in range(8):
        policy.enter(slot)
    longest = []
    for _ in range(100):
        limits = policy.choose(range(8), [99] * 8, most=3).limits
        policy.observe(RoundOutcome([Tried(slot, k, k, k) for slot, k in enumerate(limits)], None))
        longest.append(max(limits))
    assert max(longest) == longest[-1] == 3
    assert max(max(policy.choose(range(8), [99] * 8, most=0).limits) for _ in range(100)) == 0
    assert FixedDraftLength(7).choose(range(8), [99] * 8, most=3).limits == (3,) * 8


def test_what_the_start_up_times_is_what_fits():
    timer = RoundTimer([0, 1, 7], [0, 1, 7])
    chosen = [timer.choose(range(8), [99] * 8, most=3).head_drafts for _ in range(3 * RoundTimer.TRIALS)]
    assert set(chosen) == {0, 1, 3} and timer.is_done(8)
