"""Prompts beside rounds: what they take, what rounds take next to them, and that drafting fits the whole load."""

import random

import pytest
from tools.drafting.machines import H200
from tools.drafting.report import BATCHES, MAX_DRAFTS
from tools.drafting.simulate import Sequences, auto, run

from eyas.engine.draft_length.choice import FixedDraftLength, RoundOutcome, RoundTimer
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


@pytest.mark.parametrize("share", [0.02, 0.3, 0.95, 1.0])
def test_what_prompts_add_to_a_round_is_what_no_token_brings(share):
    """The fixed part of passes, without the line along which it grows with the tokens of a round."""
    costs = PromptCosts()
    for step in range(2000):
        costs.count(2048 * (int((step + 1) * share) - int(step * share)))
    costs.observe(2048, 0.065)
    fixed_s = costs.seconds(1) - (costs.seconds(2) - costs.seconds(1))

    def passes(tokens: float) -> float:  # in a round that commits this multiple of the usual tokens
        return 1 - (1 - share) ** tokens

    slope = (passes(1 + 1e-6) - passes(1 - 1e-6)) / 2e-6
    assert costs.per_round_s == pytest.approx(fixed_s * (share - slope), rel=0.1, abs=2e-5)


def _loop(policy, batch, chance, prompt_tokens, *, seed):
    work = Sequences(batch, lambda *_: chance, length=256)
    return run(policy, H200, work, num_tokens=3000 * batch, seed=seed, prompt_tokens=prompt_tokens)


@pytest.mark.parametrize(
    ("batch", "chance", "prompt_tokens"),
    [
        (4, 0.8, 1024),
        *(
            pytest.param(batch, chance, tokens, marks=pytest.mark.slow)
            for batch in (4, 16)
            for chance in (0.3, 0.6, 0.8)
            for tokens in (1024, 4096)
            if (batch, chance, tokens) != (4, 0.8, 1024)
        ),
    ],
)
def test_in_a_closed_loop_it_is_hardly_slower_than_the_best_static_number(batch, chance, prompt_tokens):
    """As much is drafted as without prompts, whose time is the same for all numbers of drafts (SIMULATED)."""
    seeds = (1, 2)
    best = max(
        sum(_loop(FixedDraftLength(k), batch, chance, prompt_tokens, seed=seed) for seed in seeds)
        for k in (0, 1, 2, 3, 5, MAX_DRAFTS)
    )
    policies = (auto(H200, MAX_DRAFTS, BATCHES, seed=seed) for seed in seeds)
    ours = [
        _loop(policy, batch, chance, prompt_tokens, seed=seed) for policy, seed in zip(policies, seeds, strict=True)
    ]
    assert sum(ours) > 0.97 * best


def test_the_start_up_leaves_out_steps_with_prompts():
    timer = RoundTimer([0], [0])
    for num_prompt_rows in (64, 0, 64, 0, 64):
        timer.observe(RoundOutcome((), Timing(1, 1, 0, 1.0 + num_prompt_rows, num_prompt_rows)))
    assert timer.timings == [Timing(1, 1, 0, 1.0)]
