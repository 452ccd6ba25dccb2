"""Speculation never changes a token: the covering array, and a model that a non-invariant operation must fail."""

from dataclasses import replace

import pytest
from tests.engine.support.exactness import (
    FACTORS,
    covering_array,
    differing,
    near_tie,
    reference_of,
    requests_for,
)

from eyas.kernels.reference.layers.roles import PLAIN_OPS

ORACLE_SETUP = {"drafter": "oracle", "draft_tokens": 3, "concurrency": 4}


def greedy(requests):
    """Without penalties too, so that nothing but the near ties decides."""
    plain = {"temperature": 0, "repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0}
    return [replace(request, params=replace(request.params, **plain)) for request in requests]


def all_under_each(requests):
    """Every request under every set-up of the covering array."""
    return [(setup, requests) for setup in covering_array()]


def some_under_each(requests):
    """Every set-up with one request more than it has slots: those that know the fewest of its values.

    So every request meets every value of every factor.
    """
    met = {request.request_id: [] for request in requests}
    shares = []
    for setup in covering_array():
        known = {name: sum(value in met[name] for value in setup.items()) for name in met}
        by_need = sorted(requests, key=lambda r: (known[r.request_id], len(met[r.request_id])))
        share = by_need[: setup["concurrency"] + 1]
        for request in share:
            met[request.request_id] += setup.items()
        shares.append((setup, share))
    assert all(set(values) == {(name, v) for name in FACTORS for v in FACTORS[name]} for values in met.values())
    return shares


def compare(model, requests, shares, *, min_tokens=64):
    """The requests of each share together under its set-up, each against itself alone, cold, without drafts."""
    references = {kv_dtype: reference_of(model, requests, kv_dtype=kv_dtype) for kv_dtype in FACTORS["kv_dtype"]}
    assert all(len(tokens) >= min_tokens for each in references.values() for tokens, _, _ in each.values())
    assert references["auto"] != references["fp8"]
    totals = dict.fromkeys(("num_draft_tokens", "num_accepted_tokens", "num_preemptions", "num_cached_tokens"), 0)
    num_compared = 0
    for setup, share in shares:
        reference = references[setup["kv_dtype"]]
        own = {(r.request_id, choice): reference[r.request_id, choice] for r in share for choice in range(r.params.n)}
        wrong, stats = differing(model, share, own, setup)
        assert not wrong, f"{setup} changes {wrong}"
        num_compared += len(own)
        for name in totals:
            totals[name] += getattr(stats, name)
    print(f"{num_compared} answers equal, tokens and logprobs, under {len(shares)} set-ups; {totals}")
    assert all(totals.values()), f"something was never exercised: {totals}"


def test_covering_array_covers_every_pair():
    rows, names = covering_array(), list(FACTORS)
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            assert {(row[a], row[b]) for row in rows} == {(x, y) for x in FACTORS[a] for y in FACTORS[b]}


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("model", "num_requests"),
    [
        ("random_model", 6),
        pytest.param("demo_model", 6, marks=pytest.mark.slow),
    ],
)
def test_a_few_requests(model, num_requests, request):
    """Every pair of values and every request with every value; `make bench-exact` has every request under every set-up.

    `make test-slow` has the demo model too.
    """
    model = request.getfixturevalue(model)
    requests = requests_for(model, num_requests, min_tokens=24, max_prompt=120)
    compare(model, requests, some_under_each(requests), min_tokens=24)


@pytest.mark.parametrize("model", ["random_model", pytest.param("demo_model", marks=pytest.mark.slow)])
def test_near_ties_survive_speculation_and_catch_a_non_invariant_operation(model, request):
    """Rounding alone flips few tokens; among near ties it flips nearly every answer, so luck hides nothing."""
    model = request.getfixturevalue(model)
    requests = greedy(requests_for(model, 8, seed=5, min_tokens=32, max_prompt=120))
    model = near_tie(model)
    reference = reference_of(model, requests)
    assert differing(model, requests, reference, ORACLE_SETUP)[0] == []
    wrong, _ = differing(model, requests, reference, ORACLE_SETUP | {"row_ops": PLAIN_OPS})
    print(f"plain matrix products change {len(wrong)} of {len(reference)} answers of the near-tie model")
    assert len(wrong) > len(reference) // 2


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("model", ["random_model", "demo_model"])
def test_exact_200_requests(model, request):
    model = request.getfixturevalue(model)
    requests = requests_for(model, 200, seed=1)
    compare(model, requests, all_under_each(requests))
