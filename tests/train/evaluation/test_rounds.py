"""Walks over text: against the counts of `eyas bench acceptance`, and against a recursion from the other end."""

import functools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.train.support.texts import batch_of_texts

from eyas.base.types import RoundTrace, TokenEvent
from eyas.bench.engine.rounds import Acceptance, ContentMarker, count_content, count_rounds
from eyas.bench.stats import bootstrap_ratio
from eyas.train.evaluation.chances import Chances
from eyas.train.evaluation.rounds import Text, expected_starts, prefix_chances
from eyas.train.evaluation.tally import Tally
from eyas.train.types import Segment

DEPTHS = 4
SPECIAL = ("<|message|>", "<|end|>", "<|return|>", "<|call|>", "<|start|>", "<|channel|>")
CODEC = SimpleNamespace(special={name: i for i, name in enumerate(SPECIAL)})
tokens = st.one_of(st.integers(0, len(SPECIAL) - 1), *[st.integers(6, 20)] * 3)
answers = st.lists(tokens, min_size=1, max_size=25)


def text_of(answer, num_given=3, run=0):
    marks = ContentMarker(CODEC).mark(answer)
    segments = [Segment.FINAL if mark else Segment.HEADER for mark in marks]
    return (
        [6] * num_given + answer,
        [-1] * num_given + [run] * len(answer),
        [Segment.GIVEN] * num_given + segments,
    )


def engine_events(answer, hits_JT, first, drafts):
    """Events of an engine whose drafts are right where `hits_JT` says so."""
    events = [TokenEvent(request_id="", choice=0, token_ids=(answer[0],))]
    known = 0
    while known + 1 < len(answer):
        accepted = 0
        while accepted < drafts and hits_JT[accepted, first + known]:
            accepted += 1
        new = answer[known + 1 : known + 2 + accepted]
        trace = RoundTrace(draft_ids=(9,) * drafts, num_accepted=min(accepted, len(new)))
        events.append(TokenEvent(request_id="", choice=0, token_ids=tuple(new), round=trace))
        known += len(new)
    return events


@settings(max_examples=60)
@given(st.lists(answers, min_size=1, max_size=4), st.integers(0, 2**32 - 1))
def test_walks_count_what_the_benchmark_counts(several, seed):
    """With drafts that are right or wrong, sums over content and over all tokens are those of an engine's rounds."""
    batch = batch_of_texts([text_of(answer, num_given=1 + i) for i, answer in enumerate(several)])
    hits = np.random.default_rng(seed).random((DEPTHS, batch.num_tokens)) < 0.6
    sums = Tally(DEPTHS, None)
    sums.add(batch, Chances(hits.astype(float), np.zeros(hits.shape), None), torch.arange(10))
    result = sums.result()
    for drafts in range(1, DEPTHS + 1):
        content, everything = Acceptance(), Acceptance()
        for i, answer in enumerate(several):
            events = engine_events(answer, hits, batch.starts[i] + 1 + i, drafts)
            content.merge(count_content(events, CODEC))
            everything.merge(count_rounds(events))
        found = result.at("text", drafts)
        assert (found.content.rounds, found.content.tokens) == (content.num_rounds, content.num_tokens)
        assert (found.all_tokens.rounds, found.all_tokens.tokens) == (everything.num_rounds, everything.num_tokens)
        assert list(found.reached) == [content.reached[i] for i in range(1, drafts + 1)]
        assert list(found.accepted) == [content.accepted[i] for i in range(1, drafts + 1)]


@settings(max_examples=40)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=4), st.integers(0, 2**32 - 1))
def test_expected_rounds_are_those_of_a_recursion_from_the_end(sizes, seed):
    """Runs of one document, side by side or apart, of any length."""
    rng = np.random.default_rng(seed)
    ids, runs = [], []
    for number, size in enumerate(sizes):
        gap = int(rng.integers(0, 3))
        runs += [-1] * gap + [number] * size
    ids = [7] * len(runs)
    text = Text.of(batch_of_texts([(ids, runs, [Segment.FINAL * (x >= 0) for x in runs])]))
    chances = rng.random((2, DEPTHS, len(text.at_T)))
    starts = expected_starts(prefix_chances(chances), text)

    @functools.cache
    def rounds_from(scheme, known):
        if not text.left_T[known]:
            return 0.0
        total, reached = 1.0, 1.0
        for accepted in range(DEPTHS + 1):
            goes_on = chances[scheme, accepted, known] if accepted < DEPTHS else 0.0
            total += reached * (1 - goes_on) * rounds_from(scheme, known + min(accepted + 1, text.left_T[known]))
            reached *= goes_on
        return total

    assert list(text.length_N) == sizes
    for scheme in range(2):
        expected = sum(rounds_from(scheme, first) for first in text.first_N)
        assert starts[scheme].sum() == pytest.approx(expected, rel=1e-12)


