"""The row-wise operations against straightforward implementations, and each row's bits alone and in a crowd."""

import pytest
import torch
import torch.nn.functional as F

from eyas.kernels.layouts.fp8_cache import to_fp8_pair
from eyas.kernels.reference.layers.linear import linear, self_test
from eyas.kernels.reference.layers.moe import moe_down_ref, moe_up_ref, swiglu_clamped
from eyas.kernels.reference.layers.norm import Normed, inverse_rms, prepare_norm, rms_norm
from eyas.kernels.reference.layers.ops import LayerCache
from eyas.kernels.reference.layers.plain_ops import PlainOps
from eyas.kernels.reference.layers.rope_write import finish, rope_write_ref
from eyas.kernels.reference.layers.router import route

HIDDEN, INTER, EXPERTS, TOP_K, LIMIT, EPS = 96, 160, 6, 3, 7.0, 1e-5
HEADS, KV, DIM, PAGE = 4, 2, 16, 8
CROWDS = (1, 2, 7, 8, 9, 21)
OPS = PlainOps(dense=8, experts=1)


def normal(*shape, seed, scale=1.0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale


def close(ours, expected):
    torch.testing.assert_close(ours.double(), expected, rtol=1e-4, atol=1e-5)


def norm64(x, weight):
    x = x.double()
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight.double()


WEIGHTS = {
    "norm": normal(HIDDEN, seed=1, scale=0.1) + 1,
    "matrix": normal(50, HIDDEN, seed=2),
    "bias": normal(50, seed=3),
    "qkv": normal((HEADS + 2 * KV) * DIM, HIDDEN, seed=4, scale=0.1),
    "qkv_bias": normal((HEADS + 2 * KV) * DIM, seed=5),
    "o": normal(HIDDEN, HEADS * DIM, seed=6, scale=0.2),
    "o_bias": normal(HIDDEN, seed=7),
    "router": normal(EXPERTS, HIDDEN, seed=8, scale=0.2),
    "router_bias": normal(EXPERTS, seed=9),
    "gate_up": normal(EXPERTS, 2 * INTER, HIDDEN, seed=10, scale=0.3),
    "gate_up_bias": normal(EXPERTS, 2 * INTER, seed=11),
    "down": normal(EXPERTS, HIDDEN, INTER, seed=12, scale=0.1),
    "down_bias": normal(EXPERTS, HIDDEN, seed=13),
}


def routed(num_rows, seed=20):
    """Distinct experts a row, some rows dead, and their weights."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.stack([torch.randperm(EXPERTS, generator=generator)[:TOP_K] for _ in range(num_rows)])
    ids[2::5] = -1
    return ids, torch.rand(num_rows, TOP_K, generator=generator)


@pytest.mark.parametrize("tile", [None, 8, 64])
@pytest.mark.parametrize("num_rows", [1, 8, 13, 64, 65])
def test_linear(num_rows, tile):
    x = normal(num_rows, HIDDEN, seed=0)
    expected = x.double() @ WEIGHTS["matrix"].double().T
    close(linear(x, WEIGHTS["matrix"], None, tile=tile), expected)
    close(linear(x, WEIGHTS["matrix"], WEIGHTS["bias"], tile=tile), expected + WEIGHTS["bias"].double())


def test_linear_in_bf16_takes_an_fp32_bias():
    x, weight = normal(3, HIDDEN, seed=0).bfloat16(), WEIGHTS["matrix"].bfloat16()
    out = linear(x, weight, WEIGHTS["bias"], tile=8)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, F.linear(F.pad(x, (0, 0, 0, 5)), weight, WEIGHTS["bias"].bfloat16())[:3])


def test_rms_norm_multiplies_before_it_casts():
    x = normal(9, HIDDEN, seed=0, scale=3)
    close(rms_norm(x, WEIGHTS["norm"], EPS), norm64(x, WEIGHTS["norm"]))
    half = x.bfloat16()
    assert torch.equal(rms_norm(half, WEIGHTS["norm"], EPS), rms_norm(half.float(), WEIGHTS["norm"], EPS).bfloat16())


def test_the_split_norm_is_the_norm():
    x = normal(9, HIDDEN, seed=0, scale=3)
    normed = prepare_norm(x, WEIGHTS["norm"], torch.float32)
    close(normed.rows_TH * inverse_rms(normed, EPS), norm64(x, WEIGHTS["norm"]))
    parts = Normed(normed.rows_TH, x.square().unflatten(1, (6, 16)).sum(-1))
    torch.testing.assert_close(inverse_rms(parts, EPS), inverse_rms(normed, EPS))


def test_logits_are_norm_and_projection():
    x = normal(5, HIDDEN, seed=0)
    logits = OPS.logits(prepare_norm(x, WEIGHTS["norm"], x.dtype), WEIGHTS["matrix"], EPS)
    close(logits, norm64(x, WEIGHTS["norm"]) @ WEIGHTS["matrix"].double().T)
    assert logits.dtype == torch.float32


def test_a_gated_layer():
    x, both = normal(5, HIDDEN, seed=0), WEIGHTS["matrix"]
    out = OPS.gated(prepare_norm(x, WEIGHTS["norm"], x.dtype), both, EPS)
    gate, up = (norm64(x, WEIGHTS["norm"]) @ both.double().T).chunk(2, dim=-1)
    close(out, gate * torch.sigmoid(gate) * up)


def test_add_and_router():
    attn, residual = normal(11, HEADS * DIM, seed=30), normal(11, HIDDEN, seed=31)
    live = torch.arange(11) % 4 != 1
    out, normed, logits = run_add_and_router(attn, residual)
    expected = residual.double() + attn.double() @ WEIGHTS["o"].double().T + WEIGHTS["o_bias"].double()
    close(out, expected)
    close(normed.rows_TH * inverse_rms(normed, EPS), norm64(expected, WEIGHTS["norm"]))
    expected = norm64(expected, WEIGHTS["norm"]) @ WEIGHTS["router"].double().T + WEIGHTS["router_bias"].double()
    close(logits, expected)
    ids, weights = route(logits, live, TOP_K)
    for row in range(11):
        order = expected[row].argsort(descending=True)[:TOP_K]
        assert ids[row].tolist() == (order.tolist() if live[row] else [-1] * TOP_K)
        close(weights[row], expected[row][order].softmax(0))


def run_add_and_router(attn, residual):
    out, normed = OPS.add(attn, WEIGHTS["o"], WEIGHTS["o_bias"], residual, WEIGHTS["norm"])
    return out, normed, OPS.router(normed, WEIGHTS["router"], WEIGHTS["router_bias"], EPS)


def run_moe(x, ids, weights, residual, tile):
    """The products of the rows are scaled by 1.5."""
    up = {"gate_up": WEIGHTS["gate_up"], "bias_EN": WEIGHTS["gate_up_bias"], "limit": LIMIT, "tile": tile}
    act = moe_up_ref(x, torch.full((len(x), 1), 1.5), ids, **up)
    down = {"down": WEIGHTS["down"], "bias_EH": WEIGHTS["down_bias"], "tile": tile}
    return act, moe_down_ref(act, ids, weights, residual, **down)


@pytest.mark.parametrize("tile", [None, 1, 4, 16])
def test_moe_is_a_weighted_sum_of_clamped_swiglu_experts(tile):
    x, residual = normal(13, HIDDEN, seed=40, scale=2), normal(13, HIDDEN, seed=41)
    ids, weights = routed(13)
    act, out = run_moe(x, ids, weights, residual, tile)
    clamped = 0
    for row in range(13):
        expected = residual[row].double()
        for rank, expert in enumerate(ids[row].tolist()):
            if expert < 0:
                assert not act[row, rank].any()
                continue
            both = WEIGHTS["gate_up"][expert].double() @ x[row].double() * 1.5
            both += WEIGHTS["gate_up_bias"][expert].double()
            gate, up = both[::2].clamp(max=LIMIT), both[1::2].clamp(-LIMIT, LIMIT)
            clamped += int((both[::2] > LIMIT).sum()) * int((both[1::2].abs() > LIMIT).sum())
            hidden = gate * torch.sigmoid(1.702 * gate) * (up + 1)
            close(act[row, rank], hidden)
            down = WEIGHTS["down"][expert].double() @ hidden + WEIGHTS["down_bias"][expert].double()
            expected = expected + weights[row, rank].double() * down
        torch.testing.assert_close(out[row].double(), expected, rtol=1e-4, atol=1e-4)
    assert clamped > 0


def test_experts_that_no_row_picked_are_not_asked_for():
    class Asked(dict):
        def __missing__(self, expert):
            self[expert] = WEIGHTS["gate_up"][expert]
            return self[expert]

    asked = Asked()
    ids = torch.tensor([[4, 1], [-1, -1], [1, 4]])
    x, scale = normal(3, HIDDEN, seed=0), torch.ones(3, 1)
    moe_up_ref(x, scale, ids, gate_up=asked, bias_EN=WEIGHTS["gate_up_bias"], limit=LIMIT, tile=8)
    assert set(asked) == {1, 4}


def test_swiglu_has_no_lower_clamp_on_the_gate():
    out = swiglu_clamped(torch.tensor([[-20.0, 3.0, 20.0, 20.0, 20.0, -20.0]]), LIMIT)
    gate, big = torch.tensor(-20.0).double(), torch.tensor(7.0).double()
    expected = [gate * torch.sigmoid(1.702 * gate) * 4, big * torch.sigmoid(1.702 * big) * 8, 0]
    expected[2] = big * torch.sigmoid(1.702 * big) * -6
    torch.testing.assert_close(out[0].double(), torch.stack(expected), rtol=1e-5, atol=1e-18)


def run_qkv(x, slots, cos, sin, cache):
    product = OPS.project(prepare_norm(x, WEIGHTS["norm"], x.dtype), WEIGHTS["qkv"])
    return rope_write_ref(
        finish(product, WEIGHTS["qkv_bias"], EPS),
        cos_TD=cos,
        sin_TD=sin,
        k_cache_PGBD=cache.k,
        v_cache_PGBD=cache.v,
        pages_T=slots // PAGE,
        offsets_T=slots % PAGE,
        scales_PG2B=cache.scales_PG2B,
    )


def by_token(caches):
    """[2, pages, G, page size, D] as [2, tokens, G, D]."""
    return caches.transpose(2, 3).flatten(1, 2)


def test_rope_write_rotates_and_writes_only_its_slots():
    num_rows = 9
    x, angles = normal(num_rows, HIDDEN, seed=50), torch.rand(num_rows, DIM // 2) * 6
    caches = torch.full((2, 5, KV, PAGE, DIM), -7.0)
    slots = torch.tensor([8, 9, 10, 31, 32, 17, 39, 24, 12])
    q = run_qkv(x, slots, angles.cos(), angles.sin(), LayerCache(*caches))
    qkv = norm64(x, WEIGHTS["norm"]) @ WEIGHTS["qkv"].double().T + WEIGHTS["qkv_bias"].double()
    qkv = qkv.unflatten(-1, (-1, DIM))
    # Half-split rotation as multiplication of complex numbers x1 + i x2.
    turned = torch.complex(qkv[..., : DIM // 2], qkv[..., DIM // 2 :]) * torch.polar(
        torch.ones(()).double(), angles.double()
    ).unsqueeze(1)
    rotated = torch.cat((turned.real, turned.imag), dim=-1)
    close(q, rotated[:, :HEADS])
    flat = by_token(caches)
    close(flat[0, slots], rotated[:, HEADS : HEADS + KV])
    close(flat[1, slots], qkv[:, HEADS + KV :])
    untouched = torch.ones(5 * PAGE, dtype=torch.bool)
    untouched[slots] = False
    assert (flat[:, untouched] == -7).all()


def test_rope_write_rounds_to_8_bits():
    """As a cache of the rows' own dtype would be rounded; neighbours on a page are left alone."""
    x, angles = normal(9, HIDDEN, seed=50), torch.rand(9, DIM // 2) * 6
    slots = torch.tensor([8, 9, 10, 31, 32, 17, 39, 24, 12])
    plain = LayerCache(*torch.zeros(2, 5, KV, PAGE, DIM))
    rounded = LayerCache.zeros((5, KV, PAGE, DIM), torch.float32, torch.device("cpu"), in_fp8=True)
    first, second = (run_qkv(x, slots, angles.cos(), angles.sin(), cache) for cache in (plain, rounded))
    assert torch.equal(first, second)
    k, v, scales = to_fp8_pair(plain.k, plain.v)
    assert torch.equal(rounded.k, k) and torch.equal(rounded.v, v)
    written = torch.zeros(5 * PAGE, dtype=torch.bool)
    written[slots] = True
    scales.transpose(1, 2)[~written.view(5, PAGE)] = 0
    assert torch.equal(rounded.scales_PG2B, scales.transpose(2, 3))


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_row_that_is_not_finite_poisons_its_key_and_spares_its_value(poison):
    """So that a masked weight of 0 times the value stays 0; the other rows keep their bits."""
    x, angles = normal(9, HIDDEN, seed=50), torch.rand(9, DIM // 2) * 6
    clean, caches = torch.zeros(2, 3, KV, PAGE, DIM), torch.zeros(2, 3, KV, PAGE, DIM)
    slots = torch.arange(9)
    run_qkv(x, slots, angles.cos(), angles.sin(), LayerCache(*clean))
    x[4, 0] = poison
    run_qkv(x, slots, angles.cos(), angles.sin(), LayerCache(*caches))
    keys, values = by_token(caches)
    assert keys[4].isnan().all() and (values[4] == 0).all()
    others = slots[slots != 4]
    assert torch.equal(by_token(caches)[:, others], by_token(clean)[:, others])


def qkv_of_rows(x):
    angles = x[:, : DIM // 2]
    caches = torch.zeros(2, 4, KV, PAGE, DIM)
    q = run_qkv(x, torch.arange(len(x)), angles.cos(), angles.sin(), LayerCache(*caches))
    return torch.cat((q.flatten(1), by_token(caches)[0].flatten(1)[: len(x)]), dim=1)


def add_and_router_of_rows(x):
    out, normed, logits = run_add_and_router(x[:, : HEADS * DIM], x)
    return torch.cat((out, *normed, logits), dim=1)


def moe_of_rows(x):
    """Each row's experts follow from its own values."""
    scores = linear(x, WEIGHTS["router"], None, tile=8)
    top, ids = scores.topk(TOP_K)
    return run_moe(x, ids, top.softmax(-1), x, 1)[1]


ROW_WISE = {
    "linear": lambda x: linear(x, WEIGHTS["matrix"], WEIGHTS["bias"], tile=8),
    "rms_norm": lambda x: rms_norm(x, WEIGHTS["norm"], EPS),
    "logits": lambda x: OPS.logits(prepare_norm(x, WEIGHTS["norm"], x.dtype), WEIGHTS["matrix"], EPS),
    "gated": lambda x: OPS.gated(prepare_norm(x, WEIGHTS["norm"], x.dtype), WEIGHTS["matrix"], EPS),
    "rope_write": qkv_of_rows,
    "add_and_router": add_and_router_of_rows,
    "moe": moe_of_rows,
}


@pytest.mark.parametrize("name", ROW_WISE)
def test_a_row_has_the_same_bits_alone_and_at_every_place_of_a_crowd(name):
    row, run = normal(1, HIDDEN, seed=60), ROW_WISE[name]
    alone = run(row)[0]
    for size in CROWDS:
        crowd = normal(size, HIDDEN, seed=61 + size)
        for place in range(size):
            rows = crowd.clone()
            rows[place] = row[0]
            assert torch.equal(run(rows)[place], alone), f"place {place} of {size}"


def test_the_self_test_sees_a_matrix_product_that_depends_on_the_place(monkeypatch):
    weight = WEIGHTS["matrix"]
    assert self_test(weight, tile=8)
    scale = 1 + torch.arange(8).unsqueeze(1) * 1e-6
    monkeypatch.setattr(F, "linear", lambda x, w, b=None: (x @ w.T) * scale[: len(x)])
    assert not self_test(weight, tile=8)
