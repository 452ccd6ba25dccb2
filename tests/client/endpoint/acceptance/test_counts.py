"""Counts and their differences: any sequence of rounds, split anywhere, restarted anywhere."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.client.endpoint.acceptance.counts import (
    Counts,
    Reading,
    accepted_of_rounds,
    accepted_of_tested,
    difference,
    mean_length,
    total,
)

MAX_DRAFTS = 4
ROUNDS = st.lists(st.integers(0, MAX_DRAFTS), max_size=60)  # drafts that each accepted


def counts_of(rounds):
    """What an engine would have counted, by the definitions, one round after the other."""
    by_position = tuple(sum(accepted > i for accepted in rounds) for i in range(MAX_DRAFTS))
    drafted = MAX_DRAFTS * len(rounds)
    return Counts.of_positions(len(rounds), by_position, source="/metrics", drafted=drafted)


def reading(rounds, **more):
    return Reading(source="/metrics", counts=counts_of(rounds), **more)


@given(ROUNDS)
def test_histogram_and_positions_say_the_same(rounds):
    counts = counts_of(rounds)
    assert counts.histogram == tuple(rounds.count(k) for k in range(MAX_DRAFTS + 1))
    assert counts.accepted == sum(rounds)
    assert counts == Counts.of_histogram(counts.histogram, source="/metrics", drafted=counts.drafted)
    if rounds:
        assert counts.length == pytest.approx(sum(accepted + 1 for accepted in rounds) / len(rounds))


@given(ROUNDS, ROUNDS)
def test_the_difference_of_two_readings_is_what_came_between(before, between):
    assert difference(reading(before), reading(before + between)) == counts_of(between)


@given(ROUNDS.filter(bool), ROUNDS)
def test_a_counter_that_fell_means_a_restart(before, after):
    found = difference(reading(before), reading(after))
    fell = len(after) < len(before) or sum(after) < sum(before)
    assert isinstance(found, str) == fell
    if fell:
        assert found.startswith("the server has started again in between: its count of ")


@given(ROUNDS, ROUNDS)
def test_a_restart_that_the_counters_have_outgrown_is_seen_by_the_start(before, more):
    found = difference(reading(before, started=(100.0,)), reading(before + more, started=(160.0,)))
    assert found == "the server has started again in between"


@given(ROUNDS, ROUNDS)
def test_what_reading_empties_is_not_subtracted(before, after):
    drained = [reading(rounds, is_drained=True) for rounds in (before, after)]
    assert difference(*drained) == counts_of(after)


def test_what_is_not_offered_has_its_reason():
    nothing = Reading(source="/metrics", not_offered="its /metrics cannot be read")
    assert difference(reading([]), nothing) == "not offered: its /metrics cannot be read"
    assert difference(nothing, reading([1])) == "not offered: its /metrics cannot be read"


def test_positions_that_were_not_there_before_their_first_count():
    first = Counts(rounds=0, accepted=0, drafted=0, source="/metrics")
    found = difference(Reading(source="/metrics", counts=first), reading([2, 0]))
    assert (found.by_position, found.histogram) == ((1, 1, 0, 0), (1, 0, 1, 0, 0))
    unknown = Counts(rounds=3, accepted=2, drafted=9, source="/metrics")  # of older rounds
    found = difference(Reading(source="/metrics", counts=unknown), reading([2, 0, 0, 3]))
    assert (found.rounds, found.by_position) == (1, None)


@given(st.lists(ROUNDS.filter(bool), min_size=1, max_size=5))
def test_weighted_by_token_and_by_request(requests):
    items = [counts_of(rounds) for rounds in requests]
    assert total(items) == counts_of([accepted for rounds in requests for accepted in rounds])
    assert mean_length(items) == pytest.approx(sum(item.length for item in items) / len(items))


def test_a_long_answer_weighs_more_by_token_only():
    """The two views of vllm-project/vllm#42690."""
    long, short = counts_of([3] * 90), counts_of([0] * 10)
    assert total([long, short]).length == pytest.approx(3.7)
    assert mean_length([long, short]) == pytest.approx(2.5)


def test_nothing_counted_has_no_length():
    assert Counts(rounds=0, accepted=0).length is None
    assert (total([]), mean_length([])) == (None, None)
    assert total([Counts(rounds=0, accepted=0)]) is None


@given(ROUNDS.filter(bool))
def test_acceptance_by_position_conditional_and_not(rounds):
    counts = counts_of(rounds)
    for i, (share, of_tested) in enumerate(zip(accepted_of_rounds(counts), accepted_of_tested(counts), strict=True)):
        tested = [accepted for accepted in rounds if accepted >= i]
        assert share == pytest.approx(sum(accepted > i for accepted in rounds) / len(rounds))
        assert of_tested == (pytest.approx(sum(a > i for a in tested) / len(tested)) if tested else None)
