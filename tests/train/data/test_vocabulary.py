"""The draft vocabulary: control tokens always, then the most frequent; coverage counted by hand."""

from __future__ import annotations

import numpy as np
import pytest
from tests.train.data.support.chats import chat, chat_json

from eyas.base.bundled import DEMO
from eyas.base.errors import UserError
from eyas.base.tokens.tokenizer import CONTROL_TOKENS
from eyas.model.checkpoints.head_options import read_counts
from eyas.model.checkpoints.loader import inspect_target
from eyas.train.data.documents import DocumentOptions, Tally, documents_of
from eyas.train.data.vocabulary import choose_vocabulary, count_supervised, coverage, forced_ids, write_counts
from eyas.train.types import Segment


@pytest.fixture(scope="module")
def documents(demo):
    found = (documents_of(demo, chat(chat_json(seed)), DocumentOptions(), Tally()) for seed in range(12))
    return [document for some in found for document in some]


@pytest.fixture(scope="module")
def config():
    return inspect_target(DEMO)[0]


@pytest.fixture(scope="module")
def counts(documents, config):
    return count_supervised(documents, config.vocab_size)


def test_counts_are_of_supervised_tokens_by_segment(documents, counts):
    expected = np.zeros_like(counts)
    for document in documents:
        for token, run, segment in zip(document.ids_T, document.runs_T, document.segments_T, strict=True):
            expected[segment, token] += run >= 0
    assert (counts == expected).all() and not counts[Segment.GIVEN].any()
    assert all(counts[segment].any() for segment in Segment if segment is not Segment.GIVEN)


@pytest.mark.parametrize("size", [64, 100, 128])
def test_control_tokens_are_in_any_draft_vocabulary_then_the_most_frequent(demo, config, counts, size):
    always = forced_ids(demo, config.eos_ids, config.vocab_size)
    assert {*map(demo.special.__getitem__, CONTROL_TOKENS), *demo.special.values(), *config.eos_ids} == set(always)
    chosen = choose_vocabulary(counts, size, always).tolist()
    assert chosen == sorted(set(chosen)) and len(chosen) == size and set(always) <= set(chosen)
    total = counts.sum(0)
    others = [token for token in chosen if token not in always]
    left_out = np.delete(total, chosen)
    assert total[others].min() >= left_out.max()


def test_coverage_is_the_share_of_supervised_tokens_inside(demo, config, documents, counts):
    chosen = choose_vocabulary(counts, 64, forced_ids(demo, config.eos_ids, config.vocab_size))
    found = coverage(counts, chosen)
    inside = set(chosen.tolist())
    for segment in (None, *Segment):
        ids = [
            token
            for document in documents
            for token, own in zip(document.ids_T.tolist(), document.segments_T.tolist(), strict=True)
            if (own == segment if segment is not None else own != Segment.GIVEN)
        ]
        if segment is Segment.GIVEN:
            assert segment not in found
        else:
            assert found[segment] == pytest.approx(sum(token in inside for token in ids) / len(ids))
    assert 0.3 < found[None] < 1
    everything = choose_vocabulary(counts, config.vocab_size, ())
    assert set(coverage(counts, everything).values()) == {1.0}


def test_written_counts_are_those_that_draft_counts_reads(tmp_path, config, counts):
    write_counts(tmp_path / "counts.json", counts)
    assert read_counts(tmp_path / "counts.json", config.vocab_size).tolist() == counts.sum(0).tolist()
    assert [path.name for path in tmp_path.iterdir()] == ["counts.json"]
    with pytest.raises(UserError, match="cannot be written"):
        write_counts(tmp_path / "no" / "counts.json", counts)


def test_a_size_that_is_not_possible_is_refused(demo, config, counts):
    always = forced_ids(demo, config.eos_ids, config.vocab_size)
    for size in (0, len(always) - 1, config.vocab_size + 1):
        with pytest.raises(UserError, match=f"a draft vocabulary of {size} is not possible: {len(always)} control"):
            choose_vocabulary(counts, size, always)


def test_another_vocabulary_is_refused(documents):
    with pytest.raises(UserError, match=r"^chats.jsonl:1, turn 1 has the token \d+, and the target's vocabulary 50"):
        count_supervised(documents, 50)