def random_batch(seed, sizes=(9, 14, 2, 20)):
    rng = np.random.default_rng(seed)
    batch = batch_of_texts([text_of([int(x) for x in rng.integers(6, 20, size)]) for size in sizes])
    batch.segments_T[batch.runs_T >= 0] = Segment.REASONING
    return batch, Chances(*rng.random((3, DEPTHS, batch.num_tokens)))


def parts(batch, chances):
    for low, high in zip(batch.starts, batch.starts[1:], strict=False):
        one = batch_of_texts([(batch.ids_T[low:high], batch.runs_T[low:high], batch.segments_T[low:high])])
        yield one, Chances(*(x[:, low:high] for x in chances))


def test_sums_of_processes_and_batches_add_up():
    batch, chances = random_batch(0)
    whole, merged = Tally(DEPTHS, 1.0), Tally(DEPTHS, 1.0)
    whole.add(batch, chances, torch.arange(10))
    for one, its in parts(batch, chances):
        other = Tally(DEPTHS, 1.0)
        other.add(one, its, torch.arange(10))
        merged.merge(other)
    assert whole.result().json() == merged.result().json()
    result = whole.result()
    assert result.num_documents == 4 and result.num_tokens == 45
    for reading in ("text", "target", "sampled"):
        for drafts in range(1, DEPTHS + 1):
            found = result.at(reading, drafts)
            low, high = found.interval
            assert low < found.content.length < high
            assert sum(x.rounds for x in found.by_segment.values()) == pytest.approx(found.content.rounds)
            assert sum(x.tokens for x in found.by_context.values()) == pytest.approx(found.content.tokens)
            by_depth = found.content.tokens - found.content.rounds  # every further token is an accepted draft or bonus
            assert by_depth <= sum(found.accepted) + 1e-9
    lines = "\n".join(result.lines(2))
    assert "2 drafts a round" in lines and "reasoning" in lines and "0-1K" in lines


def test_rounds_belong_to_the_bucket_and_segment_they_start_in():
    answer = [7] * 6
    ids, runs, segments = text_of(answer, num_given=1021)  # the first three rounds know at most 1,024 tokens
    segments[-3:] = [Segment.CODE] * 3
    sums = Tally(2, None)
    batch = batch_of_texts(
        [(ids, runs, [s or Segment.GIVEN for s in segments[:-6]] + [Segment.FINAL] * 3 + segments[-3:])]
    )
    sums.add(batch, Chances(np.zeros((2, len(ids))), np.zeros((2, len(ids))), None), torch.arange(10))
    found = sums.result().at("text", 1)
    assert {name: x.rounds for name, x in found.by_context.items()} == {"0-1K": 3, "1-4K": 2}
    assert {name: x.rounds for name, x in found.by_segment.items()} == {"final": 2, "code": 3}


def test_nothing_was_generated():
    sums = Tally(DEPTHS, 1.0)
    sums.add(batch_of_texts([([1, 2, 3], [-1] * 3, [0] * 3)]), Chances(*np.zeros((3, DEPTHS, 3))), torch.arange(10))
    assert sums.result().at("text", 1).content.length is None


def test_nothing_to_count():
    batch = batch_of_texts([([1, 2, 3], [-1] * 3, [0] * 3), ([1, 7], [-1, 0], [0, 3])])
    sums = Tally(DEPTHS, 1.0)
    sums.add(batch, Chances(*np.zeros((3, DEPTHS, 5))), torch.arange(10))
    found = sums.result().at("sampled", 2)
    assert found.content.length is None and found.interval is None and found.accepted_if_reached == (None, None)
    assert Tally(DEPTHS, 1.0).result().json()["tokens"] == 0
    assert sums.result().lines(2)


def test_intervals_are_those_of_the_benchmarks():
    """The same bootstrap with other draws: `bench.stats` draws items one by one."""
    batch, chances = random_batch(3, sizes=[int(x) for x in np.random.default_rng(1).integers(5, 40, 60)])
    sums = Tally(DEPTHS, 1.0)
    sums.add(batch, chances, torch.arange(10))
    found = sums.result().at("sampled", 3)
    tokens, rounds = zip(*(one_by_one(part) for part in parts(batch, chances)), strict=True)
    assert found.interval == pytest.approx(bootstrap_ratio(tokens, rounds), abs=0.02)
    assert found.interval[1] - found.interval[0] > 0.05


def one_by_one(part):
    sums = Tally(DEPTHS, 1.0)
    sums.add(*part, torch.arange(10))
    counts = sums.result().at("sampled", 3).content
    return counts.tokens, counts.rounds
