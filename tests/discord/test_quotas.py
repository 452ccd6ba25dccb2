"""Answers at once and tokens a day of each person."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from eyas.discord.quotas import DAY_S, Quotas, day_of
from eyas.discord.settings.schema import Limits

NOON = 20_000 * DAY_S + DAY_S // 2


def test_answers_at_once():
    quotas = Quotas(Limits(answers_at_once=2))
    assert quotas.enter(1, NOON) is None and quotas.enter(1, NOON) is None
    assert quotas.enter(1, NOON) == (
        "2 answers are being written for you already. Ask again when one has ended, or stop one."
    )
    assert quotas.enter(2, NOON) is None
    assert quotas.enter(1, NOON, is_operator=True) is None
    quotas.leave(1, 10, NOON)
    assert quotas.enter(1, NOON) is not None
    quotas.leave(1, 10, NOON)
    assert quotas.enter(1, NOON) is None


def test_tokens_of_a_day_are_free_again_at_midnight_in_utc():
    quotas = Quotas(Limits(tokens_a_day=1000))
    assert quotas.enter(1, NOON) is None
    assert quotas.leave(1, 1500, NOON) == 1500
    midnight = 20_001 * DAY_S
    assert quotas.enter(1, NOON) == (
        f"You have used 1,500 tokens today, of 1,000 a day. Ask again at <t:{midnight}:t> (<t:{midnight}:R>)."
    )
    assert quotas.enter(2, NOON) is None
    assert quotas.enter(1, midnight - 1) is not None
    assert quotas.enter(1, midnight) is None
    assert quotas.used(1, midnight) == 0


def test_operators_and_no_limit():
    quotas = Quotas(Limits(answers_at_once=None, tokens_a_day=1))
    quotas.enter(1, NOON)
    quotas.leave(1, 5, NOON)
    assert quotas.enter(1, NOON) and quotas.enter(1, NOON, is_operator=True) is None
    quotas.limits = Limits(answers_at_once=None, tokens_a_day=None)
    assert all(quotas.enter(1, NOON) is None for _ in range(100))


def test_tokens_of_before_a_restart_count_on_their_day_only():
    quotas = Quotas(Limits(tokens_a_day=1000))
    quotas.restore(day_of(NOON), {1: 1000})
    assert quotas.enter(1, NOON) is not None
    quotas = Quotas(Limits(tokens_a_day=1000))
    quotas.restore(day_of(NOON) - 1, {1: 1000})
    assert quotas.enter(1, NOON) is None


def test_a_clock_that_is_put_back_frees_nothing():
    quotas = Quotas(Limits(tokens_a_day=1000))
    quotas.enter(1, NOON)
    quotas.leave(1, 1000, NOON)
    assert quotas.enter(1, NOON - DAY_S) is not None


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 3), st.integers(0, 400), st.integers(0, 30_000)), max_size=60))
def test_neither_limit_is_passed_by_more_than_the_answers_that_run(steps):
    """Against counts kept in the plainest way."""
    quotas, now = Quotas(Limits(answers_at_once=2, tokens_a_day=1000)), NOON
    running, used = Counter(), Counter()
    for begins, person, tokens, later in steps:
        now += later
        if begins:
            is_free = running[person] < 2 and used[person, now // DAY_S] < 1000
            assert (quotas.enter(person, now) is None) == is_free
            running[person] += is_free
        elif running[person]:
            running[person] -= 1
            used[person, now // DAY_S] += tokens
            assert quotas.leave(person, tokens, now) == used[person, now // DAY_S]
