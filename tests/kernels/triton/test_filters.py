"""Kept tokens against the plain filters, with ties at the cut, in one program and in several that meet."""

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.triton.rows import DEVICE

from eyas.kernels.sample import filter_scores
from eyas.kernels.triton.filters import SHARED, filter_chunk

_SHARED = tl.constexpr(SHARED)


@triton.jit
def _filter(
    scores_ptr, out_ptr, k_ptr, p_ptr, min_ptr, arrived_ptr, shared_ptr, V, SIZE: tl.constexpr, CHUNKS: tl.constexpr
):
    row, chunk = tl.program_id(0) // CHUNKS, tl.program_id(0) % CHUNKS
    ids = chunk * SIZE + tl.arange(0, SIZE)
    scores = tl.load(scores_ptr + row * V + ids, mask=ids < V, other=float("-inf"))
    top_k, top_p, min_p = tl.load(k_ptr + row), tl.load(p_ptr + row), tl.load(min_ptr + row)
    shared_ptr += row * (2 * CHUNKS * _SHARED)
    kept, _ = filter_chunk(
        scores, top_k, top_p, min_p, chunk, arrived_ptr + row, shared_ptr, V, CHUNKS, triton.next_power_of_2(CHUNKS)
    )
    tl.store(out_ptr + row * V + ids, kept, mask=ids < V)


def filtered(scores, top_k, top_p, min_p, *, size):
    num_rows, vocab_size = scores.shape
    chunks = -(-vocab_size // size)
    out = torch.full_like(scores, float("nan"))
    shared = torch.full((num_rows, 2, chunks, SHARED), float("nan"), device=DEVICE)
    arrived = torch.zeros(num_rows, dtype=torch.int32, device=DEVICE)
    arguments = (scores, out, top_k, top_p, min_p, arrived, shared, vocab_size)
    _filter[(num_rows * chunks,)](*arguments, SIZE=size, CHUNKS=chunks, enable_fp_fusion=False)
    return out


def check(scores, top_k, top_p, min_p, *, size):
    """Equal to the plain filters, but for tokens that rounding may put on either side of the cut."""
    scores, top_p, min_p = scores.to(DEVICE), top_p.to(DEVICE), min_p.to(DEVICE)
    top_k = top_k.to(DEVICE)
    kept = filtered(scores, top_k, top_p, min_p, size=size)
    lower, higher = (
        filter_scores(scores.double(), top_k, top_p.double() + shift, min_p.double() * (1 - 10 * shift))
        for shift in (-1e-6, 1e-6)
    )
    assert ((kept == scores) | (kept == -torch.inf)).all()
    assert ((kept > -torch.inf) | (lower == -torch.inf)).all()
    assert ((kept == -torch.inf) | (higher > -torch.inf)).all()


@st.composite
def cases(draw):
    values = draw(st.sampled_from((st.integers(-3, 3).map(float), st.floats(-30, 30, width=32))))
    scores = draw(st.lists(values, min_size=1, max_size=30))
    top_k = draw(st.sampled_from((0, 0, 1, 2, 5, 29, 100)))
    top_p = draw(st.sampled_from((1.0, 1.0, 0.0, 0.3, 0.9, 0.999)))
    return scores, top_k, top_p, draw(st.sampled_from((0.0, 0.0, 0.05, 0.7)))


@given(cases())
@settings(max_examples=30, deadline=None)
def test_small_rows(case):
    scores, top_k, top_p, min_p = case
    check(torch.tensor([scores]), torch.tensor([top_k]), torch.tensor([top_p]), torch.tensor([min_p]), size=32)


def test_ties_at_the_cut_go_by_id():
    """Eight equal tokens and half the mass: the four lowest ids stay; with top-k all ties stay."""
    scores = torch.full((2, 12), -200.0, device=DEVICE)
    scores[:, [1, 2, 4, 5, 7, 9, 10, 11]] = 3.0
    top_k, top_p = torch.tensor([0, 3], device=DEVICE), torch.tensor([0.5, 1.0], device=DEVICE)
    kept = filtered(scores, top_k, top_p, torch.zeros(2, device=DEVICE), size=16) > -torch.inf
    assert kept.nonzero().tolist() == [[0, i] for i in (1, 2, 4, 5)] + [[1, i] for i in (1, 2, 4, 5, 7, 9, 10, 11)]


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE != "cuda", reason="needs a CUDA device")
@pytest.mark.parametrize("kind", ["normal", "flat", "grid", "peaked", "narrow"])
def test_large_rows_in_many_programs(kind):
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(9, 201_088, generator=generator)
    peaks = 30.0 * (torch.rand(9, 201_088, generator=generator) < 3e-5)
    scores = {
        "normal": normal * 3,
        "flat": normal * 0,
        "grid": (normal * 8).round() / 4,
        "peaked": normal * 2 + peaks,
        "narrow": normal / 1000,
    }[kind]
    top_k = torch.tensor([0, 0, 50, 20, 1, 0, 0, 1000, 5])
    top_p = torch.tensor([0.9, 0.5, 1.0, 0.8, 1.0, 0.999, 0.0, 0.95, 0.3])
    check(scores, top_k, top_p, torch.tensor([0, 0, 0, 0.05, 0, 0.001, 0, 0, 0]), size=4096)
