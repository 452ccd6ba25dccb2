"""The canary for embeddings: vectors that untrained networks make are well, and every kind of broken ones is named."""

import json
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.client.endpoint.vectors import TEXTS, body, fault

GOOD = [[1.0, 0.2, 0.0], [1.0, 0.3, 0.1], [-0.5, 1.0, 0.4]]


def answer(vectors, indices=None):
    indices = range(len(vectors)) if indices is None else indices
    entries = [{"object": "embedding", "index": i, "embedding": v} for i, v in zip(indices, vectors, strict=True)]
    return json.dumps({"object": "list", "data": entries})


def test_good_vectors_in_any_order():
    assert fault(answer(GOOD)) is None
    assert fault(answer([GOOD[2], GOOD[0], GOOD[1]], [2, 0, 1])) is None
    assert body("m") == {"model": "m", "input": list(TEXTS)}


@pytest.mark.parametrize(
    ("vectors", "said"),
    [
        ([*GOOD[:2], [0.0, 0.0, 0.0]], "a vector of zeros"),
        ([[0.0] * 3] * 3, "a vector of zeros"),
        ([[0.3, 0.4, 0.5]] * 3, "the same vector"),
        ([[1.0, 2.0], [2.0, 4.0], [0.5, 1.0]], "the same vector"),  # but for its length
        ([*GOOD[:2], [math.nan, 0.0, 0.0]], "not finite"),
        ([*GOOD[:2], [math.inf, 0.0, 0.0]], "not finite"),
        ([*GOOD[:2], [None, 0.0, 0.0]], "not finite"),  # what llama-server writes for NaN
        ([*GOOD[:2], [10**400, 0.0, 0.0]], "not finite"),
        ([*GOOD[:2], [True, False, True]], "not finite"),
        ([*GOOD[:2], ["1", "2", "3"]], "not finite"),
        ([*GOOD[:2], [1.0, 2.0]], "different lengths came back: 3, 3, 2"),
        (GOOD[:2], "2 vectors came back for 3 texts"),
        ([], "0 vectors"),
        ([*GOOD[:2], []], "no list of numbers"),
        ([*GOOD[:2], "AACAPwAAAEA="], "no list of numbers"),
        ([GOOD[0], GOOD[2], GOOD[1]], "do not tell texts apart"),
    ],
)
def test_what_is_wrong_is_said(vectors, said):
    assert said in fault(answer(vectors))


@pytest.mark.parametrize(
    "text", ["", "{", "null", "[]", "{}", '{"data": null}', '{"data": [1]}', '{"data": [{"index": 0}]}', "[" * 100_000]
)
def test_what_is_no_answer_is_said(text):
    assert fault(text) == "no list of embeddings came back"


@given(st.text())
def test_no_text_raises(text):
    assert fault(text) is not None


@given(
    st.lists(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=2, max_size=4), min_size=3, max_size=3)
)
def test_no_numbers_raise(vectors):
    said = fault(answer(vectors))
    assert said is None or isinstance(said, str)


@given(st.integers(0, 1 << 32), st.sampled_from([8, 64, 384]), st.sampled_from(["words", "letters"]))
def test_an_untrained_embedder_is_well(seed, width, pieces):
    """The mean of a random vector for each word or letter, as a network with random weights roughly makes it."""
    draw = random.Random(seed)
    table = {}

    def vector(text):
        cut = text.split() if pieces == "words" else list(text)
        rows = [table.setdefault(piece, [draw.gauss(0, 1) for _ in range(width)]) for piece in cut]
        return [math.fsum(column) / len(rows) for column in zip(*rows, strict=True)]

    said = fault(answer([vector(text) for text in TEXTS]))
    assert said is None or width == 8  # so short that chance decides


def test_noise_is_found_every_second_time():
    draw = random.Random(1)
    noise = [answer([[draw.gauss(0, 1) for _ in range(64)] for _ in TEXTS]) for _ in range(400)]
    assert 150 < sum(fault(text) is not None for text in noise) < 250
