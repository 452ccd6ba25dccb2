"""Which tokens the filters keep, one by one, against the plain filters; ties at the cut; rows of many programs."""

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.triton.rows import DEVICE

from eyas.kernels.sample import filter_scores
from eyas.kernels.triton.filters import BINS, SHARED, choose

_SHARED, _BINS = tl.constexpr(SHARED), tl.constexpr(BINS)


@triton.jit
def _choose(
    scores_ptr,
    perturbed_ptr,
    out_ptr,
    k_ptr,
    p_ptr,
    min_ptr,
    arrived_ptr,
    numbers_ptr,
    bests_ptr,
    counts_ptr,
    V,
    SIZE: tl.constexpr,
    CHUNKS: tl.constexpr,
    PADDED: tl.constexpr,
):
    row, chunk = tl.program_id(0) // CHUNKS, tl.program_id(0) % CHUNKS
    ids = chunk * SIZE + tl.arange(0, SIZE)
    scores = tl.load(scores_ptr + row * V + ids, mask=ids < V, other=float("-inf"))
    perturbed = tl.load(perturbed_ptr + row * V + ids, mask=ids < V, other=float("-inf"))
    top_k, top_p, min_p = tl.load(k_ptr), tl.load(p_ptr), tl.load(min_ptr)
    first = row * (2 * CHUNKS)
    token, _ = choose(
        scores,
        perturbed,
        ids,
        top_k,
        top_p,
        min_p,
        V,
        chunk,
        arrived_ptr + row,
        numbers_ptr + first * _SHARED,
        bests_ptr + first,
        counts_ptr + first * _BINS,
        CHUNKS,
        PADDED,
    )
    tl.store(out_ptr + row, token)


def chosen(scores, perturbed, top_k, top_p, min_p, *, size):
    """The token of each row [T] after filters that all rows share."""
    num_rows, vocab_size = scores.shape
    chunks = -(-vocab_size // size)
    out = torch.full((num_rows,), -1, dtype=torch.int32, device=DEVICE)
    numbers = torch.full((num_rows, 2, chunks, SHARED), float("nan"), device=DEVICE)
    settings_of_rows = (torch.tensor([value], device=DEVICE) for value in (top_k, top_p, min_p))
    arrived = torch.zeros(num_rows, dtype=torch.int32, device=DEVICE)
    bests = torch.zeros(num_rows, 2, chunks, dtype=torch.int64, device=DEVICE)
    counts = torch.full((num_rows, 2, chunks, BINS), -1, dtype=torch.int32, device=DEVICE)
    arguments = (scores, perturbed, out, *settings_of_rows, arrived, numbers, bests, counts, vocab_size)
    padded = triton.next_power_of_2(chunks)
    _choose[(num_rows * chunks,)](*arguments, SIZE=size, CHUNKS=chunks, PADDED=padded, enable_fp_fusion=False)
    return out.long()


def kept_one_by_one(scores, *filters):
    """A row for each token, which wins if it is kept."""
    size = len(scores)
    rows = scores.to(DEVICE).expand(size, -1).contiguous()
    favoured = rows.masked_fill(torch.eye(size, dtype=torch.bool, device=DEVICE), 1e6)
    return chosen(rows, favoured, *filters, size=32).cpu() == torch.arange(size)


def bounds(scores, top_k, top_p, min_p):
    """Tokens that are kept, and tokens that may be, in fp64, where rounding could put a token on either side."""
    for shift in (-1e-6, 1e-6):
        row_filters = (
            torch.tensor([value], dtype=torch.float64) for value in (top_p + shift, min_p * (1 - 10 * shift))
        )
        yield (filter_scores(scores.double().unsqueeze(0), torch.tensor([top_k]), *row_filters) > -torch.inf)[0]


@st.composite
def cases(draw):
    values = draw(st.sampled_from((st.integers(-3, 3).map(float), st.floats(-30, 30, width=32))))
    scores = draw(st.lists(values, min_size=1, max_size=9))
    top_k = draw(st.sampled_from((0, 0, 1, 2, 5, 8, 100)))
    top_p = draw(st.sampled_from((1.0, 1.0, 0.0, 0.3, 0.9, 0.999)))
    return scores, top_k, top_p, draw(st.sampled_from((0.0, 0.0, 0.05, 0.7)))


@given(cases())
@settings(max_examples=12, deadline=None)
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


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE != "cuda", reason="needs a CUDA device")
@pytest.mark.parametrize("kind", ["normal", "flat", "grid", "peaked", "narrow"])
def test_large_rows_in_many_programs(kind):
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(201_088, generator=generator)
    peaks = 30.0 * (torch.rand(201_088, generator=generator) < 3e-5)
    scores = {
        "normal": normal * 3,
        "flat": normal * 0,
        "grid": (normal * 8).round() / 4,
        "peaked": normal * 2 + peaks,
        "narrow": normal / 1000,
    }[kind]
    noise = -torch.empty(32, 201_088).exponential_(generator=generator).log()
    rows = scores.to(DEVICE).expand(32, -1).contiguous()
    for filters in ((0, 0.9, 0.0), (50, 1.0, 0.0), (20, 0.8, 0.05), (1, 1.0, 0.0), (0, 0.0, 0.0), (1000, 0.95, 0.001)):
        surely, maybe = bounds(scores, *filters)
        tokens = chosen(rows, (scores + noise).to(DEVICE), *filters, size=4096).cpu()
        for kept in (surely, maybe):
            wanted = (scores + noise).masked_fill(~kept, -torch.inf).argmax(1)
            assert (tokens == wanted).float().mean() > 0.95
        assert maybe[tokens].all()
