"""Rounds in which a head drafts for some sequences and others look theirs up, and chains that end at a cut."""

import math
from dataclasses import replace
from itertools import count, product

import numpy as np
import pytest
from tests.engine.support.exactness import Scripted, build, random_prompts, reference_of, run
from tests.engine.support.graphs import keep_keys

from eyas.base.settings.config import EngineConfig
from eyas.base.types import Request, SamplingParams
from eyas.engine.draft_length.choice import FixedDraftLength
from eyas.engine.draft_length.confidence import NUM_LEVELS, Cut
from eyas.engine.draft_length.goodput import DraftChoice
from eyas.engine.startup.build import MAX_BACKLOG
from eyas.engine.step.runner import PROMPT_STAGES
from eyas.engine.step.speculate import FINISH, VERIFY
from eyas.local import load_model

MOST = 5
THRESHOLD, CHANCES = math.log(0.04), [math.log((level + 0.5) / NUM_LEVELS) for level in range(NUM_LEVELS)]


class Mixed(FixedDraftLength):
    """In turn: everybody looks up; some do; nobody does. Keeps what became of the rounds."""

    looks_up = True

    def __init__(self, *, cuts=False):
        super().__init__(MOST)
        self._cuts, self._number, self.outcomes = cuts, count(), []

    def choose(self, slots, caps, matches=None, **_):
        number = next(self._number)
        by_lookup = tuple((slot + number) % 3 > 0 if number % 3 else number % 2 > 0 for slot in slots)
        limits = tuple(MOST if looks_up else 1 + number % MOST for looks_up in by_lookup)
        head = [limit for limit, looks_up in zip(limits, by_lookup, strict=True) if not looks_up]
        return DraftChoice(limits, max(head, default=0), by_lookup, 0.0, 0.0, 0.0)

    def cut(self, slots, choice):
        return Cut(tuple(slots), np.array([[THRESHOLD, *CHANCES]] * len(slots))) if self._cuts else Cut()

    def observe(self, outcome):
        self.outcomes.append(outcome)


def requests_of(model, **params):
    prompts = random_prompts(4, model.config.vocab_size)
    return [
        Request(request_id=str(i), prompt_ids=tuple(prompt), params=SamplingParams(temperature=1, seed=i, **params))
        for i, prompt in enumerate(prompts)
    ]


