"""Bytes that decoding reads, against the tables of the performance reference and a simulation of routing."""

import random

import hypothesis.strategies as st
import pytest
from hypothesis import given

from eyas.recipes.estimate.traffic import Load, break_even, distinct_experts, kv_read_bytes, pass_bytes, round_bytes
from eyas.recipes.knowledge.tables import knowledge

MODELS, HEADS = knowledge().models, knowledge().heads
LARGE, SMALL = MODELS["gpt-oss-120b"], MODELS["gpt-oss-20b"]


@pytest.mark.parametrize(
    ("model", "rows", "experts", "gigabytes"),
    [
        *((LARGE, *row) for row in [(1, 4.0, 5.04), (2, 7.9, 6.89), (3, 11.6, 8.68), (4, 15.3, 10.41)]),
        *((LARGE, *row) for row in [(5, 18.8, 12.09), (6, 22.2, 13.72), (8, 28.7, 16.82), (16, 51.0, 27.43)]),
        (LARGE, 32, 81.7, 42.05),
        *((SMALL, *row) for row in [(1, 4.0, 3.74), (2, 7.5, 4.85), (4, 13.2, 6.67), (8, 21.0, 9.14)]),
        *((SMALL, *row) for row in [(16, 28.2, 11.43), (32, 31.6, 12.49)]),
    ],
)
def test_bytes_of_a_pass(model, rows, experts, gigabytes):
    assert distinct_experts(model, rows) == pytest.approx(experts, abs=0.051)
    assert pass_bytes(model, rows, Load(context=1024)) / 1e9 == pytest.approx(gigabytes, abs=0.0101)


@pytest.mark.parametrize(
    ("head", "lengths"),
    [
        ("lmsys-120b", {1: 1.49, 2: 1.95, 3: 2.41, 4: 2.86, 5: 3.29, 7: 4.13}),
        ("nvidia-v3", {7: 5.46}),
        ("lmsys-20b", {1: 1.46, 2: 1.87, 3: 2.25, 4: 2.60, 5: 2.93}),
    ],
)
def test_break_even_lengths(head, lengths):
    head = HEADS[head]
    for drafts, length in lengths.items():
        assert break_even(MODELS[head.target], head, drafts) == pytest.approx(length, abs=0.011)


def test_kv_cache_that_a_token_reads():
    for context, gigabytes in ((1024, 0.043), (8192, 0.307), (32_768, 1.213)):
        assert kv_read_bytes(LARGE, context) / 1e9 == pytest.approx(gigabytes, abs=0.001)


def test_union_of_uniform_routing_is_what_a_simulation_finds():
    rng, rounds = random.Random(1), 400
    for rows in (2, 8, 32):
        union = sum(len({e for _ in range(rows) for e in rng.sample(range(128), 4)}) for _ in range(rounds)) / rounds
        assert distinct_experts(LARGE, rows) == pytest.approx(union, rel=0.01)


def test_correlated_end_is_where_unions_were_measured():
    """Shares of the uniform union: of llama.cpp's Spark sweep at 16 and 32 rows, the lower ends."""
    for rows, share in ((16, 0.57), (32, 0.51)):
        assert distinct_experts(LARGE, rows, 0.0) / distinct_experts(LARGE, rows) == pytest.approx(share, abs=0.05)


def test_a_dense_model_reads_the_same_for_any_rows():
    model = MODELS["llama-3.3-70b-fp4"]
    assert pass_bytes(model, 1, Load()) == pass_bytes(model, 64, Load())


rows_of = st.floats(1, 4096)


@given(st.sampled_from(list(MODELS.values())), rows_of, rows_of, st.floats(0, 1), st.floats(0, 1))
def test_unions_grow_with_rows_and_with_uniformity(model, rows, more, uniform, other):
    few, many = sorted((rows, more))
    low, high = sorted((uniform, other))
    assert distinct_experts(model, few, low) <= distinct_experts(model, many, low) <= model.num_experts
    assert distinct_experts(model, few, low) <= distinct_experts(model, few, high) + 1e-9
    if model.num_experts:
        assert distinct_experts(model, few, low) >= model.experts_per_token * (1 - 1e-9)


@given(st.sampled_from(list(HEADS.values())), st.integers(1, 8), st.integers(0, 200_000), st.integers(1, 64))
def test_rounds_read_more_with_each_draft(head, drafts, context, sequences):
    model, load = MODELS[head.target], Load(context=context, sequences=sequences)
    assert round_bytes(model, head, drafts, load) > round_bytes(model, head, drafts - 1, load)
