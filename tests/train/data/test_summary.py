"""Counts of cells: formula against `supervises` row by row, and masks that forget to shift with the target."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.train.data.support.chats import chat, chat_json
from tests.train.data.support.parsed import expected_masks

from eyas.train.data.documents import DocumentOptions, Tally, documents_of
from eyas.train.data.packing import pack
from eyas.train.data.summary import Summary, cells_per_depth
from eyas.train.types import Document, Segment, supervises

DEPTHS = 7
RULES = ("loose", "faithful")


def documents(codec, seeds, **options):
    tally = Tally()
    chats = [chat(chat_json(seed, **options)) for seed in seeds]
    return [document for one in chats for document in documents_of(codec, one, DocumentOptions(), tally)]


def cells(batch, depth, rule):
    """The tokens that depth `depth` is taught to draft, each by the row that predicts it."""
    rows = torch.arange(batch.num_tokens)
    return (rows + depth + 2)[supervises(batch, rows + 1, rows + depth + 2, rule)]


@st.composite
def any_document(draw):
    """Stretches of given and generated tokens; the first token is given, as in any prompt."""
    parts = draw(st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), min_size=1, max_size=6))
    runs = [number for run, (given, own) in enumerate(parts) for number in [-1] * given + [run] * own]
    return Document(
        ids_T=np.arange(len(runs), dtype=np.int32),
        runs_T=np.array(runs, dtype=np.int32),
        segments_T=np.where(np.array(runs) < 0, Segment.GIVEN, Segment.FINAL).astype(np.uint8),
        source="x",
    )


@given(documents=st.lists(any_document(), min_size=1, max_size=4))
@pytest.mark.parametrize("rule", RULES)
def test_counts_are_those_of_the_formula(rule, documents):
    batch = pack(documents)
    for depth in range(DEPTHS):
        found = cells(batch, depth, rule)
        found = found[batch.documents_T[found - depth - 2] == batch.documents_T[found]]  # the row's document
        formula = [cells_per_depth(document, rule, DEPTHS)[depth] for document in documents]
        assert batch.documents_T[found].bincount(minlength=len(documents)).tolist() == formula
        if rule == "faithful":
            lengths = [np.bincount(document.runs_T[document.runs_T >= 0]) for document in documents]
            assert formula == [int(np.maximum(n - 1 - depth, 0).sum()) for n in lengths]


def test_every_generated_token_of_a_chat_is_taught_once_a_depth(demo):
    """Nothing generated stands at the beginning of a document, so there is a row for every cell."""
    found = documents(demo, range(40))
    for document in found:
        num_generated = int((document.runs_T >= 0).sum())
        assert cells_per_depth(document, "loose", DEPTHS) == [num_generated] * DEPTHS
    summary = Summary(num_depths=DEPTHS)
    for document in found:
        summary.add(document)
    batch = pack(found)
    for rule in RULES:
        assert summary.cells[rule] == [len(cells(batch, depth, rule)) for depth in range(DEPTHS)]
    assert summary.num_tokens == batch.num_tokens and summary.num_documents == len(found)
    assert (
        summary.num_supervised
        == int((batch.runs_T >= 0).sum())
        == sum(summary.by_segment.values()) - int((batch.runs_T < 0).sum())
    )
    assert summary.num_runs == sum(int(document.runs_T.max()) + 1 for document in found)


def unshifted(batch, depth):
    """The cells of a mask that does not move with its target (sgl-project/SpecForge, issue 885)."""
    rows = torch.arange(batch.num_tokens)
    predicted = rows + depth + 2
    inside = predicted < batch.num_tokens
    rows, predicted = rows[inside], predicted[inside]
    return predicted[(batch.runs_T[rows] >= 0) & (batch.documents_T[rows] == batch.documents_T[predicted])]


def test_cells_predict_what_openai_harmonys_parse_says_and_an_unshifted_mask_does_not(harmony, o200k):
    for document in documents(o200k, range(12), names=False):
        batch = pack([document])
        runs, _ = expected_masks(harmony, document.ids_T.tolist())
        generated = np.flatnonzero(runs >= 0).tolist()
        for depth in range(DEPTHS):
            assert cells(batch, depth, "loose").tolist() == generated
            faithful = cells(batch, depth, "faithful").tolist()
            assert faithful == [p for p in generated if runs[p - 1 - depth] == runs[p]]
            assert unshifted(batch, depth).tolist() != generated