@pytest.mark.parametrize("lag", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_head_and_lookup_in_one_round(random_model, lag):
    """No token changes, and what the device finds is what the host, which is compared with a search, predicts."""
    requests = requests_of(random_model, max_tokens=40, logit_bias={7: 90.0, 9: 90.0})  # few words repeat themselves
    core = build(random_model, drafter="eagle3", draft_tokens=MOST, concurrency=3, lag=lag)
    core.draft_length = policy = Mixed()
    assert run(core, requests, check=True) == reference_of(random_model, requests)
    tried = [of_one for outcome in policy.outcomes for of_one in outcome.tried if of_one.asked]
    found = [of_one for of_one in tried if of_one.by_lookup and of_one.verified]
    assert len(found) > 10 and 0 < sum(of_one.accepted > 0 for of_one in found) < len(found)
    assert all(of_one.verified == of_one.asked for of_one in found)
    assert all(of_one.lookups[0].is_right == (of_one.accepted > 0) for of_one in found)
    assert not any(of_one.lookups for of_one in tried if of_one.by_lookup and not of_one.verified)
    assert all(len(of_one.levels) == (0 if of_one.by_lookup else of_one.asked) for of_one in tried)


def test_any_two_draft_lengths_in_turn_need_no_graph_of_their_own(random_model):
    """Graphs are for one length of draft each, whatever came before it: capturing for all pairs would never end."""
    core = build(random_model, drafter="eagle3", draft_tokens=MOST, concurrency=1)
    stages = keep_keys(core)
    schedule = [*(number for number in range(1, MOST + 1) for _ in range(2))]
    pairs = [number for pair in product(range(1, MOST + 1), repeat=2) for number in pair]
    core.draft_length = policy = Scripted(schedule + pairs)
    request = requests_of(random_model, max_tokens=300)[0]
    core.add(request, lambda event: None)
    while len(policy.outcomes) < len(schedule):
        core.step()
    known = set(stages.keys)
    while len(policy.outcomes) < len(schedule) + len(pairs):
        core.step()
    assert stages.keys == known and {key[0] for key in known} == {"catch up", "chain", VERIFY, FINISH, *PROMPT_STAGES}


@pytest.mark.parametrize("drafter", ["none", "eagle3"])
def test_answers_that_had_ended_do_not_count_in_the_time_of_a_round(random_model, drafter):
    """The host learns that they ended one round late. Of a round that was all theirs there is no time at all."""
    core = build(random_model, drafter=drafter, draft_tokens=2, concurrency=2, lag=1)
    core.draft_length = policy = Scripted([0])
    short, long = requests_of(random_model, max_tokens=5)[0], requests_of(random_model, max_tokens=9)[1]
    for request in (short, long):
        core.add(request, lambda event: None)
    while not core.is_idle:
        core.step()
    alone = [outcome.timing[:3] for outcome in policy.outcomes if outcome.timing is not None]
    assert alone == 4 * [(2, 2, 0)] + 4 * [(1, 1, 0)] and policy.outcomes[-1].timing is None


def test_rounds_in_which_experts_are_counted_are_not_timed(random_model):
    core = build(random_model, drafter="eagle3", draft_tokens=MOST, concurrency=1)
    core.draft_length, core.expert_counts = Mixed(), []
    run(core, requests_of(random_model, max_tokens=12)[:1])
    assert core.expert_counts and not any(outcome.timing for outcome in core.draft_length.outcomes)


def test_the_head_keeps_up_while_others_draft(random_model):
    """So that it has seen every token when it drafts again."""
    core = build(random_model, drafter="eagle3", draft_tokens=MOST, concurrency=2)
    core.draft_length = policy = Mixed()
    policy.choose = lambda slots, caps, _, **__: DraftChoice(
        (MOST,) * len(slots), 0, (True,) * len(slots), 0.0, 0.0, 0.0
    )
    for request in requests_of(random_model, max_tokens=MAX_BACKLOG + 20)[:2]:
        core.add(request, lambda event: None)
    state, most = core.runner.state, 0
    while not core.is_idle:
        core.step()
        most = max(most, int(((state.length_S - state.head_length_S) * state.live_S).max()))
    assert 0 < most <= MAX_BACKLOG


@pytest.mark.slow
def test_a_chain_ends_where_it_is_not_worth_a_row(random_model):
    requests = requests_of(random_model, max_tokens=20)
    core = build(random_model, drafter="eagle3", draft_tokens=MOST, concurrency=3)
    core.draft_length = policy = Mixed(cuts=True)
    policy.choose = lambda slots, caps, _, **__: FixedDraftLength.choose(policy, slots, caps)
    assert run(core, requests) == reference_of(random_model, requests)
    tried = [of_one for outcome in policy.outcomes for of_one in outcome.tried]
    for of_one in tried:
        worth = 0
        while worth < of_one.asked and sum(CHANCES[level] for level in of_one.levels[: worth + 1]) > THRESHOLD:
            worth += 1
        assert len(of_one.levels) == of_one.asked and of_one.verified == worth
    assert len({of_one.verified for of_one in tried}) > 2


@pytest.mark.gpu
@pytest.mark.parametrize("cuts", [False, True])
def test_in_graphs(cuts):
    """The bundled model on a GPU: the same tokens and log-probabilities as without drafts, whoever drafts."""
    model = load_model(EngineConfig(model="demo", device="cuda"))
    requests = requests_of(model, max_tokens=40, logprobs=0, logit_bias={7: 60.0, 9: 60.0})
    requests += [
        replace(request, request_id=f"plain {request.request_id}", params=replace(request.params, logit_bias={}))
        for request in requests
    ]
    expected = run(model.build(drafter="none", concurrency=1, context=256).core, requests)
    core = model.build(draft_tokens=MOST, concurrency=3, context=256).core
    core.draft_length = policy = Mixed(cuts=cuts)
    assert run(core, requests) == expected
    tried = [of_one for outcome in policy.outcomes for of_one in outcome.tried if of_one.asked]
    assert any(of_one.accepted for of_one in tried if of_one.by_lookup)
    assert any(of_one.verified < of_one.asked for of_one in tried if not of_one.by_lookup) or not cuts
