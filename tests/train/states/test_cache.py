"""Kept states: bit for bit those of the source, which is asked once for what has room."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.train.support.batches import batch_of, random_documents

from eyas.train.states.cache import CachedStates
from eyas.train.states.documents import only, spans_of
from eyas.train.types import States, Teacher

DOCUMENTS = random_documents(50, (3, 8, 1, 12, 5, 20))
BYTES = 4 * (6 + 2)  # of a token


class Counting:
    """A source whose states follow from each document alone."""

    config, taps, fingerprint, labels_only = None, (1, 2, 3), "x", False
    teacher = Teacher(torch.zeros(50, 2), torch.zeros(50, 2))

    def __init__(self):
        self.asked = []

    def states(self, batch):
        self.asked += [tuple(batch.ids_T[span.start : span.end].tolist()) for span in spans_of(batch)]
        sums_T = torch.cat([batch.ids_T[span.start : span.end].cumsum(0) for span in spans_of(batch)]).float()
        return States(sums_T.unsqueeze(1).sin().repeat(1, 6), sums_T.unsqueeze(1).cos().repeat(1, 2))


@given(
    batches=st.lists(st.lists(st.sampled_from(range(6)), min_size=1, max_size=6, unique=True), max_size=8),
    budget=st.integers(0, 60 * BYTES),
)
def test_values_are_those_of_the_source(batches, budget):
    source = Counting()
    cached = CachedStates(source, budget)
    for numbers in batches:
        batch = batch_of([DOCUMENTS[number] for number in numbers])
        found, expected = cached.states(batch), Counting().states(batch)
        assert torch.equal(found.taps_TC, expected.taps_TC) and torch.equal(found.last_TH, expected.last_TH)
        assert found.best_T is None
        assert cached.used_bytes <= budget
        found.taps_TC.fill_(7), found.last_TH.fill_(7)  # the caller's own
    if budget >= sum(map(len, DOCUMENTS)) * BYTES:
        assert len(source.asked) == len(set(source.asked))


def test_what_has_no_room_is_made_again():
    source = Counting()
    cached = CachedStates(source, 11 * BYTES)  # for the first and the second
    for _ in range(3):
        cached.states(batch_of(DOCUMENTS[:4]))
    counts = [source.asked.count(tuple(ids)) for ids in DOCUMENTS[:4]]
    assert counts == [1, 1, 3, 3] and cached.used_bytes == 11 * BYTES


def test_documents_are_taken_out_in_any_order():
    batch, picked = batch_of(DOCUMENTS), only(batch_of(DOCUMENTS), [4, 0, 3])
    expected = batch_of([DOCUMENTS[number] for number in (4, 0, 3)])
    for name in ("ids_T", "runs_T", "segments_T", "documents_T", "positions_T"):
        assert torch.equal(getattr(picked, name), getattr(expected, name))
    assert picked.starts == expected.starts
    assert picked.sources == tuple(batch.sources[number] for number in (4, 0, 3))


def test_a_batch_is_not_held_by_one_of_its_documents():
    cached = CachedStates(Counting(), 3 * BYTES)
    cached.states(batch_of(DOCUMENTS))
    (kept,) = cached._kept.values()
    held = sum(tensor.untyped_storage().nbytes() for tensor in kept[:2])
    assert held == 3 * BYTES == cached.used_bytes
