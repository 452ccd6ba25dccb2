"""Engines that screen the lm_head against one that reads all of it: tokens and log-probabilities, bit for bit."""

import random
from dataclasses import replace

import pytest
import torch
from tests.engine.support.exactness import Model, build, run

from eyas.base.settings.config import EngineConfig
from eyas.base.types import Request, SamplingParams
from eyas.engine.startup import memory
from eyas.engine.startup.load import load_model
from eyas.engine.startup.warm_up import warm_up
from eyas.kernels.layouts.dense import TILE_ROWS, BlockedMatrix

pytestmark = pytest.mark.gpu

NUM_REQUESTS = 40
SETUPS = [
    {"drafter": "none", "concurrency": 1},
    {"drafter": "none", "concurrency": 8},
    {"drafter": "eagle3", "draft_tokens": 3, "concurrency": 1},
    {"drafter": "eagle3", "draft_tokens": "auto", "concurrency": 4},
    {"drafter": "ngram", "draft_tokens": 5, "concurrency": 2},  # 12 rows, and 6 where one is left
]


@pytest.fixture(params=["as it is", "near ties"])
def model(request, monkeypatch):
    """The bundled model; in the second case its vocabulary has pairs of rows that are equal or nearly so."""
    monkeypatch.setattr(memory, "LEAST_SCREENED", 0)
    loaded = load_model(EngineConfig(device="cuda"))
    weights = loaded.weights
    if request.param == "near ties":
        lm_head = weights.lm_head_VH.plain()
        noise = torch.randn(lm_head[::2].shape, generator=torch.Generator("cuda").manual_seed(0), device="cuda")
        lm_head[1::2] = (lm_head[::2] * (1 + noise * 2.0**-9)).to(lm_head.dtype)
        assert (lm_head[1::2] == lm_head[::2]).float().mean() > 0.5
        weights = replace(weights, lm_head_VH=BlockedMatrix.pack(lm_head))
    return Model(config=loaded.config, weights=weights, head=loaded.head)


def requests_of(model, *, with_wishes):
    rng, requests = random.Random(11), []
    for number in range(NUM_REQUESTS):
        params = SamplingParams(
            temperature=rng.choice((0, 0.3, 1, 2)), seed=number, max_tokens=rng.randint(30, 48), ignore_eos=True
        )
        if with_wishes and number % 5 == 0:
            params = replace(params, logprobs=3, top_p=0.9)
        prompt = tuple(rng.randrange(model.config.vocab_size) for _ in range(rng.randint(5, 80)))
        requests.append(Request(request_id=str(number), prompt_ids=prompt, params=params))
    return requests


@pytest.mark.parametrize("with_wishes", [False, True])
def test_answers_are_those_of_the_whole_lm_head(model, with_wishes):
    requests = requests_of(model, with_wishes=with_wishes)
    whole = build(model, whole_lm_head=True, concurrency=1)
    assert whole.runner.screen is None
    expected = run(whole, requests)
    for setup in SETUPS:
        core = build(model, **setup)
        warm_up(core)
        space = core.runner.screen.space
        assert run(core, requests) == expected, setup
        num_tiles = model.config.vocab_size // TILE_ROWS
        print(f"\n{setup}: {int(space.wanted[0])} of {num_tiles} tiles in the last small round")
        if not with_wishes:
            assert int(space.wanted[0]) < num_tiles
