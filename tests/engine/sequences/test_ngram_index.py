"""What prompt lookup would have drafted, against a plain search; and how it is judged."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.drafters.test_drafter import looked_up

from eyas.engine.sequences.ngram_index import FIRST_GUESSES, LookupCurve, LookupMatch, LookupOutcome, NgramIndex


@given(st.lists(st.integers(0, 2), max_size=40), st.integers(0, 40), st.sampled_from(((2, 5), (5, 5), (3, 4))))
def test_what_is_looked_up_is_what_a_search_finds(tokens, start, match):
    start = min(start, len(tokens))
    text = NgramIndex(tokens[:start], range(match[1], match[0] - 1, -1))
    for end in range(start, len(tokens)):
        lookups = text.extend([tokens[end]])
        expected = looked_up(tokens[:end], 1, *match)
        assert [f.is_right for f in lookups] == [e == tokens[end] for e in expected]
        assert all(f.match >= match[0] for f in lookups)


def test_a_match_grows_while_it_is_right():
    passage = list(range(30))
    text = NgramIndex([*passage, 99, *passage[:5]], (5,))
    assert text.extend(passage[5:9]) == [LookupOutcome(match, True) for match in (5, 6, 7, 8)]
    assert text.extend([77]) == [LookupOutcome(9, False)] and text.match == 0
    assert text.extend(passage[:5]) == []  # nothing to say
    assert text.match == 5


def test_chances_are_learned_by_the_length_of_the_match():
    curve, rng = LookupCurve(4), random.Random(0)
    for _ in range(3000):
        curve.observe([LookupOutcome(5, rng.random() < 0.3), LookupOutcome(20, rng.random() < 0.9)])
    chances = curve.chances([LookupMatch(5, 0), LookupMatch(20, 0), LookupMatch(0, 0), LookupMatch(0, 8)])
    assert chances[0, 0] == pytest.approx(0.3, abs=0.08) and chances[1] == pytest.approx(0.9, abs=0.05)
    assert not chances[2:].any()
    assert chances[0, 3] == FIRST_GUESSES[4]  # a match of 8 by then


def test_tokens_that_the_host_has_not_seen_must_be_right_too():
    curve = LookupCurve(3)
    now, later = curve.chances([LookupMatch(32, 0), LookupMatch(32, 5)])
    assert later[0] == pytest.approx(now[0] ** 6) and later[1:] == pytest.approx(now[1:])
    assert np.isfinite(curve.chances([LookupMatch(10**6, 16)])).all()
