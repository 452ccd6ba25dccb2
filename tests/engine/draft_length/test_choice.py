"""The choice of drafts on simulated machines: never slower than none, hardly slower than the best static number."""

import random
from itertools import pairwise

import numpy as np
import pytest
from tools.drafting.machines import H200, SPARK
from tools.drafting.report import BATCHES, CELLS, MAX_DRAFTS, measure
from tools.drafting.simulate import Copies, Sequences, auto, run, static_rate

from eyas.engine.draft_length.choice import AutoDraftLength, FixedDraftLength, RoundOutcome, Tried
from eyas.engine.draft_length.goodput import best_choice
from eyas.engine.draft_length.step_costs import Timing
from eyas.engine.sequences.ngram_index import LookupMatch

# Some of them, most under `slow`: `python -m tools.drafting.report` runs all, on both machines and with several seeds.
MOST = [cell for cell in CELLS if cell.batch == 1 or cell.chances in ((0.1,), (0.7,), (0.9, 0.1))]
FEW = [cell for cell in MOST if cell.chances == (0.9, 0.1) or (cell.batch == 1 and cell.chances in ((0.1,), (0.7,)))]
EAGLE_ON_CHAT = (0.62, 0.58, 0.56, 0.6, 0.5)  # measured on the 120b model, vLLM issue 42764


def play(policy, machine, num_rounds, *, chances=0.0, num_sequences=1, seed=0, room=1000):
    """Drafts of each round. `chances` is a number, or a function of the round."""
    rng, chosen, slots = random.Random(seed), [], range(num_sequences)
    for number in range(num_rounds):
        chance = chances(number) if callable(chances) else chances
        choice = policy.choose(slots, [room] * num_sequences)
        tried = []
        for slot, limit in zip(slots, choice.limits, strict=True):
            count = 0
            while count < limit and rng.random() < chance:
                count += 1
            tried.append(Tried(slot, limit, count, limit))
        rows = num_sequences + sum(choice.limits)
        seconds = machine.seconds(num_sequences, rows, choice.head_drafts) * rng.gauss(1, 0.03)
        timing = Timing(num_sequences, rows, choice.head_drafts, seconds)
        policy.observe(RoundOutcome(tried, timing))
        chosen.append(choice)
    return chosen


def mean_drafts(choices):
    return sum(sum(choice.limits) / len(choice.limits) for choice in choices) / len(choices)


def each_cell(cells):
    cases = [cell if cell in FEW else pytest.param(cell, marks=pytest.mark.slow) for cell in cells]
    return pytest.mark.parametrize("cell", cases, ids=lambda cell: cell.name)


@each_cell(MOST)
def test_never_slower_than_none_or_a_static_number(cell):
    """At least 2,000 rounds each (SIMULATED)."""
    result = measure(H200, cell, 1)
    assert result.rates[0] >= 0.98 * result.none_rate
    assert result.rates[0] >= 0.97 * result.best_rate
    assert result.probes <= 0.01


class Blind(Sequences):
    """The head is as sure of every draft as of any other."""

    def draft(self, *args):
        draft = super().draft(*args)
        return draft._replace(levels=[0] * args[2])


@each_cell([cell for cell in MOST if cell.batch == 1 and cell.chances != (0.1,)])
def test_a_confidence_that_says_nothing_costs_nothing(cell):
    result = measure(H200, cell, 1, kind=Blind)
    assert result.rates[0] >= 0.98 * result.none_rate
    assert result.rates[0] >= 0.97 * result.best_rate


@pytest.mark.parametrize(
    ("machine", "batch", "gain"),
    [*(pytest.param(H200, *one, marks=pytest.mark.slow) for one in ((4, 1.08), (8, 1.1))), (SPARK, 2, 1.04)],
)
def test_sequences_that_differ_draft_differently(machine, batch, gain):
    """Half of them at 0.9, half at 0.2: no static number for all is as fast."""

    def rate(num_drafts):
        tokens = sum(0.9**i + 0.2**i for i in range(num_drafts + 1)) * batch / 2
        return tokens / machine.seconds(batch, batch * (num_drafts + 1), num_drafts)

    work = Sequences(batch, lambda slot, _: 0.9 if slot % 2 else 0.2)
    best = max(map(rate, range(MAX_DRAFTS + 1)))
    assert run(auto(machine, MAX_DRAFTS, BATCHES), machine, work, num_tokens=4000 * batch) > gain * best


@pytest.mark.slow
def test_confidence_pays_where_it_knows_something():
    """Drafts that differ, of which the head knows; cut where they are not worth their row."""
    work = Sequences(4, lambda *_: 0.8, confident=True)
    without, with_it = (
        run(auto(H200, MAX_DRAFTS, BATCHES), H200, work, num_tokens=12_000, use_confidence=use) for use in (False, True)
    )
    assert with_it > 1.01 * without


