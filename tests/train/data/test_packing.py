"""Batches: every document once an epoch, no two orders alike, and the same ones from any point on."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eyas.base.errors import UserError
from eyas.train.data.packing import Packing, batches_in_order, pack
from eyas.train.types import Document


def document(length, number=0):
    return Document(
        ids_T=np.full(length, number, dtype=np.int32),
        runs_T=np.arange(-1, length - 1, dtype=np.int32),
        segments_T=np.ones(length, dtype=np.uint8),
        source=f"chats.jsonl:{number}, turn 1",
    )


LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=60)


def test_a_batch_is_its_documents_side_by_side():
    batch = pack([document(3, 7), document(2, 8)])
    assert batch.ids_T.tolist() == [7, 7, 7, 8, 8]
    assert batch.runs_T.tolist() == [-1, 0, 1, -1, 0]
    assert batch.documents_T.tolist() == [0, 0, 0, 1, 1]
    assert batch.positions_T.tolist() == [0, 1, 2, 0, 1]
    assert batch.starts == (0, 3, 5) and batch.num_tokens == 5
    assert batch.sources == ("chats.jsonl:7, turn 1", "chats.jsonl:8, turn 1")
    types = [x.dtype for x in (batch.ids_T, batch.runs_T, batch.segments_T, batch.documents_T, batch.positions_T)]
    assert types == [torch.int64, torch.int64, torch.uint8, torch.int64, torch.int64]


@given(lengths=LENGTHS, seed=st.integers(0, 2**32), epoch=st.integers(0, 99), num_buckets=st.integers(1, 5))
def test_each_document_is_in_one_batch_of_an_epoch(lengths, seed, epoch, num_buckets):
    documents = [document(length, number) for number, length in enumerate(lengths)]
    packing = Packing(documents, tokens=40, seed=seed, num_buckets=num_buckets)
    batches = [packing.batch(epoch, index) for index in range(packing.num_batches(epoch))]
    assert sorted(source for batch in batches for source in batch.sources) == sorted(d.source for d in documents)
    assert all(0 < batch.num_tokens <= 40 for batch in batches)
    assert packing.filled(epoch) == pytest.approx(sum(lengths) / 40 / len(batches))
    if num_buckets == 1:  # best fit: no two batches would fit into one
        sizes = sorted(batch.num_tokens for batch in batches)
        assert len(sizes) < 2 or sizes[0] + sizes[1] > 40


def test_documents_of_mixed_lengths_fill_long_batches():
    lengths = np.random.default_rng(0).lognormal(np.log(20_000), 1.2, 1000).clip(512, 131_072).astype(int)
    packing = Packing([document(int(length)) for length in lengths], tokens=131_072, seed=0)
    assert packing.filled(0) > 0.98 < packing.filled(1)


@given(lengths=LENGTHS, epoch=st.integers(0, 9), data=st.data())
def test_a_cursor_is_enough_to_go_on(lengths, epoch, data):
    documents = [document(length, number) for number, length in enumerate(lengths)]
    before = Packing(documents, tokens=64, seed=5, num_buckets=2)
    for earlier in range(epoch):
        before.num_batches(earlier)
    index = data.draw(st.integers(0, before.num_batches(epoch) - 1))
    resumed = Packing(documents, tokens=64, seed=5, num_buckets=2)
    assert resumed.batch(epoch, index).sources == before.batch(epoch, index).sources


def test_epochs_and_seeds_have_orders_of_their_own():
    documents = [document(10, number) for number in range(50)]

    def order(seed, epoch):
        packing = Packing(documents, tokens=30, seed=seed)
        return [s for i in range(packing.num_batches(epoch)) for s in packing.batch(epoch, i).sources]

    orders = [order(seed, epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert all(a != b for i, a in enumerate(orders) for b in orders[:i])
    assert order(0, 0) == orders[0]


def test_the_order_is_the_one_that_is_written_down_here():
    """A change of it makes every checkpoint resume with other batches."""
    documents = [document(number % 7 + 1, number) for number in range(20)]
    plan = Packing(documents, tokens=16, seed=3, num_buckets=2).plan(4)
    assert [batch.tolist() for batch in plan] == [
        [5, 19],
        [18, 11, 12],
        [3, 2, 15, 1, 9, 7, 0],
        [4, 17, 10],
        [13, 6],
        [16, 8, 14],
    ]


def test_buckets_hold_documents_of_similar_length():
    rng = np.random.default_rng(0)
    documents = [document(int(n), i) for i, n in enumerate(rng.integers(1, 200, 400))]

    def spread(num_buckets):
        packing = Packing(documents, tokens=800, seed=1, num_buckets=num_buckets)
        return np.mean([np.diff(packing.batch(0, i).starts).std() for i in range(packing.num_batches(0))])

    assert spread(8) < spread(1) / 4


def test_batches_in_order_are_for_evaluation():
    documents = [document(length, number) for number, length in enumerate((10, 20, 5, 30, 30, 1))]
    assert [batch.starts for batch in batches_in_order(documents, 35)] == [(0, 10, 30, 35), (0, 30), (0, 30, 31)]
    assert not list(batches_in_order([], 35))


def test_a_document_that_no_batch_has_room_for_is_named():
    documents = [document(10, 1), document(41, 2)]
    for make in (lambda: Packing(documents, tokens=40, seed=0), lambda: list(batches_in_order(documents, 40))):
        with pytest.raises(UserError, match=r"^chats.jsonl:2, turn 1 has 41 tokens, and a batch has room for 40"):
            make()
