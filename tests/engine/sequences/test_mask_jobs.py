"""Threads that compute masks: a waiting step is woken, and jobs that no step waits for leave nothing behind."""

import time

import numpy as np
import pytest

from eyas.base.bundled import DEMO
from eyas.base.types import SamplingParams
from eyas.engine.sequences.constraint import Constraint, GrammarCache, GrammarMatcher, num_words
from eyas.engine.sequences.mask_jobs import ALL, MaskThreads, SequenceMasks, wait_for_masks

VOCAB, EOS = 4096, (4084, 4094, 4081)


@pytest.fixture(scope="module")
def grammar():
    cache = GrammarCache(DEMO / "tokenizer.json", vocab_size=VOCAB, eos_ids=EOS)
    return cache.compile("start: /[a-z ]{500}/").result()


def masks_of(grammar, threads):
    constraint = Constraint(SamplingParams(), VOCAB, GrammarMatcher(grammar, EOS))
    return SequenceMasks(constraint, threads, num_words(VOCAB), None)


def ask(masks):
    words = np.full((1, num_words(VOCAB)), ALL, dtype=np.uint32)
    masks.ask((), (), words)
    return words


def test_jobs_that_end_before_anybody_waits_leave_nothing_behind(grammar):
    threads = MaskThreads()
    for _ in range(100):
        masks = masks_of(grammar, threads)
        ask(masks)
        while masks.is_busy:
            time.sleep(0)
        wait_for_masks([masks], 1.0)
    assert threads._ended.qsize() <= 2


def test_all_who_are_waited_for_have_their_masks(grammar):
    threads = MaskThreads()
    for _ in range(50):
        several = [masks_of(grammar, threads) for _ in range(4)]
        words = [ask(masks) for masks in several]
        wait_for_masks(several, 60.0)
        assert not any(masks.is_busy for masks in several)
        assert all((one == grammar.first).all() for one in words)
