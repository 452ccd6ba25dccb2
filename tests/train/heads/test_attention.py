"""Attention merged from two softmaxes against one dense softmax and autograd, gradients of keys and values included."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.train.heads.attention import Prefix, attend, joined_blocks, row_blocks


def normal(generator, *shape):
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def dense(q, keys, values, rows, own, starts):
    """One softmax over the prefix of the row's document and the row's own keys, row by row."""
    out = []
    for at, row in enumerate(rows.tolist()):
        start = max(s for s in starts if s <= row)
        k = torch.cat([keys[start : row + 1], *(x[0][at : at + 1] for x in own)])
        v = torch.cat([values[start : row + 1], *(x[1][at : at + 1] for x in own)])
        scores = torch.einsum("gqd,sgd->gqs", q[at], k) / q.shape[-1] ** 0.5
        out.append(torch.einsum("gqs,sgd->gqd", scores.softmax(-1), v))
    return torch.stack(out)


@settings(max_examples=40)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    seed=st.integers(0, 1000),
    own=st.integers(0, 4),
    sizes=st.tuples(st.integers(1, 10), st.integers(1, 10)),
    groups=st.sampled_from([(1, 1), (2, 3), (3, 1)]),
    joined=st.integers(0, 30),
)
def test_equals_one_dense_softmax_in_blocks_of_any_size(lengths, seed, own, sizes, groups, joined):
    generator = torch.Generator().manual_seed(seed)
    starts = (0, *itertools.accumulate(lengths))
    total, (heads, queries), d = starts[-1], groups, 4
    rows = (torch.rand(total, generator=generator) < 0.6).nonzero()[:, 0]
    if not len(rows):
        rows = torch.tensor([total - 1])
    keys, values = (normal(generator, total, heads, d).requires_grad_() for _ in range(2))
    q = (3 * normal(generator, len(rows), heads, queries, d)).requires_grad_()
    pairs = [tuple(normal(generator, len(rows), heads, d).requires_grad_() for _ in range(2)) for _ in range(own)]
    d_out = normal(generator, *q.shape)
    leaves = [q, *itertools.chain(*pairs)]

    prefix = Prefix(keys.detach(), values.detach(), torch.zeros_like(keys), torch.zeros_like(values))
    blocks = row_blocks(rows.tolist(), starts, sizes[0])
    if joined:
        blocks = joined_blocks(blocks, joined, sizes[1])
    starts_R = torch.tensor([max(s for s in starts if s <= row) for row in rows.tolist()])
    found = attend(q, prefix, rows, blocks, pairs, starts_R=starts_R, keys_of_block=sizes[1])
    found_grads = torch.autograd.grad(found, leaves, d_out)

    wanted = dense(q, keys, values, rows, pairs, starts)
    wanted_grads = torch.autograd.grad(wanted, [*leaves, keys, values], d_out)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    for one, other in zip([*found_grads, *prefix[2:]], wanted_grads, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_blocks_hold_every_row_once_and_one_document_each(size):
    starts, rows = (0, 3, 3, 8, 20), [0, 2, 3, 4, 5, 7, 15, 19]
    blocks = row_blocks(rows, starts, size)
    assert [i for block in blocks for i in range(block.start, block.stop)] == list(range(len(rows)))
    for block in blocks:
        inside = rows[block.start : block.stop]
        assert 0 < len(inside) <= size
        assert block.first == max(s for s in starts if s <= inside[0])
        assert block.first <= inside[0] and block.last == inside[-1] + 1
        assert not any(block.first < start < block.last for start in starts)


def test_blocks_join_up_to_a_number_of_rows_and_keys():
    starts, rows = (0, 3, 5, 8, 20), [0, 2, 3, 4, 5, 7, 15, 19]
    blocks = row_blocks(rows, starts)
    assert [(b.start, b.stop) for b in joined_blocks(blocks, 6, 8)] == [(0, 6), (6, 8)]
    assert [(b.first, b.last, b.is_joined) for b in joined_blocks(blocks, 6, 8)] == [(0, 8, True), (8, 20, False)]
    assert joined_blocks(blocks, 3, 8) == blocks == joined_blocks(blocks, 6, 4)
    assert len(joined_blocks(blocks, 8, 20)) == 1


def test_gradients_of_the_prefix_add_up_in_fp32_where_the_head_computes_in_bf16():
    """Many small parts, each lost if it were added to a bf16 sum."""
    keys = torch.ones(1, 1, 2, dtype=torch.bfloat16)
    prefix = Prefix(keys, keys, torch.zeros(1, 1, 2), torch.zeros(1, 1, 2))
    rows = torch.zeros(1, dtype=torch.int64)
    for _ in range(1000):
        q = torch.ones(1, 1, 1, 2, dtype=torch.bfloat16, requires_grad=True)
        attend(q, prefix, rows, row_blocks([0], (0, 1)), []).sum().backward()
    assert prefix.value_grads_TGD.tolist() == [[[1000.0, 1000.0]]]
