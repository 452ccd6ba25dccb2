"""Paged attention against dense fp64 attention, over odd shapes, with poison wherever nothing may be read."""

import random
from dataclasses import dataclass

import pytest
import torch

from eyas.kernels.layouts.fp8_cache import from_fp8, to_fp8_pair
from eyas.kernels.reference.layers.attend import KEY_BLOCK, attend_ref
from eyas.kernels.reference.layers.ops import LayerCache, Product, RopeTable, Rows
from eyas.kernels.reference.layers.plain_ops import PlainOps

POISON = 1e30  # finite: what is masked must not count even so


@dataclass(frozen=True, kw_only=True)
class Case:
    page_size: int = 16
    num_heads: int = 4
    num_kv: int = 2
    dim: int = 32
    num_rows: int = 1
    firsts: tuple = (0, 5, 130)  # position of each sequence's first row
    window: int | None = None
    sinks: bool = True
    tile: int | None = 8
    first_key: int = 0


CASES = {
    "one_row": Case(),
    "prompt": Case(num_rows=70, firsts=(0, 64), tile=64),
    "odd_rows": Case(num_rows=3, page_size=8, firsts=(125, 126, 127, 250)),
    "window": Case(window=16, firsts=(0, 14, 15, 16, 127, 128, 300)),
    "window_of_one": Case(window=1, num_rows=2),
    "window_across_blocks": Case(window=128, num_rows=6, firsts=(0, 120, 127, 128, 255, 400)),
    "window_prompt": Case(window=20, num_rows=130, firsts=(0, 128), tile=64),
    "one_kv_head": Case(num_heads=6, num_kv=1, dim=8, num_rows=5),
    "as_many_kv_heads": Case(num_heads=3, num_kv=3, dim=64, page_size=32),
    "whole_block_pages": Case(page_size=128, num_rows=9, firsts=(3, 250)),
    "no_sinks": Case(sinks=False, num_rows=4, first_key=1, firsts=(1, 77)),
    "no_tiles": Case(tile=None, num_rows=5, window=30, firsts=(2, 129)),
}


