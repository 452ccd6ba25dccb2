"""Penalties, bias and draws in an engine against transformers' processors, one step after the other."""

import pytest
import torch
import transformers
from tests.engine.support.exactness import build, run
from tests.model.support.forward import logits_of

from eyas.base.types import Request, SamplingParams
from eyas.kernels.reference.rounds.noise import gumbel

PROMPT = (9, 9, 4, 30, 31, 32, 9)
CLEAR = 1e-3  # a token chosen by less than this margin may fall either way in other summation orders
SETTINGS = {
    "greedy": {"temperature": 0},
    "repetition": {"temperature": 0, "repetition_penalty": 1.5},
    "less_repetition": {"temperature": 0, "repetition_penalty": 0.7},
    "frequency": {"temperature": 0, "frequency_penalty": 1.2},
    "presence": {"temperature": 0, "presence_penalty": 1.7},
    "negative": {"temperature": 0, "presence_penalty": -1.0, "frequency_penalty": -0.3},
    "bias": {"temperature": 0, "logit_bias": {9: 4.0, 4: -100.0, 77: 3.5}},
    "random": {"temperature": 0.9},
    "filters": {"temperature": 1.2, "top_k": 30, "top_p": 0.9, "min_p": 0.02},
    "everything": {
        "temperature": 0.8,
        "top_k": 40,
        "top_p": 0.95,
        "min_p": 0.01,
        "repetition_penalty": 1.3,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.4,
        "logit_bias": {9: 2.0, 100: 2.5},
    },
}


def scores_of(logits, params, output):
    """vLLM's order: repetition over prompt and output, frequency, presence, bias; temperature, top-k, top-p, min-p."""
    scores = logits[None].clone()
    if params.repetition_penalty != 1:
        scores = transformers.RepetitionPenaltyLogitsProcessor(params.repetition_penalty)(
            torch.tensor([PROMPT + output]), scores
        )
    for token in set(output):
        scores[0, token] -= params.frequency_penalty * output.count(token) + params.presence_penalty
    for token, bias in params.logit_bias.items():
        scores[0, token] += bias
    if params.temperature:
        scores = scores / params.temperature
        scores = transformers.TopKLogitsWarper(params.top_k)(None, scores) if params.top_k else scores
        scores = transformers.TopPLogitsWarper(params.top_p)(None, scores)
        scores = transformers.MinPLogitsWarper(params.min_p)(None, scores)
        key = [torch.tensor([value]) for value in (params.seed, 0, len(PROMPT) + len(output))]
        scores = scores + gumbel(*key, vocab_size=len(logits))
    return scores[0]


@pytest.mark.parametrize("drafter", [pytest.param("none", marks=pytest.mark.slow), "ngram"])
@pytest.mark.parametrize("name", SETTINGS)
def test_every_token_is_the_one_that_plain_steps_choose(random_model, name, drafter):
    params = SamplingParams(**SETTINGS[name], seed=11, max_tokens=40, ignore_eos=True)
    core = build(random_model, drafter=drafter, draft_tokens=0 if drafter == "none" else 4, concurrency=1)
    tokens = tuple(run(core, [Request(request_id="r", prompt_ids=PROMPT, params=params)])["r", 0][0])
    with torch.inference_mode():
        logits = logits_of(random_model.config, random_model.weights, torch.tensor([PROMPT + tokens]))[0]
    compared = 0
    for step, token in enumerate(tokens):
        scores = scores_of(logits[len(PROMPT) - 1 + step], params, tokens[:step])
        best = scores.topk(2)
        if best.values[0] - best.values[1] > CLEAR:
            assert token == best.indices[0], f"token {step}"
            compared += 1
    assert compared >= 36


def test_one_request_in_a_batch_does_not_penalise_another(random_model):
    """Nor does the request that had its slot before."""
    plain = Request(request_id="a", prompt_ids=PROMPT, params=SamplingParams(temperature=0, max_tokens=24))
    heavy = SamplingParams(temperature=0, max_tokens=30, repetition_penalty=2.0, logit_bias={7: 50.0}, min_tokens=20)
    alone = run(build(random_model, concurrency=1), [plain])["a", 0]
    core = build(random_model, concurrency=2)
    others = [Request(request_id=name, prompt_ids=PROMPT[1:], params=heavy) for name in "bcd"]
    assert run(core, [others[0], plain, *others[1:]])["a", 0] == alone
    assert run(core, [plain])["a", 0] == alone