def test_on_a_spark_three_drafts_lose_and_at_most_one_is_chosen():
    """With the acceptance that heads have: 62 % of first drafts, 2.2 tokens a round with three of them."""
    tokens = [1.0]
    survival = 1.0
    for chance in EAGLE_ON_CHAT:
        survival *= chance
        tokens.append(tokens[-1] + survival)
    rates = [tokens[k] / SPARK.seconds(1, k + 1, k) for k in range(6)]
    assert rates[3] < rates[0] < rates[1] == max(rates)
    for chance, most in ((0.1, 0), (0.3, 0), (0.5, 1), (0.6, 1)):
        policy = auto(SPARK, MAX_DRAFTS, BATCHES)
        play(policy, SPARK, 600, chances=chance)
        tail = play(policy, SPARK, 300, chances=chance, seed=1)
        assert mean_drafts(tail) < most + 0.2
        assert max(static_rate(SPARK, 1, [chance], k) for k in range(2)) >= static_rate(SPARK, 1, [chance], 3)


@pytest.mark.parametrize("num_sequences", [1, 4, pytest.param(16, marks=pytest.mark.slow)])
def test_drafting_stops_and_starts_with_acceptance(num_sequences):
    """Stops within some tens of rounds. Without drafts only probes can see a change, which takes longer."""
    policy = auto(H200, MAX_DRAFTS, BATCHES)
    for slot in range(num_sequences):
        policy.enter(slot)
    assert mean_drafts(play(policy, H200, 300, chances=0.9, num_sequences=num_sequences)[-50:]) > 3
    assert mean_drafts(play(policy, H200, 120, chances=0.1, num_sequences=num_sequences)[-70:]) < 0.3
    play(policy, H200, 300, chances=0.1, num_sequences=num_sequences)
    assert mean_drafts(play(policy, H200, 400, chances=0.9, num_sequences=num_sequences)[-50:]) > 3


@pytest.mark.parametrize(("chance", "num_sequences"), [(0.0, 1), (0.2, 4), (0.5, 1), (0.9, 2)])
def test_probes_stay_within_their_budget(chance, num_sequences):
    """Against what every round lost by what it should have cost, for any beginning of the run."""
    policy = auto(H200, MAX_DRAFTS, BATCHES)
    for choices in (200, 200, 400):
        play(policy, H200, choices, chances=chance, num_sequences=num_sequences)
        assert 0 < policy.probes_s <= policy.PROBE_SHARE * policy.elapsed_s


def test_without_drafts_probes_go_on():
    policy = auto(H200, MAX_DRAFTS, BATCHES)
    play(policy, H200, 300, chances=0.05)
    drafted = [any(choice.limits) for choice in play(policy, H200, 1000, chances=0.05)]
    rounds = [number for number, is_drafted in enumerate(drafted) if is_drafted]
    assert 8 < len(rounds) < 60 and max(b - a for a, b in pairwise(rounds)) < 200


def test_nothing_is_probed_that_cannot_pay():
    """Not even a draft that is always right is worth a round of twice the time."""

    class Dear:
        def seconds(self, num_sequences, num_rows, head_drafts):
            return 1.0 + 1.2 * head_drafts

    policy = auto(Dear(), MAX_DRAFTS, (1,))
    assert not any(any(choice.limits) for choice in play(policy, Dear(), 500, chances=1.0))


def test_rounds_without_drafts_are_timed_again():
    """Where drafts pay, what they are compared with would grow old."""
    policy = auto(H200, MAX_DRAFTS, BATCHES)
    drafts = [choice.limits[0] for choice in play(policy, H200, 1200, chances=0.9)]
    assert 2 <= drafts.count(0) <= 12


def test_a_number_that_looked_dear_at_start_up_gets_another_chance():
    """Of the numbers below the one in use none but 0 would ever be timed again."""

    class Stairs:
        def seconds(self, num_sequences, num_rows, head_drafts):
            return (1.0, 1.1, 1.2, 1.3, 1.7, 2.4, 3.1, 3.8)[head_drafts]

    policy = auto(Stairs(), MAX_DRAFTS, (1,))
    policy.costs.learn(
        Timing(1, k + 1, k, Stairs().seconds(1, k + 1, k) * (1.2 if 0 < k < 4 else 1.0)) for k in range(MAX_DRAFTS + 1)
    )
    assert mean_drafts(play(policy, Stairs(), 600, chances=0.9)[-200:]) == pytest.approx(3, abs=0.2)


def test_drafts_that_are_dearer_than_they_were_at_start_up_are_given_up():
    class Slower:
        def seconds(self, num_sequences, num_rows, head_drafts):
            return H200.seconds(num_sequences, num_rows, head_drafts) * (1.6 if head_drafts else 1)

    policy = auto(H200, MAX_DRAFTS, BATCHES)
    assert mean_drafts(play(policy, H200, 200, chances=0.6)[-50:]) > 0.8
    assert mean_drafts(play(policy, Slower(), 400, chances=0.6)[-100:]) < 0.2


@pytest.mark.parametrize("room", [0, 1, 2])
def test_no_more_is_drafted_than_can_be_accepted(room):
    policy = auto(H200, MAX_DRAFTS, BATCHES)
    for choice in play(policy, H200, 200, chances=0.95, num_sequences=2, room=room):
        assert max(choice.limits) <= room


