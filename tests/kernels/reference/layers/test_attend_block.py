"""Attention of rows that see one another and leave no keys, against dense fp64 attention, with poison elsewhere."""

import pytest
import torch

from eyas.kernels.reference.layers.ops import LayerCache, Product, RopeTable, Rows
from eyas.kernels.reference.layers.plain_ops import PlainOps

POISON = 1e30  # finite: what is masked must not count even so
PAGE, HEADS, KV, DIM, ROWS = 8, 4, 2, 16, 5
OPS = PlainOps(dense=8, experts=1)


def turned(x_HD, position, inverse_D):
    """Half-split rotation in fp64."""
    cos, sin = (position * inverse_D).cos(), (position * inverse_D).sin()
    first, second = x_HD.double().chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("num_live", [ROWS, 3])
def test_equals_dense_attention_and_writes_nothing(is_causal, num_live):
    generator, firsts = torch.Generator().manual_seed(0), [0, 3, 16, 29]
    inverse = 100.0 ** -torch.linspace(0, 1, DIM // 2, dtype=torch.float64)
    angles = torch.arange(64.0, dtype=torch.float64)[:, None] * inverse
    rope = RopeTable(angles.cos().float(), angles.sin().float())
    table = 1 + torch.randperm(len(firsts) * 5, generator=generator).view(len(firsts), 5)
    cache = LayerCache(*torch.full((2, 21, KV, PAGE, DIM), POISON))
    context = torch.randn(2, len(firsts), 40, KV, DIM, generator=generator)  # rotated before
    for s, first in enumerate(firsts):
        for position in range(first):
            for part, dense in zip(cache.tensors, context, strict=True):
                part[table[s, position // PAGE], :, position % PAGE] = dense[s, position]
    before = [part.clone() for part in cache.tensors]
    qkv = torch.randn(len(firsts) * ROWS, (HEADS + 2 * KV) * DIM, generator=generator)
    positions = torch.tensor(firsts)[:, None] + torch.arange(ROWS)
    live = (torch.arange(ROWS) < num_live).expand(len(firsts), -1)
    rows = Rows(positions, live, table, 34)
    out = OPS.attend_block(
        Product(qkv[None], None, 1), rows, cache, rope, eps=0.0, bias_N=None, is_causal=is_causal
    ).view(len(firsts), ROWS, HEADS, DIM)
    assert all(torch.equal(part, old) for part, old in zip(cache.tensors, before, strict=True))
    own = qkv.view(len(firsts), ROWS, HEADS + 2 * KV, DIM)
    for s, first in enumerate(firsts):
        keys = [turned(own[s, r, HEADS : HEADS + KV], first + r, inverse) for r in range(ROWS)]
        for row in range(ROWS):
            seen = [r for r in range(ROWS) if r == row or (r < num_live and (r < row or not is_causal))]
            k = torch.cat((context[0, s, :first].double(), torch.stack([keys[r] for r in seen])))
            v = torch.cat((context[1, s, :first], own[s, seen, HEADS + KV :])).double()
            query = turned(own[s, row, :HEADS], first + row, inverse)
            for head in range(HEADS):
                group = head // (HEADS // KV)
                weights = (k[:, group] @ query[head] / DIM**0.5).softmax(0)
                assert torch.allclose(out[s, row, head].double(), weights @ v[:, group], atol=1e-4)
