"""Figures from records alone: what counts where, and properties that hold for any stream."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.bench.endpoint.figures import Slo, arrived_tokens, figures_of, tpot_s
from eyas.bench.endpoint.records import Chunk, Lag, Load, Record, Window

LAG = Lag(loop_p99_s=0.0, send_p99_s=0.0, cpu_share=0.1)


def record(chunks, tokens, *, due=0.0, **fields):
    ended = chunks[-1].at_s if chunks else due
    return Record(
        prompt="a/1", category="a", scheduled_s=due, sent_s=due, ended_s=ended, chunks=tuple(chunks),
        output_tokens=tokens, **fields,
    )  # fmt: skip


def window(*records, load=None, started=0.0, ended=10.0):
    load = load or Load(concurrency=1, max_tokens=8)
    return Window(arm="A", load=load, turn=0, started_s=started, ended_s=ended, records=tuple(records), lag=LAG)


@st.composite
def streams(draw):
    """Chunks in order, with the server's counts or without, and a total that is at least as large as the last."""
    gaps = draw(st.lists(st.floats(0.0, 2.0), min_size=1, max_size=30))
    counts = draw(st.booleans())
    at, tokens, chunks = 0.0, 0, []
    for gap in gaps:
        at += gap
        tokens += draw(st.integers(0, 5))
        chunks.append(Chunk(at, "text", draw(st.integers(0, 40)), tokens if counts else None))
    return record(chunks, tokens + draw(st.integers(0, 3)))


@given(streams(), st.lists(st.floats(0.0, 60.0), max_size=5))
def test_no_token_is_lost_or_counted_twice(one, cuts):
    """Windows that lie side by side share out all tokens of an answer."""
    edges = [0.0, *sorted(cuts), math.inf]
    parts = [arrived_tokens(one, low, high) for low, high in pairwise(edges)]
    assert sum(parts) == pytest.approx(one.output_tokens) and all(part >= 0 for part in parts)


@given(streams())
def test_tpot_times_tokens_is_the_time_of_the_stream(one):
    found = tpot_s(one)
    if found is not None:
        first = one.chunks[0].tokens if one.chunks[0].tokens is not None else 1
        assert found * (one.output_tokens - first) == pytest.approx(one.chunks[-1].at_s - one.chunks[0].at_s)


def test_what_is_not_measured_counts_for_what_arrives_alone():
    chunks = [Chunk(1.0, "text", 4, 1), Chunk(3.0, "text", 4, 5)]
    early = record(chunks, 5, due=-9.0, is_measured=False)
    cut = record(chunks[:1], None, error="it broke")
    found = figures_of(window(record(chunks, 5, cached_tokens=3, prompt_tokens=12), early, cut))
    assert (found.num_measured, found.num_failed, found.first_text_s) == (2, 1, (1.0,))
    assert found.tokens_per_s == 1.0 and found.finished_tokens_per_s == 1.0
    assert found.cached_share == 0.25 and found.tokens_per_chunk == 2.5


def test_without_usage_no_token_is_invented():
    found = figures_of(window(record([Chunk(1.0, "text", 4), Chunk(2.0, "text", 4)], None)))
    assert found.tokens_per_s is None and found.tpot_s == () and found.tokens_per_chunk is None
    assert found.first_text_s == (1.0,) and found.gaps_s == (1.0,)


def test_answers_that_end_before_their_fixed_length_are_counted():
    chunks = [Chunk(1.0, "text", 4)]
    fixed = Load(concurrency=1, mode="fixed", max_tokens=8)
    assert figures_of(window(record(chunks, 8), record(chunks, 7), load=fixed)).num_short == 1
    assert figures_of(window(record(chunks, 7))).num_short == 0


@pytest.mark.parametrize(
    ("limits", "is_met"),
    [
        ({"ttft": 1.0}, True),
        ({"ttft": 0.9}, False),
        ({"ttft_final": 2.9}, False),
        ({"tpot": 0.5}, True),
        ({"tpot": 0.49}, False),
        ({"e2e": 3.0, "ttft_final": 3.0}, True),
    ],
)
def test_goodput_counts_requests_that_meet_every_limit(limits, is_met):
    one = record([Chunk(1.0, "reasoning", 4, 1), Chunk(3.0, "text", 4, 5)], 5)
    assert Slo(**limits).is_met(one) == is_met
    assert figures_of(window(one, record([], None, error="no")), Slo(**limits)).good_per_s == is_met / 10
    assert not Slo(ttft_final=9.0).is_met(record([Chunk(1.0, "reasoning", 4)], 5))
