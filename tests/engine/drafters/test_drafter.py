"""The n-gram drafter against a plain search, and the limits that every drafter keeps."""

from itertools import cycle, islice
from types import SimpleNamespace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.engine.drafters.base import Drafter
from eyas.engine.drafters.ngram import NgramDrafter
from eyas.engine.round.stages import Stages
from eyas.kernels.reference.rounds.lookup import look_up_ref

LONGEST = 24


def state_of(rows, *, remaining, live=None, junk=None):
    """Token histories in slots; what lies behind a sequence's end is junk of earlier use."""
    tokens = torch.full((len(rows), LONGEST + 8), 1) if junk is None else junk.clone()
    for slot, row in enumerate(rows):
        tokens[slot, : len(row)] = torch.tensor(row)
    state = SimpleNamespace(
        device=torch.device("cpu"),
        tokens_SN=tokens,
        length_S=torch.tensor([len(row) for row in rows]),
        remaining_S=torch.tensor(remaining),
        draft_limit_S=torch.full((len(remaining),), 1000),
        live_S=torch.tensor([True] * len(rows) if live is None else live),
    )
    state.book = state  # which has the same fields
    return state


def looked_up(tokens, num_drafts, min_match, max_match):
    """What followed the latest earlier occurrence of the longest suffix that occurs."""
    for size in range(max_match, min_match - 1, -1):
        if size >= len(tokens):
            continue
        for end in range(len(tokens) - 1, size - 1, -1):
            if tokens[end - size : end] == tokens[-size:]:
                return list(islice(cycle(tokens[end:]), num_drafts))
    return []


@given(
    rows=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=LONGEST), min_size=1, max_size=4),
    num_drafts=st.integers(1, 6),
    match=st.sampled_from(((2, 5), (1, 3), (3, 3), (2, 4))),
    slack=st.integers(0, 5),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_ngram_equals_a_plain_search(rows, num_drafts, match, slack, data):
    remaining = data.draw(st.lists(st.integers(1, 9), min_size=len(rows), max_size=len(rows)))
    live = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    junk = torch.tensor(data.draw(st.lists(st.integers(0, 2), min_size=LONGEST + 8, max_size=LONGEST + 8)))
    state = state_of(rows, remaining=remaining, live=live, junk=junk.repeat(len(rows), 1))
    drafter = NgramDrafter(look_up_ref, Stages(), min_match=match[0], max_match=match[1])
    slots = torch.arange(len(rows)).flip(0)
    drafts = drafter.propose(state, slots, [], num_drafts, max(map(len, rows)) + slack)
    assert drafts.ids_SK.shape == (len(rows), num_drafts)
    for index, slot in enumerate(slots.tolist()):
        # The bonus token takes the last of the budget.
        room = min(num_drafts, remaining[slot] - 1) if live[slot] else 0
        expected = looked_up(rows[slot], num_drafts, *match)[:room]
        assert drafts.ids_SK[index, : drafts.num_valid_S[index]].tolist() == expected


def test_a_period_is_continued():
    state = state_of([[5, 6, 7] * 4], remaining=[9])
    drafts = NgramDrafter(look_up_ref, Stages()).propose(state, torch.tensor([0]), [], 5, 12)
    assert drafts.ids_SK.tolist() == [[5, 6, 7, 5, 6]] and drafts.num_valid_S.tolist() == [5]


def test_the_drafter_that_guesses_nothing():
    drafts = Drafter().propose(state_of([[1, 2]], remaining=[5]), torch.tensor([0]), [], 4, 2)
    assert drafts.ids_SK.shape == (1, 4) and drafts.num_valid_S.tolist() == [0]
