"""Speculation never changes a token on a GPU: requests under a covering array of set-ups, each against itself alone."""

from dataclasses import replace

import pytest
import torch
from tests.engine.support.exactness import Model, build, covering_array, differing, requests_for, run

from eyas.base.bundled import DEMO
from eyas.base.settings.config import EngineConfig
from eyas.base.tokens.tokenizer import Tokenizer
from eyas.engine.startup.load import load_model
from eyas.model.checkpoints.device_layout import add_copies, num_copies, remove_copies

pytestmark = pytest.mark.gpu

NUM_REQUESTS, MIN_TOKENS = 100, 40
NUM_FREE = 80  # of them; a step with one of the others waits for its masks, and runs as other graphs
MANY = 16  # conversations at once, of which every request is one under each number of drafts
FACTORS = {
    "drafter": ("eagle3", "ngram", "oracle"),
    "draft_tokens": (0, 1, 2, 3, 4, 5, "auto"),
    "concurrency": (1, 5, MANY),
    "cache": ("cold", "warm"),
    "memory": ("plenty", "tight"),
    "lag": (0, 1),
    "chunk_tokens": (37, 64, 8192),
    "kv_dtype": ("auto", "fp8"),
}


@pytest.fixture(scope="module")
def gpu_model():
    """The bundled model and its head, packed for the kernels."""
    loaded = load_model(replace(EngineConfig(), device="cuda"))
    codec, tokenizer_json = Tokenizer.load(DEMO), DEMO / "tokenizer.json"
    return Model(
        config=loaded.config, weights=loaded.weights, head=loaded.head, codec=codec, tokenizer_json=tokenizer_json
    )


def gpu_requests(model):
    """No two begin alike, so that one after the other they find nothing in the cache."""
    requests = []
    for index, request in enumerate(requests_for(model, NUM_REQUESTS, min_tokens=MIN_TOKENS)):
        params = request.params
        if index < NUM_FREE:
            params = replace(params, grammar=None, allowed_token_ids=None, bad_words=(), min_tokens=MIN_TOKENS)
        requests.append(replace(request, prompt_ids=(300 + index, *request.prompt_ids), params=params))
    return requests


def one_after_the_other(model, requests, kv_dtype):
    """Without drafts; only the choices of one request are there at once."""
    results = {}
    for num_choices in {request.params.n for request in requests}:
        core = build(model, concurrency=num_choices, kv_dtype=kv_dtype)
        for request in requests:
            if request.params.n == num_choices:
                results |= run(core, [request])
        assert num_choices > 1 or core.stats().num_cached_tokens == 0
    return results


def test_100_requests(gpu_model):
    """All of them under each number of drafts, some of them under every pair of settings."""
    requests = gpu_requests(gpu_model)
    references = {kv_dtype: one_after_the_other(gpu_model, requests, kv_dtype) for kv_dtype in FACTORS["kv_dtype"]}
    assert all(len(tokens) >= MIN_TOKENS for each in references.values() for tokens, _, _ in each.values())
    assert references["auto"] != references["fp8"]
    totals = dict.fromkeys(("num_draft_tokens", "num_accepted_tokens", "num_preemptions", "num_cached_tokens"), 0)
    num_compared, first, wrong, whole = 0, 0, {}, set()
    setups = covering_array(FACTORS)
    for setup in setups:
        concurrency, reference = setup["concurrency"], references[setup["kv_dtype"]]
        share = [requests[(first + i) % NUM_REQUESTS] for i in range(5 * concurrency)]
        if concurrency == MANY:
            share = requests
            whole.add(setup["draft_tokens"])
        first += len(share)
        own = {(r.request_id, choice): reference[r.request_id, choice] for r in share for choice in range(r.params.n)}
        changed, stats = differing(gpu_model, share, own, setup)
        if changed:
            wrong[tuple(setup.items())] = changed
        num_compared += len(own)
        for name in totals:
            totals[name] += getattr(stats, name)
    assert whole == set(FACTORS["draft_tokens"])
    print(f"\n{num_compared} answers compared, tokens and logprobs, under {len(setups)} set-ups; {totals}")
    assert not wrong, wrong
    assert all(totals.values()), f"something was never exercised: {totals}"


def with_wide_rows(weights):
    """Queries, keys, values and outputs of scales that differ by some orders of magnitude."""

    def widened(matrix):
        scales = torch.randn(matrix.data[:, :1, :, :1].shape, device=matrix.data.device).exp()
        return replace(matrix, data=(matrix.data * scales).bfloat16())

    layers = (replace(layer, qkv_NH=widened(layer.qkv_NH), o_HN=widened(layer.o_HN)) for layer in weights.layers)
    return replace(weights, layers=tuple(layers))


@pytest.mark.parametrize("change", [remove_copies, with_wide_rows], ids=["demo", "wide rows"])
@pytest.mark.parametrize(
    "setup", [{"draft_tokens": 0}, {"drafter": "eagle3", "draft_tokens": 3}], ids=["none", "eagle3"]
)
def test_12_bits_change_no_token(gpu_model, change, setup):
    """Tokens and log-probabilities, with rounds of fewer and of more rows than the copies are read for."""
    requests = gpu_requests(gpu_model)[:40]
    plain = replace(gpu_model, weights=remove_copies(change(gpu_model.weights)))
    copied = replace(plain, weights=add_copies(plain.weights))
    assert num_copies(copied.weights) == 2 * plain.config.num_layers
    for concurrency in (1, 4, MANY):
        expected, ours = (run(build(model, concurrency=concurrency, **setup), requests) for model in (plain, copied))
        assert len(expected) >= len(requests) and ours == expected
