"""A model that computes NaN for one token: the request ends, and nobody else notices, now or later."""

from dataclasses import replace

import pytest
import torch
from tests.engine.support.exactness import build, run

from eyas.base.types import FinishReason, Request, SamplingParams
from eyas.engine.drafters.base import Drafter
from eyas.engine.round.types import Drafts
from eyas.engine.sampling.masking import RowMasks
from eyas.engine.sampling.sampler import sample_rows
from eyas.engine.step.core import MODEL_FAILED
from eyas.kernels.reference.rounds.failures import NO_TOKEN_LEFT, NOT_FINITE

POISON = 77
SETUPS = [
    {"drafter": "none", "lag": 0},
    {"drafter": "eagle3", "draft_tokens": 4, "lag": 1},
    pytest.param({"drafter": "ngram", "draft_tokens": 4, "lag": 0, "chunk_tokens": 64}, marks=pytest.mark.slow),
]


@pytest.fixture(scope="module", params=["nan", pytest.param("inf", marks=pytest.mark.slow)])
def broken_model(request, random_model):
    """The embedding of one token is not finite."""
    embed = random_model.weights.embed_VH.clone()
    embed[POISON] = float(request.param)
    return replace(random_model, weights=replace(random_model.weights, embed_VH=embed))


def ask(name, prompt, **params):
    settings = {"temperature": 0.8, "seed": 5, "max_tokens": 30, "ignore_eos": True} | params
    # -100 keeps the healthy ones from drawing the poisoned token
    settings.setdefault("logit_bias", {POISON: -100.0})
    return Request(request_id=name, prompt_ids=tuple(prompt), params=SamplingParams(**settings))


def prompt_of(length, seed):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 500, (length,), generator=generator).tolist()
    return [token if token != POISON else 1 for token in ids]


HEALTHY = [ask(f"good {index}", prompt_of(length, index), logprobs=2) for index, length in enumerate((9, 70, 150))]


def everything_given_back(core):
    core.scheduler.check()
    return core.scheduler.full.num_held == core.scheduler.sliding.num_held == 0


def outcome(core, requests):
    """Results by id, and the errors of those that failed."""
    events = []
    for request in requests:
        core.add(request, events.append)
    results = {}
    while not core.is_idle:
        core.step()
    for event in events:
        tokens, logprobs = results.setdefault(event.request_id, ([], []))
        tokens += event.token_ids
        logprobs += event.logprobs or ()
    return results, {event.request_id: event.error for event in events if event.finish is FinishReason.ERROR}


@pytest.fixture(scope="module")
def alone(broken_model):
    """What each healthy request says alone, by id."""
    return {r.request_id: outcome(build(broken_model, concurrency=1), [r])[0][r.request_id] for r in HEALTHY}


@pytest.mark.parametrize("setup", SETUPS)
def test_a_poisoned_prompt_ends_its_request_and_no_other(broken_model, alone, setup):
    """With pages so few that the next requests get those of the failed ones."""
    core = build(broken_model, concurrency=3, page_size=8, memory="tight", **setup)
    bad = [ask("bad 0", [POISON]), ask("bad 1", [*prompt_of(100, 8), POISON, *prompt_of(40, 9)])]
    for _ in range(2):
        results, errors = outcome(core, [HEALTHY[0], bad[0], HEALTHY[1], bad[1], HEALTHY[2]])
        assert errors == {"bad 0": MODEL_FAILED, "bad 1": MODEL_FAILED}
        assert {name: results[name] for name in alone} == alone
        assert results["bad 0"] == results["bad 1"] == ([], [])
        assert everything_given_back(core)


@pytest.mark.parametrize("setup", SETUPS)
def test_a_poisoned_token_in_the_answer_ends_it_behind_that_token(broken_model, alone, setup):
    core = build(broken_model, concurrency=3, **setup)
    bad = ask("bad", prompt_of(20, 3), temperature=0, logit_bias={POISON: 100.0}, logprobs=0)
    results, errors = outcome(core, [bad, HEALTHY[1]])
    assert errors == {"bad": MODEL_FAILED}
    assert results["bad"][0] == [POISON] and len(results["bad"][1]) == 1
    assert results["good 1"] == alone["good 1"]
    assert everything_given_back(core)


class PoisonDrafter(Drafter):
    """Guesses the poisoned token everywhere."""

    def propose(self, state, slots_S, sequences, num_drafts, max_length):
        ids = torch.full((len(slots_S), num_drafts), POISON)
        return Drafts(ids, (state.remaining_S[slots_S] - 1).clamp(0, num_drafts))


def test_a_poisoned_draft_changes_nothing(broken_model, alone):
    core = build(broken_model, drafter="ngram", draft_tokens=3, concurrency=3)
    core.runner.drafter = PoisonDrafter()
    assert outcome(core, HEALTHY) == (alone, {})
    assert core.stats().num_draft_tokens > 0 == core.stats().num_accepted_tokens


def test_what_is_not_finite_is_told_from_what_is_forbidden(random_model):
    """Rows without a finite score: by the model, by a mask, by both; and a sound one beside them."""
    core = build(random_model, drafter="none", concurrency=4)
    for request in [ask(str(index), prompt_of(9, index)) for index in range(4)]:
        core.add(request, lambda event: None)
    core.step()
    sequences, state = core.scheduler.running, core.runner.state
    slots_S = torch.tensor([sequence.slot for sequence in sequences])
    logits_SRV = torch.randn(4, 1, state.vocab_size)
    logits_SRV[0] = logits_SRV[2] = float("-inf")
    words_CRW = torch.zeros(2, 1, -(-state.vocab_size // 32), dtype=torch.int32)
    masks = RowMasks(torch.tensor([1, 2]), words_CRW)
    none_SK = slots_S.new_zeros(4, 0)
    sampled = sample_rows(logits_SRV, state.length_S[slots_S], none_SK, state, sequences, slots_S, masks)
    assert sampled.failed_SR.flatten().tolist() == [NOT_FINITE, NO_TOKEN_LEFT, NOT_FINITE, 0]


def test_pages_of_a_failed_prompt_are_not_found_again(random_model):
    """A fault that passes: the same prompt is computed anew and answered as ever."""
    core, prompt = build(random_model, concurrency=2, page_size=8), prompt_of(60, 4)
    expected = run(build(random_model, concurrency=2, page_size=8), [ask("r", prompt)])
    healthy = core.runner.target.weights
    embed = healthy.embed_VH.clone()
    embed[prompt[3]] = float("nan")
    core.runner.target.weights = replace(healthy, embed_VH=embed)
    assert outcome(core, [ask("r", prompt)])[1] == {"r": MODEL_FAILED}
    core.runner.target.weights = healthy
    assert core.scheduler.full.find(page_key(core, prompt)) is None
    assert run(core, [ask("r", prompt)]) == expected
    assert core.scheduler.full.find(page_key(core, prompt)) is not None
    assert core.stats().num_cached_tokens == 0


def page_key(core, prompt):
    from eyas.engine.sequences.pages import page_keys

    return page_keys(prompt, core.scheduler.config.page_size)[0]
