"""Dense products by TMA have the bits of those by pointers. Integers make every sum exact, in the interpreter, too."""

import pytest
import torch

from eyas.kernels.layouts.dense import BlockedMatrix
from eyas.kernels.layouts.device import Limits, device_limits
from eyas.kernels.reference.layers.norm import Normed
from eyas.kernels.reference.layers.ops import LayerCache, RopeTable, Rows
from eyas.kernels.triton.prompts import gemm, qkv, tma

PAGE = 16
HOPPER = Limits(3, 227 << 10, has_wgmma=True)  # of three multiprocessors, so that each computes several tiles


def whole(*shape, device, largest=3):
    return torch.randint(-largest, largest + 1, shape, device=device).float()


def blocked(weight, dtype):
    matrix = BlockedMatrix.pack(weight)
    return BlockedMatrix(matrix.data.to(dtype))


@pytest.fixture
def few_programs(monkeypatch, device):
    if device == "cuda" and not device_limits(torch.device(device)).has_wgmma:
        pytest.skip("no Hopper GPU")
    monkeypatch.setattr(tma, "device_limits", lambda device: HOPPER)
    torch.manual_seed(0)


def same(ours, usual):
    return all(torch.equal(a, b) for a, b in zip(ours, usual, strict=True))


@pytest.mark.parametrize("biased", [True, False])
def test_output_product(few_programs, monkeypatch, device, dtype, biased):
    """Neither 70 rows nor 144 features fill their last tile, and 96 columns no step of 64."""
    x, weight = whole(70, 96, device=device).to(dtype), blocked(whole(144, 96, device=device), dtype)
    bias, residual, norm = (whole(*shape, device=device) for shape in ((144,), (70, 144), (144,)))

    def run():
        out, normed = gemm.add(x, weight, bias if biased else None, residual, norm)
        return out, *normed

    launch = {"BLOCK_T": 64, "BLOCK_N": 128, "STEP": 64, "GROUP_T": 2, "num_warps": 4, "num_stages": 3}
    usual = run()
    monkeypatch.setattr(gemm, "_config", lambda *_: launch)
    assert usual[0].abs().max() > 10
    assert same(run(), usual)


def test_plain_product(few_programs, monkeypatch, device, dtype):
    x, matrix = whole(70, 96, device=device).to(dtype), blocked(whole(144, 96, device=device), dtype)

    def run():
        return gemm.linear(x, matrix, dtype=torch.float32)

    launch = {"BLOCK_T": 64, "BLOCK_N": 128, "STEP": 64, "GROUP_T": 2, "num_warps": 4, "num_stages": 3}
    usual = run()
    monkeypatch.setattr(gemm, "_config", lambda *_: launch)
    assert usual.abs().max() > 10
    assert torch.equal(run(), usual)


@pytest.mark.parametrize(
    ("num_heads", "num_kv", "pairs", "is_normed"), [(4, 2, 2, True), (4, 2, 2, False), (6, 1, 1, True)]
)
def test_queries_keys_and_values(few_programs, monkeypatch, device, dtype, num_heads, num_kv, pairs, is_normed):
    length, width = 40, 96  # of two sequences
    weight = blocked(whole((num_heads + 2 * num_kv) * 64, width, device=device), dtype)
    x, bias = whole(2 * length, width, device=device).to(dtype), whole(weight.num_rows, device=device)
    bias[-60] = float("inf")  # a value that is not finite
    positions = torch.arange(length, device=device).repeat(2, 1)
    rows = Rows(positions, positions < 38, 1 + torch.randperm(6, device=device).view(2, 3), length)
    rope = RopeTable(*torch.randn(2, length, 32, device=device))

    def run():
        cache = LayerCache(*torch.zeros(2, 7, num_kv, PAGE, 64, device=device, dtype=dtype))
        normed = Normed(x, torch.full((2 * length, 3), width / 3, device=device))
        q = qkv.qkv_rope_write(
            normed if is_normed else x, weight, bias if is_normed else None, rows, cache, rope, eps=1e-5
        )
        return q, cache.k[1:].nan_to_num(1e6), cache.v[1:]

    launch = {"BLOCK_T": 64, "PAIRS": pairs, "STEP": 64, "GROUP_T": 2, "num_warps": 4, "num_stages": 3}
    usual = run()
    monkeypatch.setattr(qkv, "_config", lambda *_: launch)
    assert all(tensor.abs().max() > 1 for tensor in usual[:2])
    assert same(run(), usual)


@pytest.mark.gpu
def test_bits_at_true_shapes(few_programs, monkeypatch, device):
    """Random numbers, whose sums are rounded; the interpreter multiplies with BLAS."""
    num_rows, heads, kv_heads, width = tma.MIN_ROWS, 64, 8, 2880
    monkeypatch.setattr(tma, "device_limits", device_limits)
    queries = (torch.randn((heads + 2 * kv_heads) * 64, width, device=device) / 50).bfloat16()
    qkv_weight = BlockedMatrix.pack(queries)
    weight = BlockedMatrix.pack((torch.randn(width, heads * 64, device=device) / 50).bfloat16())
    residual, norm, bias = (
        torch.randn(num_rows, width, device=device),
        torch.randn(width, device=device),
        torch.randn(5120, device=device),
    )
    normed = Normed(residual.bfloat16(), residual.square().sum(1, keepdim=True))
    positions = torch.arange(num_rows, device=device)[None]
    rows = Rows(positions, positions >= 0, 1 + torch.randperm(128, device=device)[None], num_rows)
    rope = RopeTable(*torch.randn(2, num_rows, 32, device=device))

    def run():
        cache = LayerCache(*torch.zeros(2, 129, kv_heads, PAGE, 64, device=device, dtype=torch.bfloat16))
        q = qkv.qkv_rope_write(normed, qkv_weight, bias, rows, cache, rope, eps=1e-5)
        out, split = gemm.add(q.flatten(1), weight, norm, residual, norm)
        return q, cache.k, cache.v, out, *split

    monkeypatch.setattr(tma, "MIN_ROWS", num_rows + 1)
    usual = run()
    monkeypatch.setattr(tma, "MIN_ROWS", num_rows)
    assert same(run(), usual)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run()
    graph.replay()
    assert same(captured, usual)


def test_large_passes_on_hopper_take_tma(monkeypatch):
    device = torch.device("cpu")
    assert not tma.takes_tma(2048, device)
    monkeypatch.setattr(tma, "device_limits", lambda device: HOPPER)
    assert tma.takes_tma(2048, device) and not tma.takes_tma(2047, device)
    assert "STEP" in gemm._config(2048, device, True) and "STEP" not in gemm._config(2048, device, False)
    assert "STEP" in qkv._config(2048, 64, 8, device)
    assert "STEP" not in qkv._config(2048, 24, 8, device)  # no pairs of heads that lie as keys and values do
