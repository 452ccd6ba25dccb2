"""Which tokens the filters keep, one by one, against the plain filters; ties at the cut."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.support.filter_rows import bounds, kept_one_by_one


@st.composite
def cases(draw):
    values = draw(st.sampled_from((st.integers(-3, 3).map(float), st.floats(-30, 30, width=32))))
    scores = draw(st.lists(values, min_size=1, max_size=9))
    top_k = draw(st.sampled_from((0, 0, 1, 2, 5, 8, 100)))
    top_p = draw(st.sampled_from((1.0, 1.0, 0.0, 0.3, 0.9, 0.999)))
    return scores, top_k, top_p, draw(st.sampled_from((0.0, 0.0, 0.05, 0.7)))


@given(cases())
@settings(max_examples=12, deadline=None)
@pytest.mark.slow
def test_small_rows(case):
    scores, filters = torch.tensor(case[0]), case[1:]
    kept = kept_one_by_one(scores, *filters)
    surely, maybe = bounds(scores, *filters)
    assert (kept | ~surely).all()
    assert (maybe | ~kept).all()


def test_ties_at_the_cut_go_by_id():
    """Eight equal tokens and half the mass: the four lowest ids stay. Top-k keeps all ties, and top-p is of them."""
    scores = torch.full((12,), -200.0)
    scores[[1, 2, 4, 5, 7, 9, 10, 11]] = 3.0
    assert kept_one_by_one(scores, 0, 0.5, 0.0).nonzero().flatten().tolist() == [1, 2, 4, 5]
    assert kept_one_by_one(scores, 3, 1.0, 0.0).nonzero().flatten().tolist() == [1, 2, 4, 5, 7, 9, 10, 11]
    assert kept_one_by_one(scores, 3, 0.3, 0.0).nonzero().flatten().tolist() == [1, 2, 4]
