"""The choice of the number of drafts on simulated machines: it finds the fastest and follows changes."""

import random

import pytest

from eyas.engine.draft_length import AutoDraftLength, FixedDraftLength

MAX_DRAFTS = 5


def rounds(policy, num_rounds, *, accept, cost, num_sequences=1, seed=0):
    """The choices of `num_rounds` rounds where drafts are accepted with chance `accept` and K drafts cost `cost(K)`."""
    rng, chosen = random.Random(seed), []
    for _ in range(num_rounds):
        num_drafts = policy.choose(num_sequences)
        chosen.append(num_drafts)
        policy.observe_cost(num_sequences, num_drafts, cost(num_drafts) * rng.uniform(0.9, 1.1))
        num_accepted = 0
        while num_accepted < num_drafts and rng.random() < accept:
            num_accepted += 1
        if num_drafts:
            policy.observe_accepted(num_drafts, num_accepted)
    return chosen


def fastest(accept, cost):
    def speed(num_drafts):
        return sum(accept**i for i in range(num_drafts + 1)) / cost(num_drafts)

    return sorted(range(MAX_DRAFTS + 1), key=speed)[-1]


def linear(slope):
    return lambda num_drafts: 1 + slope * num_drafts


@pytest.mark.parametrize(
    ("accept", "slope"), [(0.9, 0.02), (0.8, 0.15), (0.7, 0.5), (0.3, 0.4), (0.05, 0.1), (0.5, 1.0)]
)
def test_the_fastest_number_is_chosen_most_of_the_time(accept, slope):
    """Or a neighbour that is as fast to a few percent."""
    chosen = rounds(AutoDraftLength(MAX_DRAFTS), 1500, accept=accept, cost=linear(slope))[500:]

    def speed(num_drafts):
        return sum(accept**i for i in range(num_drafts + 1)) / linear(slope)(num_drafts)

    mean = sum(map(speed, chosen)) / len(chosen)
    assert mean >= 0.95 * speed(fastest(accept, linear(slope)))


def test_drafts_that_are_never_accepted_are_not_drafted():
    chosen = rounds(AutoDraftLength(MAX_DRAFTS), 1500, accept=0.0, cost=linear(0.05))[300:]
    assert chosen.count(0) > 0.9 * len(chosen)


def test_drafting_starts_when_acceptance_becomes_good_and_stops_when_it_becomes_bad():
    policy = AutoDraftLength(MAX_DRAFTS)
    assert rounds(policy, 800, accept=0.02, cost=linear(0.2))[-100:].count(0) > 80
    chosen = rounds(policy, 30_000, accept=0.95, cost=linear(0.05), seed=1)[-100:]
    assert sum(k >= 4 for k in chosen) > 80
    chosen = rounds(policy, 3_000, accept=0.02, cost=linear(0.2), seed=2)[-100:]
    assert chosen.count(0) > 80


def test_batch_sizes_have_costs_of_their_own():
    """Drafting that pays alone does not pay where checking many rows costs as much as computing them."""
    policy = AutoDraftLength(MAX_DRAFTS)
    for seed in range(20):
        rounds(policy, 60, accept=0.6, cost=linear(0.02), num_sequences=1, seed=seed)
        rounds(policy, 60, accept=0.6, cost=linear(1.0), num_sequences=8, seed=seed)
    assert policy.best(1) >= 3
    assert policy.best(8) == 0


def test_every_number_is_tried_before_one_is_believed():
    chosen = rounds(AutoDraftLength(3), 4 * AutoDraftLength.TRIALS, accept=0.5, cost=linear(0.1))
    assert sorted(chosen) == sorted(list(range(4)) * AutoDraftLength.TRIALS)


def test_one_slow_round_changes_little():
    policy = AutoDraftLength(MAX_DRAFTS)
    rounds(policy, 400, accept=0.9, cost=linear(0.02))
    before = policy.best(1)
    policy.observe_cost(1, before, 1e6)
    rounds(policy, 60, accept=0.9, cost=linear(0.02))
    assert policy.best(1) >= 4


def test_choices_stay_within_bounds():
    for size in (1, 2, 5):
        assert set(rounds(AutoDraftLength(size), 600, accept=0.7, cost=linear(0.1))) <= set(range(size + 1))


def test_fixed_is_fixed():
    assert set(rounds(FixedDraftLength(3), 20, accept=0.5, cost=linear(0.1))) == {3}
