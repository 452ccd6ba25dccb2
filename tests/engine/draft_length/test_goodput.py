"""The best numbers of drafts for given costs and chances: against every other choice, and for any costs."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.engine.draft_length.goodput import best_choice, rate_choice

MAX_DRAFTS = 3
chance = st.floats(0.01, 0.99)


def array(*shape, elements):
    return st.lists(elements, min_size=int(np.prod(shape)), max_size=int(np.prod(shape))).map(
        lambda values: np.array(values).reshape(shape)
    )


@st.composite
def situations(draw):
    """Costs that never fall, as (fixed, growth [passes, rows]); chances; caps."""
    count = draw(st.integers(1, 3))
    growth = draw(array(MAX_DRAFTS + 1, count * MAX_DRAFTS + 1, elements=st.floats(0, 1)))
    growth = growth.cumsum(0).cumsum(1)
    chances = draw(array(count, MAX_DRAFTS, elements=chance))
    caps = np.array(draw(st.lists(st.integers(0, 5), min_size=count, max_size=count)))
    return draw(st.floats(0.1, 10)), growth - growth[0, 0], chances, caps


def rate(choice):
    return choice.tokens / choice.seconds


def expected(chances, limits):
    return sum(1 + sum(np.prod(row[: i + 1]) for i in range(limit)) for row, limit in zip(chances, limits, strict=True))


@settings(deadline=None, max_examples=40)
@given(situations())
def test_nothing_is_faster(situation):
    fixed, growth, chances, caps = situation
    seconds = fixed + growth
    choice = best_choice(seconds, chances, caps)
    assert choice.tokens == pytest.approx(expected(chances, choice.limits))
    assert choice.seconds == seconds[choice.head_drafts, sum(choice.limits)]
    assert max(choice.limits) <= choice.head_drafts
    for limits in itertools.product(*(range(min(cap, MAX_DRAFTS) + 1) for cap in caps)):
        other = expected(chances, limits) / seconds[max(limits), sum(limits)]
        assert other <= rate(choice) * (1 + 1e-9)


@settings(deadline=None, max_examples=40)
@given(situations())
def test_caps_are_never_exceeded(situation):
    fixed, growth, chances, caps = situation
    choice = best_choice(fixed + growth, chances, caps)
    assert all(0 <= limit <= min(cap, MAX_DRAFTS) for limit, cap in zip(choice.limits, caps, strict=True))


@settings(deadline=None, max_examples=40)
@given(situations(), st.data())
def test_more_acceptance_is_never_slower(situation, data):
    fixed, growth, chances, caps = situation
    better = chances + data.draw(array(*chances.shape, elements=st.floats(0, 1))) * (1 - chances)
    before, after = (best_choice(fixed + growth, c, caps) for c in (chances, better))
    assert rate(after) >= rate(before) * (1 - 1e-12)


@settings(deadline=None, max_examples=60)
@given(situations(), st.floats(0.01, 0.99))
def test_cheaper_drafts_never_make_it_commit_less(situation, cheaper):
    """Both choices are best for their costs: E/(a + ch) >= E'/(a + ch') and E'/(a + c'h') >= E/(a + c'h).

    The product of the two says (c - c')(h' - h) >= 0: what is cheaper a draft spends no less on drafts.
    """
    fixed, growth, chances, caps = situation
    dear, cheap = (best_choice(fixed + factor * growth, chances, caps) for factor in (1, cheaper))
    spent = [growth[choice.head_drafts, sum(choice.limits)] for choice in (dear, cheap)]
    assert spent[1] >= spent[0] - 1e-9
    assert cheap.tokens >= dear.tokens - 1e-9


@settings(deadline=None, max_examples=40)
@given(situations())
def test_nothing_is_drafted_where_it_costs_too_much(situation):
    fixed, _, chances, caps = situation
    seconds = np.full((MAX_DRAFTS + 1, chances.size + 1), 100 * fixed)
    seconds[0, 0] = fixed
    choice = best_choice(seconds, chances, caps)
    assert not any(choice.limits) and choice.head_drafts == 0 and choice.tokens == len(chances)


@settings(deadline=None, max_examples=40)
@given(situations(), st.data())
def test_each_sequence_looks_up_where_more_is_expected_of_it(situation, data):
    fixed, growth, chances, caps = situation
    lookup = data.draw(array(*chances.shape, elements=chance))
    choice = best_choice(fixed + growth, chances, caps, lookup)
    assert rate(choice) >= rate(best_choice(fixed + growth, chances, caps)) * (1 - 1e-12) or choice.head_drafts == 0
    again = rate_choice(fixed + growth, chances, np.array(choice.limits), lookup, np.array(choice.by_lookup))
    assert again.tokens == pytest.approx(choice.tokens)
    assert again.head_drafts <= choice.head_drafts


def test_a_draft_that_is_free_is_looked_up():
    """Passes of the head cost, rows do not."""
    seconds = 1 + 0.5 * np.arange(4)[:, None] + np.zeros((4, 7))
    head, lookup = np.full((2, 3), 0.6), np.array([[0.7] * 3, [0.1] * 3])
    choice = best_choice(seconds, head, np.array([9, 9]), lookup)
    assert choice.limits == (3, 3) and choice.by_lookup == (True, True) and choice.head_drafts == 0
    choice = best_choice(seconds * [[1], [0.2], [0.2], [0.2]], head, np.array([9, 9]), lookup)
    assert choice.by_lookup == (True, False) and choice.head_drafts > 0


def test_equal_drafts_go_to_the_first_sequences():
    seconds = np.array([[1.0, 2, 3, 4, 5]] + [[1.0, 1, 1, 9, 9]] * 2)
    assert best_choice(seconds, np.full((2, 2), 0.5), np.array([9, 9])).limits == (1, 1)
    seconds = np.array([[1.0, 2, 3, 4, 5]] + [[1.0, 1, 9, 9, 9]] * 2)
    assert best_choice(seconds, np.full((2, 2), 0.5), np.array([9, 9])).limits == (1, 0)


def test_a_row_is_worth_the_tokens_that_its_time_brings():
    """At 1.9 tokens in 1.5 seconds a row of 0.5 seconds is worth 0.63 tokens."""
    seconds = np.array([[1.0, 9], [1.0, 1.5]])
    choice = best_choice(seconds, np.array([[0.9]]), np.array([1]))
    assert choice.limits == (1,) and choice.min_chance == pytest.approx(1.9 / 1.5 * 0.5)


def plain_choice(seconds, chances, caps, lookup):
    """The plain formula: every number of head drafts with the most likely drafts first, all in one array."""
    num_sequences, num_drafts = chances.shape
    is_allowed, best = np.arange(num_drafts) < caps[:, None], None
    for head_drafts in range(num_drafts + 1):
        survival = chances.cumprod(1) * is_allowed * (np.arange(num_drafts) < head_drafts)
        looked_up = lookup.cumprod(1) * is_allowed
        survival = np.where((looked_up.sum(1) > survival.sum(1))[:, None], looked_up, survival)
        order = np.argsort(-survival, axis=None, kind="stable")
        tokens = num_sequences + np.concatenate(([0.0], survival.flat[order].cumsum()))
        rates = tokens / seconds[head_drafts]
        rows = int(rates.argmax())
        if best is None or rates[rows] > best[0]:
            limits = np.bincount(order[:rows] // num_drafts, minlength=num_sequences)
            best = rates[rows], tuple(limits.tolist()), head_drafts, tokens[rows]
    return best


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32), st.sampled_from([1, 2, 17]), st.sampled_from([1, 2, 3]))
def test_the_choice_is_that_of_the_plain_formula(seed, num_sequences, decimals):
    """With equal chances too, of which the first sequences get their rows."""
    rng = np.random.default_rng(seed)
    chances, lookup = rng.random((2, num_sequences, MAX_DRAFTS)).round(decimals).clip(0.01, 0.99)
    lookup[rng.random(num_sequences) < rng.random()] = 0.0
    caps = rng.integers(0, MAX_DRAFTS + 3, num_sequences)
    seconds = rng.random() + rng.random((MAX_DRAFTS + 1, chances.size + 1)).cumsum(0).cumsum(1) * rng.choice([0, 0.01])
    _, limits, head_drafts, tokens = max(
        (plain_choice(seconds, chances, caps, given) for given in (lookup, np.zeros_like(lookup))), key=lambda c: c[0]
    )
    choice = best_choice(seconds, chances, caps, lookup)
    assert (choice.limits, choice.head_drafts) == (limits, head_drafts)
    assert choice.tokens == pytest.approx(tokens)
