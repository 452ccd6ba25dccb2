"""Prompts beside rounds: what they take, what rounds take next to them, and that drafting fits the whole load."""

import random

import pytest
from tools.drafting.machines import H200
from tools.drafting.report import BATCHES, MAX_DRAFTS
from tools.drafting.simulate import Sequences, auto, expected_tokens, run, static_rate

from eyas.engine.draft_length.choice import RoundOutcome, RoundTimer
from eyas.engine.draft_length.prompt_costs import PromptCosts
from eyas.engine.draft_length.step_costs import Timing


def test_a_line_is_found():
    costs, rng = PromptCosts(), random.Random(0)
    assert not costs.is_known and costs.seconds(500) == 0
    for _ in range(200):
        rows = rng.choice((64, 500, 1000, 2048))
        costs.observe(rows, H200.prompt_seconds(rows) * rng.gauss(1, 0.03) * rng.choice((1,) * 49 + (4,)))
    for rows in (64, 1000, 2048):
        assert costs.seconds(rows) == pytest.approx(H200.prompt_seconds(rows), rel=0.1)
    assert costs.seconds(0) == 0


def test_steps_of_one_size_say_what_that_size_takes():
    costs = PromptCosts()
    for _ in range(50):
        costs.observe(2048, 0.065)
    assert costs.seconds(2048) == pytest.approx(0.065)
    assert 0.01 < costs.seconds(64) < 0.03
    costs.observe(2048, -0.01)  # the round alone was expected to take longer
    assert 0.06 < costs.seconds(2048) < 0.065


def test_a_first_step_that_seemed_to_take_no_time_is_no_bound():
    costs = PromptCosts()
    costs.observe(2048, -0.01)
    assert costs.is_known and costs.seconds(2048) == 0
    for _ in range(200):
        costs.observe(2048, 0.065)
    assert costs.seconds(2048) == pytest.approx(0.065, rel=0.05)


@pytest.mark.parametrize("slower", [1.25, 0.8])
def test_what_drafts_cost_is_learned_beside_prompts(slower):
    """At start-up rounds with drafts seemed to take more, or less, than they do beside a chunk in every step."""
    policy, rng = auto(H200, MAX_DRAFTS, BATCHES), random.Random(0)
    before = policy.costs.table(16).copy()
    for number in range(1500):
        drafts = number // 4 % 4
        rows = 16 * (1 + drafts)
        seconds = before[drafts, rows - 16] * (slower if drafts else 1) + H200.prompt_seconds(2048)
        policy.observe(RoundOutcome((), Timing(16, rows, drafts, seconds * rng.gauss(1, 0.02), 2048)))
    after = policy.costs.table(16)
    for drafts in (1, 2, 3):  # what all rounds take is not to be told from what the chunk takes
        truth = slower * before[drafts, 16 * drafts] - before[0, 0]
        found, at_first = (table[drafts, 16 * drafts] - table[0, 0] for table in (after, before))
        assert abs(found - truth) < 1e-3 < abs(at_first - truth) / 2


EVERY_STEP, EVERY_FOURTH = (2048,), (2048, 0, 0, 0)


@pytest.mark.parametrize(
    ("chance", "prompt_rows"),
    [
        (0.3, EVERY_STEP),
        *(pytest.param(chance, EVERY_STEP, marks=pytest.mark.slow) for chance in (0.6, 0.8)),
        *(pytest.param(chance, EVERY_FOURTH, marks=pytest.mark.slow) for chance in (0.3, 0.6, 0.8)),
    ],
)
def test_beside_prompts_it_is_hardly_slower_than_the_best_static_number(chance, prompt_rows):
    """More is drafted than without prompts, and as much between them as in steps that read some (SIMULATED)."""
    rates = [static_rate(H200, 16, [chance], k, prompt_rows=prompt_rows) for k in range(MAX_DRAFTS + 1)]
    num_tokens = int(1500 * 16 * expected_tokens(chance, rates.index(max(rates))))
    policy, work = auto(H200, MAX_DRAFTS, BATCHES), Sequences(16, lambda *_: chance)
    assert run(policy, H200, work, num_tokens=num_tokens, prompt_rows=prompt_rows) > 0.97 * max(rates)


def test_the_start_up_leaves_out_steps_with_prompts():
    timer = RoundTimer([0], [0])
    for num_prompt_rows in (64, 0, 64, 0, 64):
        timer.observe(RoundOutcome((), Timing(1, 1, 0, 1.0 + num_prompt_rows, num_prompt_rows)))
    assert timer.timings == [Timing(1, 1, 0, 1.0)]
