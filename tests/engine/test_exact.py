"""Speculation never changes a token: the covering array, and a model that a non-invariant operation must fail."""

from dataclasses import replace

import pytest
from tests.engine.exactness import (
    FACTORS,
    covering_array,
    differing,
    make_requests,
    near_tie,
    reference_of,
)

from eyas.model.batch import Tiles

ORACLE_SETUP = {"drafter": "oracle", "draft_tokens": 3, "concurrency": 4}
PLAIN = Tiles(dense=None, experts=None)


def greedy(requests):
    """Without penalties too, so that nothing but the near ties decides."""
    plain = {"temperature": 0, "repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0}
    return [replace(request, params=replace(request.params, **plain)) for request in requests]


def compare_all(model, requests):
    reference = reference_of(model, requests)
    assert all(len(tokens) >= 64 for tokens, _, _ in reference.values())
    totals = dict.fromkeys(("num_draft_tokens", "num_accepted_tokens", "num_preemptions", "num_cached_tokens"), 0)
    for setup in covering_array():
        wrong, stats = differing(model, requests, reference, setup)
        assert not wrong, f"{setup} changes {wrong}"
        for name in totals:
            totals[name] += getattr(stats, name)
    print(f"{len(reference)} answers equal, tokens and logprobs, under {len(covering_array())} set-ups; {totals}")
    assert all(totals.values()), f"something was never exercised: {totals}"


def test_covering_array_covers_every_pair():
    rows, names = covering_array(), list(FACTORS)
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            assert {(row[a], row[b]) for row in rows} == {(x, y) for x in FACTORS[a] for y in FACTORS[b]}


def test_20_requests_on_a_random_model(random_model):
    compare_all(random_model, make_requests(20, random_model.config.vocab_size))


def test_near_ties_survive_speculation_and_catch_a_non_invariant_operation(random_model):
    """Rounding alone flips few tokens; among near ties it flips nearly every answer, so luck hides nothing."""
    model = near_tie(random_model)
    requests = greedy(make_requests(8, model.config.vocab_size, seed=5))
    reference = reference_of(model, requests)
    assert differing(model, requests, reference, ORACLE_SETUP)[0] == []
    wrong, _ = differing(model, requests, reference, ORACLE_SETUP | {"row_tiles": PLAIN})
    print(f"plain matrix products change {len(wrong)} of {len(reference)} answers of the near-tie model")
    assert len(wrong) > len(reference) // 2


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_exact_200_requests_on_a_random_model(random_model):
    compare_all(random_model, make_requests(200, random_model.config.vocab_size, seed=1))
