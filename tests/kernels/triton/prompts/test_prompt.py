"""Prompt kernels against the plain twins, and the bits of rows over cuts of the prompt and tiles of rows."""

import itertools
from math import isfinite

import pytest
import torch
import triton
from tests.kernels.cuda.emulator import emulated

from eyas.kernels.cuda.moe import experts as cuda_experts
from eyas.kernels.cuda.moe import moe
from eyas.kernels.layouts.dense import BlockedMatrix
from eyas.kernels.layouts.device import Limits, device_limits
from eyas.kernels.layouts.fp8_cache import BROKEN, LARGEST_SCALE, from_fp8, to_fp8_pair
from eyas.kernels.layouts.mxfp4 import pack_experts
from eyas.kernels.reference.layers.attend import attend_ref
from eyas.kernels.reference.layers.moe import moe_down_ref, moe_up_ref
from eyas.kernels.reference.layers.norm import Normed, inverse_rms, prepare_norm, rms_norm
from eyas.kernels.reference.layers.ops import LayerCache, RopeTable, Rows
from eyas.kernels.reference.layers.rope_write import rope_write_ref, write_places
from eyas.kernels.reference.layers.router import route
from eyas.kernels.triton.prompts import experts, flash, gemm, qkv
from eyas.kernels.triton.prompts import route as routing
from eyas.kernels.triton.prompts.norm import embed, pair
from eyas.kernels.triton.prompts.ops import PromptOps, TritonProducts, Unprojected
from eyas.kernels.triton.prompts.products import word_order
from eyas.model.mxfp4 import Mxfp4Tensor, dequantize

EPS = 1e-5
PAGE = 16