def laid_out(case, seed=0):
    """Arguments of `attend` over shuffled pages, and dense keys and values [S, N, G, D]."""
    generator = torch.Generator().manual_seed(seed)
    num_seqs, longest = len(case.firsts), max(case.firsts) + case.num_rows
    num_pages = -(-longest // case.page_size)
    k, v = torch.randn(2, num_seqs, longest, case.num_kv, case.dim, generator=generator)
    pages = list(range(1, num_seqs * num_pages + 3))
    random.Random(seed).shuffle(pages)
    table = torch.zeros(num_seqs, num_pages + 2, dtype=torch.int64)
    caches = torch.full((2, len(pages) + 1, case.num_kv, case.page_size, case.dim), POISON)
    for row, first in enumerate(case.firsts):
        window = case.window or longest
        for position in range(max(0, first - window + 1), first + case.num_rows):
            column, offset = divmod(position, case.page_size)
            if not table[row, column]:
                table[row, column] = pages.pop()
            if position >= case.first_key:
                caches[0, table[row, column], :, offset] = k[row, position]
                caches[1, table[row, column], :, offset] = v[row, position]
    arguments = {
        "k_cache_PGBD": caches[0],
        "v_cache_PGBD": caches[1],
        "table_SP": table,
        "positions_SR": torch.tensor(case.firsts).unsqueeze(1) + torch.arange(case.num_rows),
        "sinks_Q": torch.randn(case.num_heads, generator=generator) if case.sinks else None,
        "window": case.window,
        "max_length": longest,
        "tile": case.tile,
        "first_key": case.first_key,
    }
    q = torch.randn(num_seqs, case.num_rows, case.num_heads, case.dim, generator=generator)
    return q, arguments, k, v


def dense(case, q, arguments, k, v):
    """softmax([q k / sqrt d, sink]) without the sink's column, one row and head at a time, in fp64."""
    out = torch.zeros_like(q, dtype=torch.float64)
    for s, first in enumerate(case.firsts):
        for r in range(case.num_rows):
            low = max(case.first_key, first + r - case.window + 1 if case.window else 0)
            seen = slice(low, first + r + 1)
            for h in range(case.num_heads):
                group = h // (case.num_heads // case.num_kv)
                scores = k[s, seen, group].double() @ q[s, r, h].double() / case.dim**0.5
                if case.sinks:
                    scores = torch.cat((scores, arguments["sinks_Q"][h : h + 1].double()))
                weights = scores.softmax(0)[: first + r + 1 - low]
                out[s, r, h] = weights @ v[s, seen, group].double()
    return out


@pytest.mark.parametrize("name", CASES)
def test_equals_dense_attention(name):
    case = CASES[name]
    q, arguments, k, v = laid_out(case)
    out = attend_ref(q, **arguments)
    torch.testing.assert_close(out.double(), dense(case, q, arguments, k, v), rtol=1e-5, atol=1e-5)


def test_a_row_has_the_same_bits_alone_and_in_a_crowd():
    """Alone, behind others, among more sequences, under a larger bound of lengths, in other pages."""
    case = Case(num_rows=7, firsts=(0, 90, 122, 200), window=None)
    for window in (None, 30):
        q, arguments, _, _ = laid_out(Case(**(vars_of(case) | {"window": window})))
        crowd = attend_ref(q, **arguments)
        for s in range(len(case.firsts)):
            for r in range(case.num_rows):
                alone = arguments | {
                    "table_SP": arguments["table_SP"][s : s + 1],
                    "positions_SR": arguments["positions_SR"][s : s + 1, r : r + 1],
                    "max_length": case.firsts[s] + r + 1,
                }
                assert torch.equal(attend_ref(q[s : s + 1, r : r + 1], **alone)[0, 0], crowd[s, r]), (s, r)
        longer = attend_ref(q, **arguments | {"max_length": arguments["max_length"] + 2 * KEY_BLOCK})
        assert torch.equal(longer, crowd)


@pytest.mark.parametrize("name", CASES)
def test_8_bits_have_the_bits_of_the_rounded_cache(name):
    q, arguments, _, _ = laid_out(CASES[name])
    k, v, scales = to_fp8_pair(arguments["k_cache_PGBD"].nan_to_num(), arguments["v_cache_PGBD"].nan_to_num())
    caches = {"k_cache_PGBD": from_fp8(k, scales[..., 0]), "v_cache_PGBD": from_fp8(v, scales[..., 1])}
    in_fp8 = {"k_cache_PGBD": k, "v_cache_PGBD": v, "scales_PG2B": scales.transpose(2, 3)}
    out = attend_ref(q, **arguments | in_fp8)
    assert out.isfinite().all() and torch.equal(out, attend_ref(q, **arguments | caches))


def vars_of(case):
    return {name: getattr(case, name) for name in case.__dataclass_fields__}


def test_a_row_below_the_first_key_is_finite():
    case = Case(num_rows=2, firsts=(0,), sinks=False, first_key=1)
    q, arguments, _, _ = laid_out(case)
    arguments["k_cache_PGBD"][:, :, 0], arguments["v_cache_PGBD"][:, :, 0] = 0, 0
    assert attend_ref(q, **arguments).isfinite().all()


@pytest.mark.parametrize("window", [None, 16])
def test_rows_before_the_start_are_dead_and_change_nothing(window):
    """3 live rows behind 5 at negative positions, with a rotary table and page tables that end where they must."""
    page_size, num_kv, dim, num_live, num_dead = 4, 2, 8, 3, 5
    generator = torch.Generator().manual_seed(0)
    product = torch.randn(1, num_dead + num_live, 4 * num_kv * dim, generator=generator)
    rope = RopeTable(*torch.randn(2, num_live, dim // 2, generator=generator))

    def run(num_dead):
        positions = torch.arange(-num_dead, num_live).unsqueeze(0)
        rows = Rows(positions, positions >= 0, torch.tensor([[2]]), num_live)
        cache = LayerCache(*torch.full((2, 4, num_kv, page_size, dim), 7.0))
        out = PlainOps(dense=8, experts=8).attend(
            Product(product[:, -positions.numel() :], None, 1), rows, cache, rope,
            eps=0.0, bias_N=None, sinks_Q=None, window=window,
        )  # fmt: skip
        return out, cache

    (out, cache), (alone, right) = run(num_dead), run(0)
    assert torch.equal(out[num_dead:], alone) and out.isfinite().all()
    for ours, expected in zip(cache.tensors, right.tensors, strict=True):
        assert torch.equal(ours[1:], expected[1:])  # page 0 takes what dead rows write
