"""The helpers of common.cuh against PyTorch, in the emulator and, where there is one, on a GPU."""

from pathlib import Path

import pytest
import torch
from tests.kernels.cuda.emulator import emulated

from eyas.kernels.cuda import compiler

HERE = Path(__file__).parent


def _on_gpu(source: str):
    return compiler.Module(compiler.build(source, arch=compiler.device_arch(), folder=HERE).cubin, source)


@pytest.fixture(params=["emulated", "shuffled", pytest.param("cuda", marks=pytest.mark.gpu)])
def probe(request):
    """The kernels of probe.cu and the device that they run on."""
    if request.param == "cuda":
        return _on_gpu("probe"), torch.device("cuda")
    return emulated("probe", folder=HERE, seed=7 if request.param == "shuffled" else 0), torch.device("cpu")


def _nan(*shape: int, device: torch.device) -> torch.Tensor:
    return torch.full(shape, torch.nan, device=device)


@pytest.mark.parametrize("num_k", [32, 96])
def test_multiply_is_a_matrix_product(probe, num_k: int):
    module, device = probe
    a, b = torch.randn(16, num_k, device=device).bfloat16(), torch.randn(8, num_k, device=device).bfloat16()
    out = _nan(16, 8, device=device)
    module.kernel("multiply").launch(1, 32, out, a, b, num_k)
    torch.testing.assert_close(out, a.float() @ b.float().T, rtol=1e-5, atol=1e-4)


def test_reductions(probe):
    module, device = probe
    values = torch.randint(0, 99, (256,), device=device).float()
    out = _nan(256, 5, device=device)
    module.kernel("reduce").launch(1, 256, out, values, shared=32)
    warps = values.view(8, 32)
    whole = torch.ones(8, 32, device=device)
    expected = [
        warps.sum(1, keepdim=True) * whole,
        (warps % 2).sum(1, keepdim=True) * whole,
        torch.cat([warps[:, :1], warps[:, :-1]], 1),
        values.sum() * whole,
        warps.flip(1),
    ]
    assert torch.equal(out.T.reshape(5, 8, 32), torch.stack(expected))


def test_the_last_block_sees_all_parts(probe):
    module, device = probe
    total, parts = _nan(2, device=device), _nan(2, 200, device=device)
    counters = torch.zeros(2, dtype=torch.int32, device=device)
    for _ in range(2):
        module.kernel("ticket").launch(200, 64, total, parts, counters)
        assert total.tolist() == [199 * 100, 199 * 100 + 200]
        assert counters.tolist() == [0, 0]
        total.fill_(torch.nan)


def test_copies_through_much_shared_memory(probe):
    module, device = probe
    count = 16 * 1024
    values = torch.randn(2, count, device=device)
    out = _nan(2, count, device=device)
    module.kernel("stage").launch(2, 128, out, values, count, count, 2.0, shared=4 * count)
    kept = values.view(2, -1, 2, 4) * torch.tensor([1.0, 0.0], device=device).view(1, 1, 2, 1)
    assert torch.equal(out, 2 * kept.reshape(2, count).flip(1))


@pytest.mark.parametrize("num_chunks", [1, 2, 7])
def test_bulk_copies_in_a_ring(probe, num_chunks: int):
    module, device = probe
    values = torch.randint(0, 99, (num_chunks, 64), device=device).float()
    out = _nan(64, device=device)
    module.kernel("ring").launch(1, 64, out, values, num_chunks, shared=544)
    assert torch.equal(out, values.sum(0))


def test_blocks_meet(probe):
    module, device = probe
    out, scratch = _nan(5, device=device), torch.full((5,), -1, dtype=torch.int32, device=device)
    module.kernel("meet").launch(5, 64, out, scratch)
    assert out.tolist() == [1, 2, 3, 4, 0]


def test_blocks_of_a_cluster_read_each_other(probe):
    module, device = probe
    values = torch.randn(2, 3, 4, 64, 4, device=device)  # y, x, block of the cluster, thread
    out = _nan(*values.shape, device=device)
    module.kernel("cluster").launch((3, 2, 4), 64, out, values, shared=64 * 16)
    thread = torch.arange(64, device=device)
    assert torch.equal(out, values[:, :, thread // 2 % 4, thread ^ 1][:, :, None].expand_as(out))


def test_conversions(probe):
    module, device = probe
    edges = [
        0.0,
        1.0,
        -1.0,
        2.0**-126,
        2.0**-127,
        3.0e38,
        1.00390625,
        1.01171875,
        0.1,
        300.0,
        float("inf"),
        float("nan"),
    ]
    values = torch.cat([torch.tensor(edges), torch.randn(500)]).to(device)
    out = _nan(512, 8, device=device)
    module.kernel("convert").launch(2, 256, out, values, 512)
    rounded = values.bfloat16().float()
    exact = torch.stack([rounded, -rounded, rounded, (-2 * rounded).bfloat16().float()], 1)
    torch.testing.assert_close(out[:, :4], exact, rtol=0, atol=0, equal_nan=True)
    small = values.clamp(-80, 80)
    mild = (values.abs() > 1e-30) & (values.abs() < 80)
    fast = torch.stack([small.exp2(), small.exp(), 1 / values, values.abs().rsqrt()], 1)
    torch.testing.assert_close(out[mild, 4:], fast[mild], rtol=1e-5, atol=0)


def test_arguments_are_checked(probe):
    module, device = probe
    kernel = module.kernel("add_one")
    values = torch.zeros(4, device=device)
    with pytest.raises(TypeError, match="takes 3 arguments, not 2"):
        kernel.launch(1, 32, values, values)
    with pytest.raises(TypeError, match="argument 2 of add_one has 4 bytes"):
        kernel.launch(1, 32, values, values, values)
    with pytest.raises(TypeError, match="a float does not fit"):
        kernel.launch(1, 32, 1.0, values, 4)


@pytest.mark.gpu
@pytest.mark.parametrize("pdl", [False, True])
def test_a_chain_in_a_graph(pdl: bool):
    kernel = _on_gpu("probe").kernel("add_one")
    a, b = torch.zeros(1 << 16, device="cuda"), torch.zeros(1 << 16, device="cuda")
    kernel.launch(256, 256, b, a, len(a))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(50):
            kernel.launch(256, 256, b, a, len(a), pdl=pdl)
            kernel.launch(256, 256, a, b, len(a), pdl=pdl)
    a.zero_()
    for _ in range(3):
        graph.replay()
    assert torch.equal(a, torch.full_like(a, 300.0))