class Case:
    """Random tensors and matrices whose values bf16 holds exactly."""

    def __init__(self, device, dtype):
        self.device, self.dtype = device, dtype
        self.tolerance = 1e-5 if dtype == torch.float32 else 1e-2
        self.generator = torch.Generator().manual_seed(0)

    def random(self, *shape, scale=1.0):
        values = torch.randn(*shape, generator=self.generator) * scale
        return values.bfloat16().float().to(self.device)

    def rows(self, *shape):
        return self.random(*shape).to(self.dtype)

    def blocked(self, weight, gated=False):
        matrix = BlockedMatrix.pack(weight, gated=gated)
        return BlockedMatrix(matrix.data.to(self.dtype), gated)

    def experts(self, *shape, high=124):
        """(packed, dequantised fp32); scale bytes 118 .. high - 1"""
        *rows, columns = shape
        codes = torch.randint(256, (*rows, columns // 32, 16), generator=self.generator, dtype=torch.uint8)
        scales = torch.randint(118, high, (*rows, columns // 32), generator=self.generator, dtype=torch.uint8)
        tensor = Mxfp4Tensor(codes.to(self.device), scales.to(self.device))
        return pack_experts(tensor.blocks, tensor.scales), dequantize(tensor, torch.float32)

    def normed(self, num_rows, width):
        return prepare_norm(self.random(num_rows, width), self.random(width).abs(), self.dtype)

    def sequence(self, first, num_rows, num_pages=8, dead=0):
        order = torch.randperm(num_pages - 1, generator=self.generator) + 1
        positions = torch.arange(first, first + num_rows).unsqueeze(0)
        live = torch.arange(num_rows).unsqueeze(0) < num_rows - dead
        to = self.device
        return Rows(positions.to(to), live.to(to), order.unsqueeze(0).to(to), first + num_rows)

    def cache(self, num_kv, num_pages=8):
        return LayerCache(*(self.rows(num_pages, num_kv, PAGE, 64) for _ in range(2)))

    def close(self, actual, expected):
        assert actual.shape == expected.shape
        difference = (actual.float() - expected.float()).norm() / expected.float().norm()
        assert difference < self.tolerance, f"relative error {difference:.2e}"


@pytest.fixture
def case(device, dtype):
    return Case(device, dtype)


@pytest.mark.parametrize(("num_rows", "width", "num_features"), [(1, 64, 48), (37, 96, 160), (130, 64, 16)])
def test_linear(case, num_rows, width, num_features):
    x, weight = case.rows(num_rows, width), case.random(num_features, width)
    case.close(gemm.linear(x, case.blocked(weight)), x.float() @ weight.T)


def test_linear_of_split_norm_divides(case):
    normed, weight = case.normed(20, 64), case.random(48, 64)
    parts = torch.stack((normed.square_sums_TP[:, 0] * 0.25, normed.square_sums_TP[:, 0] * 0.75), dim=1)
    expected = (normed.rows_TH.float() @ weight.T) * inverse_rms(normed, EPS)
    out = gemm.linear(Normed(normed.rows_TH, parts), case.blocked(weight), eps=EPS, dtype=torch.float32)
    case.close(out, expected)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # rows behind the last in the interpreter
def test_gated(case):
    normed, weight = case.normed(20, 64), case.random(2 * 72, 64, scale=0.2)
    gate, up = ((normed.rows_TH.float() @ weight.T) * inverse_rms(normed, EPS)).chunk(2, dim=-1)
    case.close(gemm.gated(normed, case.blocked(weight, gated=True), eps=EPS), torch.nn.functional.silu(gate) * up)


@pytest.mark.parametrize("biased", [True, False])
def test_add(case, biased):
    x, weight, residual = case.rows(21, 96), case.random(160, 96), case.random(21, 160)
    bias, norm = case.random(160) if biased else None, case.random(160)
    out, normed = gemm.add(x, case.blocked(weight), bias, residual, norm)
    expected = residual + x.float() @ weight.T + (bias if biased else 0)
    case.close(out, expected)
    case.close(normed.rows_TH, expected * norm)
    case.close(normed.square_sums_TP.sum(-1), expected.square().sum(-1))


def test_embed_and_pair(case):
    tokens = torch.tensor([3, 0, 3, 9], device=case.device)
    table, hidden, first, second = case.rows(10, 96), case.random(4, 96), case.random(96), case.random(96)
    residual, normed = embed(tokens, table, first)
    case.close(residual, table[tokens])
    case.close(normed.rows_TH, table[tokens].float() * first)
    case.close(normed.square_sums_TP[:, 0], table[tokens].float().square().sum(-1))
    pairs, alone = pair(tokens, table, first, hidden, second, EPS)
    case.close(alone, rms_norm(hidden, second, EPS))
    case.close(pairs, torch.cat((rms_norm(table[tokens].float(), first, EPS), alone.float()), dim=-1))


@pytest.mark.parametrize(("num_heads", "num_kv"), [(8, 2), (8, 1)])
def test_qkv_rope_write(case, num_heads, num_kv):
    rows, cache, normed = case.sequence(32, 21, dead=2), case.cache(num_kv), case.normed(21, 64)
    weight = case.random((num_heads + 2 * num_kv) * 64, 64, scale=0.125)
    bias = case.random(weight.shape[0])
    bias[(num_heads + num_kv) * 64 + 5] = float("inf")  # the first value head is broken in all rows
    rope = RopeTable(case.random(64, 32), case.random(64, 32))
    expected_cache = LayerCache(cache.k.float(), cache.v.float())
    q = qkv.qkv_rope_write(normed, case.blocked(weight), bias, rows, cache, rope, eps=EPS)
    positions, (pages, offsets) = rows.positions_SR[0], write_places(rows, PAGE)
    expected = rope_write_ref(
        (normed.rows_TH.float() @ weight.T) * inverse_rms(normed, EPS) + bias,
        cos_TD=rope.cos[positions],
        sin_TD=rope.sin[positions],
        k_cache_PGBD=expected_cache.k,
        v_cache_PGBD=expected_cache.v,
        pages_T=pages,
        offsets_T=offsets,
    )
    case.close(q, expected)
    broken = expected_cache.k[1:].isnan()
    assert torch.equal(cache.k[1:].isnan(), broken)
    case.close(cache.k[1:].masked_fill(broken, 0), expected_cache.k[1:].masked_fill(broken, 0))
    case.close(cache.v[1:], expected_cache.v[1:])


@pytest.mark.parametrize("window", [None, 24])
@pytest.mark.parametrize("sinks", [True, False])
@pytest.mark.parametrize(("first", "first_key"), [pytest.param(0, 0, marks=pytest.mark.slow), (48, 0), (32, 40)])
def test_flash(case, window, sinks, first, first_key):
    rows, cache, q = case.sequence(first, 45), case.cache(2), case.rows(45, 8, 64)
    cache.k[rows.table_SP[0, 5]] = float("nan")  # positions 80..95 are seen by rows at the end, or by none
    sinks_q = case.random(8) if sinks else None
    out = flash.flash_attend(q, rows, cache, sinks_Q=sinks_q, window=window, first_key=first_key)
    expected = attend_ref(
        q.float().unsqueeze(0),
        k_cache_PGBD=cache.k.float(),
        v_cache_PGBD=cache.v.float(),
        table_SP=rows.table_SP,
        positions_SR=rows.positions_SR,
        sinks_Q=sinks_q,
        window=window,
        max_length=128,
        tile=None,
        first_key=first_key,
    )
    expected = expected[0].flatten(1)
    seen = rows.positions_SR[0] < 80
    assert out[~seen].isnan().all()
    case.close(out[seen], expected[seen])


def in_fp8(cache):
    k, v, scales = to_fp8_pair(cache.k, cache.v)
    return LayerCache(k, v, scales.transpose(2, 3).contiguous())


@pytest.mark.parametrize("bits", [0x7F800000, 0x7FFFFFFF])  # infinity, and the NaN that a GPU's products give
def test_rows_are_rounded_to_fp8_as_by_the_twin(case, bits):
    """Against the same launch over a cache of the rows' own dtype; one head is broken, one too large, one small."""
    num_heads, num_kv, (rows, normed) = 8, 4, (case.sequence(32, 21, dead=2), case.normed(21, 64))
    weight = case.random((num_heads + 2 * num_kv) * 64, 64, scale=0.125)
    bias = case.random(weight.shape[0])
    heads = bias.view(-1, 64)
    heads[num_heads, 3] = 60_000.0
    heads[num_heads + num_kv + 1, 5] = torch.tensor(bits, dtype=torch.int32).view(torch.float32)
    heads[num_heads + 2].mul_(1e-30), weight.view(-1, 64, 64)[num_heads + 2].mul_(1e-30)
    rope = RopeTable(case.random(64, 32).clamp(-1, 1), case.random(64, 32).clamp(-1, 1))
    cache, plain = case.cache(num_kv), case.cache(num_kv)
    rounded = in_fp8(cache)
    for each in (rounded, plain):
        q = qkv.qkv_rope_write(normed, case.blocked(weight), bias, rows, each, rope, eps=EPS)
    assert q.isfinite().all()
    expected = in_fp8(plain)
    pages, offsets = (each[rows.live_SR.flatten()] for each in write_places(rows, PAGE))
    for ours, right in ((rounded.k, expected.k), (rounded.v, expected.v)):
        assert torch.equal(ours[pages, :, offsets], right[pages, :, offsets])
    ours, right = (each.scales_PG2B[pages, :, :, offsets] for each in (rounded, expected))
    assert torch.equal(ours, right)
    assert (ours[:, 1, 0] == BROKEN).all() and (ours[:, 3] < LARGEST_SCALE).all()
    assert (ours[:, 0, 0] == BROKEN).any()


@pytest.mark.parametrize(("window", "first_key"), [(None, 0), (24, 0), (None, 40)])
def test_flash_over_fp8_has_the_bits_of_the_rounded_cache(case, window, first_key):
    rows, rounded, q = case.sequence(32, 45), in_fp8(case.cache(2)), case.rows(45, 8, 64)
    k, v = (
        from_fp8(part, rounded.scales_PG2B[:, :, i]).to(case.dtype) for i, part in enumerate((rounded.k, rounded.v))
    )
    options = {"sinks_Q": case.random(8), "window": window, "first_key": first_key}
    out = flash.flash_attend(q, rows, rounded, **options)
    assert out.isfinite().all()
    assert torch.equal(out, flash.flash_attend(q, rows, LayerCache(k, v), **options))
    rounded.k[rows.table_SP[0, 5]] = 0x7F  # a broken key at positions 80..95
    broken = flash.flash_attend(q, rows, rounded, **options).isnan().all(1)
    assert broken.tolist() == (rows.positions_SR[0] >= 80).tolist()


@pytest.mark.parametrize("window", [pytest.param(None, marks=pytest.mark.slow), 24])
def test_rows_of_several_sequences(case, window):
    """Queries, keys, values and attention of three sequences in one launch, beside each alone."""
    num_rows, num_heads, num_kv, width, num_pages = 32, 8, 2, 64, 25
    normed, weight = case.normed(3 * num_rows, width), case.random((num_heads + 2 * num_kv) * 64, width, scale=0.125)
    bias, sinks = case.random(weight.shape[0]), case.random(num_heads)
    rope = RopeTable(case.random(128, 32), case.random(128, 32))
    order = torch.randperm(num_pages - 1, generator=case.generator) + 1
    table = order.view(3, 8).to(case.device)
    positions = torch.tensor([[64], [0], [32]]) + torch.arange(num_rows)
    live = torch.arange(num_rows) < torch.tensor([[32], [20], [32]])
    whole = Rows(positions.to(case.device), live.to(case.device), table, 96)
    empty = case.cache(num_kv, num_pages)

    def run(rows, x):
        cache = LayerCache(empty.k.clone(), empty.v.clone())
        q = qkv.qkv_rope_write(x, case.blocked(weight), bias, rows, cache, rope, eps=EPS)
        out = flash.flash_attend(q, rows, cache, sinks_Q=sinks, window=window)
        return out.unflatten(0, rows.live_SR.shape)[rows.live_SR], cache

    together, cache = run(whole, normed)
    alone, own = [], []
    for seq in range(3):
        own_rows = Rows(*(value[seq : seq + 1] for value in whole[:3]), 96)
        part, mine = run(own_rows, normed.take(slice(num_rows * seq, num_rows * (seq + 1))))
        alone.append(part)
        own.append((mine.k[table[seq]], mine.v[table[seq]]))
    case.close(together, torch.cat(alone))
    for seq, (k, v) in enumerate(own):
        case.close(cache.k[table[seq]], k)
        case.close(cache.v[table[seq]], v)
    if torch.device(case.device).type == "cuda":
        assert torch.equal(together, torch.cat(alone))


@pytest.mark.parametrize("takes", [True, False])
@pytest.mark.parametrize(
    ("window", "first_key", "in_8_bits"), [(None, 0, False), (24, 0, False), (None, 40, False), (None, 0, True)]
)
def test_another_attention_has_the_layers_without_a_window(case, takes, window, first_key, in_8_bits):
    """And Triton's has what it leaves."""
    num_heads, num_kv, rows, normed = 8, 2, case.sequence(0, 21), case.normed(21, 64)
    cache, asked = in_fp8(case.cache(num_kv)) if in_8_bits else case.cache(num_kv), []
    weight = case.blocked(case.random((num_heads + 2 * num_kv) * 64, 64, scale=0.125))
    rope = RopeTable(case.random(64, 32), case.random(64, 32))
    options = {"eps": EPS, "bias_N": None, "sinks_Q": case.random(num_heads), "window": window, "first_key": first_key}

    def other(q, *places, sinks_Q):
        asked.append(q)
        return q.new_ones(21, num_heads * 64) if takes else None

    expected = PromptOps().attend(Unprojected(normed, weight), rows, cache, rope, **options)
    out = PromptOps(None, other).attend(Unprojected(normed, weight), rows, cache, rope, **options)
    is_asked = window is None and first_key == 0
    assert len(asked) == is_asked
    assert torch.equal(out, torch.ones_like(out) if takes and is_asked else expected)


@pytest.mark.parametrize("width", [96, 2 * routing._PART_H + 32])
def test_route_and_group(case, width):
    normed, weight, bias = case.normed(40, width), case.random(16, width), case.random(16)
    live = torch.arange(40, device=case.device) % 7 != 3
    got = routing.route_rows(normed, live, case.blocked(weight), bias, top_k=4, eps=EPS)
    logits = (normed.rows_TH.float() @ weight.T) * inverse_rms(normed, EPS) + bias
    ids, weights = route(logits, live, 4)
    assert torch.equal(got.ids_TK.long(), ids)
    case.close(got.weights_TK, weights)
    groups = routing.group(normed.rows_TH, got, 8)
    assert torch.equal(groups.rows_TH, normed.rows_TH[:, word_order.fn(torch.arange(width, device=case.device))])
    flat = got.ids_TK.flatten()
    assert sorted(groups.pairs[: int((flat >= 0).sum())].tolist()) == (flat >= 0).nonzero()[:, 0].tolist()
    tiles = groups.tiles[: int(groups.num_tiles)].tolist()
    for expert, first, end, _ in tiles:
        assert 0 < end - first <= 8
        assert (flat[groups.pairs[first:end].long()] == expert).all()
    assert sum(end - first for _, first, end, _ in tiles) == int((flat >= 0).sum())


def test_few_rows_are_routed_by_many_programs():
    """128 rows of the 120b, on a GPU with 132 multiprocessors."""
    tiles = routing.Tally.zeros(128, 128, "cpu").arrived_N.numel()
    assert 66 <= tiles * triton.cdiv(2880, routing._PART_H) <= 132


@pytest.mark.gpu
@pytest.mark.parametrize(("width", "num_experts"), [(2880, 128), (2880, 32), (256, 16)])
def test_bits_of_a_choice_do_not_depend_on_the_tile(case, monkeypatch, width, num_experts):
    """With sums of squares as `gemm.add` leaves them. The interpreter multiplies with BLAS."""
    rows, router, bias = case.random(200, width), case.random(num_experts, width, scale=0.1), case.random(num_experts)
    parts = rows.unflatten(1, (-1, 64)).square().sum(2)
    live, choices = torch.ones(200, dtype=torch.bool, device=case.device), []
    for tile_rows in (16, 32, 64):
        monkeypatch.setattr(routing, "_tile_rows", lambda num_rows, tile_rows=tile_rows: tile_rows)
        normed = Normed(rows.to(case.dtype), parts)
        choices.append(routing.route_rows(normed, live, case.blocked(router), bias, top_k=4, eps=EPS))
    for other in choices[1:]:
        for found, expected in zip(other[:2] + other[3:4], choices[0][:2] + choices[0][3:4], strict=True):
            assert torch.equal(found, expected)


@pytest.mark.filterwarnings("ignore:invalid value encountered")
@pytest.mark.parametrize("num_experts", [16, 48])
def test_rows_that_are_not_finite_go_to_experts_that_there_are(case, num_experts):
    """NaN in a whole row, in one logit, and infinities of both signs."""
    normed, weight, bias = case.normed(40, 96), case.random(num_experts, 96), case.random(num_experts)
    normed.rows_TH[3, 7] = float("nan")
    normed.rows_TH[4, :] = float("inf")
    weight[num_experts - 1, 0], normed.rows_TH[5, 0] = 0.0, float("inf")
    live = torch.arange(40, device=case.device) != 6
    got = routing.route_rows(normed, live, case.blocked(weight), bias, top_k=4, eps=EPS)
    assert [t for t, row in enumerate(got.weights_TK.tolist()) if not all(map(isfinite, row))] == [3, 4, 5]
    ids = got.ids_TK[live].long()
    assert (ids >= 0).all() and (ids < num_experts).all() and all(len(set(row)) == 4 for row in ids.tolist())
    assert torch.equal(got.tally.counts_E.long(), ids.flatten().bincount(minlength=num_experts))
    for expert in range(num_experts):
        places = got.places_TK[got.ids_TK == expert]
        assert sorted(places.tolist()) == list(range(len(places)))


@pytest.mark.parametrize(("width", "inner"), [(96, 160), pytest.param(64, 32, marks=pytest.mark.slow)])
def test_experts(case, width, inner):
    num_experts, top_k, num_rows = 16, 4, 21
    normed, residual, norm = case.normed(num_rows, width), case.random(num_rows, width), case.random(width)
    live = torch.arange(num_rows, device=case.device) != 5
    weight, bias = case.random(num_experts, width), case.random(num_experts)
    gate_up, gate_up_plain = case.experts(num_experts, 2 * inner, width)
    down, down_plain = case.experts(num_experts, width, inner, high=131)
    assert (gate_up.exponent, down.exponent) == (0, 2)
    gate_up_bias, down_bias = case.random(num_experts, 2 * inner), case.random(num_experts, width)

    got = routing.route_rows(normed, live, case.blocked(weight), bias, top_k=top_k, eps=EPS)
    groups = routing.group(normed.rows_TH, got, 16)
    act = experts.experts_up(got, groups, gate_up, gate_up_bias, limit=7.0)
    out, after = experts.combine(experts.experts_down(act, got, groups, down, down_bias), got, residual, norm)

    ids = got.ids_TK.long()
    scale = inverse_rms(normed, EPS)
    expected = moe_up_ref(
        normed.rows_TH.float(), scale, ids, gate_up=gate_up_plain, bias_EN=gate_up_bias, limit=7.0, tile=None
    )
    alive = (ids >= 0).flatten()
    order = word_order.fn(torch.arange(inner, device=case.device))
    case.close(act[alive], expected.flatten(0, 1)[:, order][alive])
    final = moe_down_ref(expected, ids, got.weights_TK, residual, down=down_plain, bias_EH=down_bias, tile=None)
    case.close(out, final)
    assert torch.equal(out[5], residual[5])
    case.close(after.rows_TH, final * norm)
    case.close(after.square_sums_TP[:, 0], final.square().sum(-1))


class InBf16(cuda_experts.HopperProducts):
    """The interpreter has rows in fp32."""

    def up(self, x_TH, *args, **kwargs):
        return super().up(x_TH.bfloat16(), *args, **kwargs)


@pytest.mark.slow
def test_both_products_of_experts(case, monkeypatch):
    """Those of Hopper, in the emulator where there is no GPU, beside Triton's; for few rows the same bits."""
    if torch.device(case.device).type == "cpu":
        for module in (cuda_experts, moe):
            monkeypatch.setattr(module, "load", emulated)
            monkeypatch.setattr(module, "device_limits", lambda device: Limits(3, 227 << 10))
    num_experts, width, num_rows = 16, 64, 11
    live = torch.arange(num_rows, device=case.device) != 5
    (gate_up, _), (down, _) = case.experts(num_experts, 128, width), case.experts(num_experts, width, 64)
    router, router_bias = case.blocked(case.random(num_experts, width)), case.random(num_experts)
    up_bias, down_bias, norm = case.random(num_experts, 128), case.random(num_experts, width), case.random(width)
    tokens, table = torch.arange(num_rows, device=case.device), case.rows(50, width)
    outs = []
    for products in (TritonProducts(), InBf16(), InBf16(moe.Workspace(num_rows, 2, 0, 64, case.device))):
        ops = PromptOps(products)
        residual, normed = ops.embed(tokens, table, norm)
        chosen = ops.router(normed, router, router_bias, EPS)
        rows = ops.moe_up(normed, chosen, live, gate_up, up_bias, top_k=2, limit=7.0, eps=EPS)
        outs.append(ops.moe_down(rows, chosen, live, down, down_bias, residual, norm))
    (by_triton, _), (out, after), few = outs
    assert torch.equal(few[0], out) and all(map(torch.equal, few[1], after))
    assert (out - by_triton).norm() < 5e-3 * by_triton.norm()  # activations are rounded to bf16


def test_layers_of_a_pass_share_counters(case, monkeypatch):
    """They are made for each pass, and again after a layer that did not come to its end."""
    num_experts, width, num_rows, zeros, made = 16, 64, 21, routing.Tally.zeros, []
    monkeypatch.setattr(routing.Tally, "zeros", lambda *args: made.append(args) or zeros(*args))
    outputs = case.rows(num_rows * 4, width)
    monkeypatch.setattr(experts, "experts_up", lambda *args, **kwargs: None)
    monkeypatch.setattr(experts, "experts_down", lambda *args: outputs)
    router, bias = case.blocked(case.random(num_experts, width)), case.random(num_experts)
    norm, table, ops = case.random(width), case.rows(50, width), PromptOps()
    tokens, live = torch.arange(num_rows, device=case.device), torch.arange(num_rows, device=case.device) != 5
    gate_up, _ = case.experts(num_experts, 64, width)
    for num_made in (2, 4):
        residual, normed = ops.embed(tokens, table, norm)
        for is_finished in (False, True, True):
            chosen = ops.router(normed, router, bias, EPS)
            rows = ops.moe_up(normed, chosen, live, gate_up, bias, top_k=4, limit=7.0, eps=EPS)
            counts = rows.routing.ids_TK[live].flatten().bincount(minlength=num_experts)
            assert torch.equal(rows.routing.tally.counts_E.long(), counts)
            if is_finished:
                residual, normed = ops.moe_down(rows, chosen, live, None, None, residual, norm)
        assert len(made) == num_made


@pytest.mark.gpu
@pytest.mark.parametrize("products", [TritonProducts, cuda_experts.HopperProducts])
def test_bits_do_not_depend_on_cuts_and_tiles(case, monkeypatch, products):
    """A layer over 96 rows, at once and in chunks with other tiles of experts. The interpreter multiplies with BLAS."""
    if products is cuda_experts.HopperProducts and not device_limits(torch.device(case.device)).has_wgmma:
        pytest.skip("no Hopper GPU")
    width, inner, num_heads, num_kv, num_experts, num_rows = 64, 32, 8, 2, 16, 96
    weights = {
        "qkv": case.blocked(case.random((num_heads + 2 * num_kv) * 64, width, scale=0.2)),
        "o": case.blocked(case.random(width, num_heads * 64, scale=0.1)),
        "router": case.blocked(case.random(num_experts, width)),
    }
    gate_up, _ = case.experts(num_experts, 2 * inner, width)
    down, _ = case.experts(num_experts, width, inner)
    biases = {name: case.random(*shape) for name, shape in {
        "qkv": ((num_heads + 2 * num_kv) * 64,), "o": (width,), "router": (num_experts,),
        "gate_up": (num_experts, 2 * inner), "down": (num_experts, width),
    }.items()}  # fmt: skip
    norm, sinks, table = case.random(width), case.random(num_heads), case.rows(50, width)
    tokens = torch.arange(num_rows, device=case.device) % 50
    rope = RopeTable(case.random(num_rows, 32), case.random(num_rows, 32))
    whole, empty, ops = case.sequence(0, num_rows), case.cache(num_kv), PromptOps(products())

    def layer(first, end, cache):
        rows = Rows(whole.positions_SR[:, first:end], whole.live_SR[:, first:end], whole.table_SP, end)
        residual, normed = ops.embed(tokens[first:end], table, norm)
        attn = ops.attend(
            ops.project(normed, weights["qkv"]), rows, cache, rope,
            eps=EPS, bias_N=biases["qkv"], sinks_Q=sinks, window=40,
        )  # fmt: skip
        residual, normed = ops.add(attn, weights["o"], biases["o"], residual, norm)
        chosen = ops.router(normed, weights["router"], biases["router"], EPS)
        live = rows.live_SR[0]
        act = ops.moe_up(normed, chosen, live, gate_up, biases["gate_up"], top_k=4, limit=7.0, eps=EPS)
        residual, normed = ops.moe_down(act, chosen, live, down, biases["down"], residual, norm)
        return torch.cat((residual, normed.rows_TH.float(), normed.square_sums_TP), dim=1)

    def run(cuts, tile_rows):
        for module, name in ((experts, "expert_tile_rows"), (cuda_experts, "tile_rows")):
            monkeypatch.setattr(module, name, lambda num_pairs, num_experts: tile_rows)
        cache = LayerCache(empty.k.clone(), empty.v.clone())
        parts = [layer(first, end, cache) for first, end in itertools.pairwise(cuts)]
        return torch.cat(parts), cache

    expected, cache = run((0, 96), 32)
    assert expected.isfinite().all()
    for cuts, tile_rows in (((0, 64, 96), 16), ((0, 16, 80, 96), 64)):
        actual, other = run(cuts, tile_rows)
        assert torch.equal(actual, expected)
        assert torch.equal(other.k, cache.k)
        assert torch.equal(other.v, cache.v)