def test_the_same_rounds_give_the_same_choices():
    one, two = (play(auto(H200, 5, BATCHES), H200, 300, chances=0.6, num_sequences=3) for _ in range(2))
    assert one == two


def test_without_any_timing_it_learns_by_itself():
    """No start-up, no guess of the scale: what runs is timed, and what pays is found."""
    policy = AutoDraftLength(4)
    play(policy, H200, 600, chances=0.8)
    assert 2 <= mean_drafts(play(policy, H200, 100, chances=0.8, seed=1)) <= 4
    policy = AutoDraftLength(4)
    play(policy, SPARK, 600, chances=0.1)
    assert mean_drafts(play(policy, SPARK, 100, chances=0.1, seed=1)) < 0.2


@pytest.mark.parametrize(("machine", "batch"), [(H200, 1), pytest.param(SPARK, 4, marks=pytest.mark.slow)])
def test_answers_that_copy_are_looked_up(machine, batch):
    """Passages of 60 tokens from the prompt, 20 of their own between them: what the head cannot draft as fast."""
    work = Copies(batch, lambda *_: 0.6)
    without, with_it = (
        run(auto(machine, MAX_DRAFTS, BATCHES, has_lookup=has), machine, work, num_tokens=3_000 * batch)
        for has in (False, True)
    )
    assert with_it > 1.2 * without


def test_where_nothing_repeats_nothing_is_looked_up():
    work, rates = Sequences(2, lambda *_: 0.6), []
    for has_lookup in (False, True):
        policy = auto(H200, MAX_DRAFTS, BATCHES, has_lookup=has_lookup)
        rates.append(run(policy, H200, work, num_tokens=2_000))
    assert rates[0] == rates[1]


def test_lookup_alone():
    """An n-gram drafter takes no passes of a head, and nothing needs to be tried to know when it pays."""
    policy = AutoDraftLength(4, auto(H200, 4, BATCHES).costs, has_head=False, has_lookup=True)
    assert run(policy, H200, Copies(1, lambda *_: 0.0), num_tokens=4_000) > 1.5 * static_rate(H200, 1, [0.0], 0)
    assert policy.probes_s < 0.002 * policy.elapsed_s  # rounds without drafts, to time them again
    choices = [policy.choose((0,), (1000,), [LookupMatch(match, 0)]) for match in (0, 100)]
    assert [choice.limits for choice in choices] == [(0,), (4,)] and choices[1].by_lookup == (True,)


def test_a_heads_first_pass_after_a_pause_is_not_what_drafting_costs():
    """It catches up with all that it has not seen."""
    policy = auto(H200, MAX_DRAFTS, BATCHES)
    for _ in range(60):
        policy.observe(RoundOutcome([Tried(0, 0, 0, 0)], Timing(1, 1, 0, H200.seconds(1, 1, 0))))
        policy.observe(RoundOutcome([Tried(0, 1, 1, 1)], Timing(1, 2, 1, 3 * H200.seconds(1, 2, 1))))
    assert policy.costs.table(1)[1, 1] == pytest.approx(H200.seconds(1, 2, 1), rel=0.05)


def test_steps_with_other_work_teach_acceptance_only():
    policy = auto(H200, MAX_DRAFTS, BATCHES)
    before = policy.costs.table(1).copy()
    for _ in range(50):
        policy.observe(RoundOutcome([Tried(0, 2, 0, 2)], None))
    assert (policy.costs.table(1) == before).all()
    assert not any(policy.choose((0,), (1000,)).limits)


def test_choices_follow_the_table():
    """The policy adds probes to `best_choice`, nothing else."""
    policy = auto(H200, MAX_DRAFTS, BATCHES)
    choice = policy.choose((0, 1), (1000, 3))
    assert choice == best_choice(policy.costs.table(2), policy.head.chances(np.array([0, 1])), np.array([1000, 3]))


def test_the_timer_times_every_number():
    policy = AutoDraftLength(5)
    timer = policy.timer(every=False)
    play(timer, H200, 30, num_sequences=1)
    play(timer, H200, 20, num_sequences=2)
    assert timer.is_done(1) and timer.is_done(2) and not timer.is_done(4)
    shapes = {timing[:3] for timing in timer.timings}
    assert shapes == {(1, k + 1, k) for k in range(6)} | {(2, 2 * k + 2, k) for k in (0, 1, 3, 5)}
    for timing in timer.timings:
        assert timing.seconds == pytest.approx(H200.seconds(*timing[:3]), rel=0.12)
    policy.learn(timer.timings)
    assert policy.timer(every=False) is None


def test_the_timer_times_every_number_for_several_sequences_where_first_uses_are_slow():
    timer = AutoDraftLength(5).timer(every=True)
    play(timer, H200, 30, num_sequences=2)
    assert timer.is_done(2) and {timing[:3] for timing in timer.timings} == {(2, 2 * k + 2, k) for k in range(6)}


def test_fixed_is_fixed():
    policy = FixedDraftLength(3)
    assert {choice.limits for choice in play(policy, H200, 20, num_sequences=2, room=1)} == {(3, 3)}
