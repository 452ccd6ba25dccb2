"""The matrix instruction of a warpgroup against products in fp64, in the emulator and on a Hopper GPU."""

from pathlib import Path

import pytest
import torch
from tests.kernels.cuda.emulator import emulated

from eyas.kernels.cuda import compiler

HERE = Path(__file__).parent
SIZES = (16, 32, 48, 64, 96, 128)


def module(size, device, short):
    defines = {"ROWS": size, "SHORT": int(short)}
    if device == "cpu":
        return emulated("wgmma_probe", defines, folder=HERE)
    built = compiler.build("wgmma_probe", defines, compiler.device_arch(), folder=HERE)
    return compiler.Module(built.cubin, "wgmma_probe")


def products(size, num_k, device, short):
    """Products of the same numbers by a warpgroup, by warps, and exact; a column does not depend on `size`."""
    generator = torch.Generator().manual_seed(num_k)
    a, b = (torch.randn(n, num_k, generator=generator).bfloat16().to(device) for n in (64, 128))
    b = b[:size].contiguous()
    out, by_warp = (torch.full((64, size), torch.nan, device=device) for _ in range(2))
    module(size, device, short).kernel("multiply").launch(1, 128, out, by_warp, a, b, num_k, shared=1024 + 128 * size)
    return out, by_warp, a.double() @ b.double().T


def check(size, num_k, device, short=False):
    out, by_warp, exact = products(size, num_k, device, short)
    for found in (out, by_warp):
        torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5 * num_k**0.5)
    return out, by_warp


@pytest.mark.parametrize("size", [16, pytest.param(48, marks=pytest.mark.slow)])
@pytest.mark.parametrize("short", [False, True])
def test_emulated(size, short):
    out, by_warp = check(size, 128, "cpu", short)
    assert torch.equal(out, by_warp)


def over_rows(num_k, device):
    generator = torch.Generator().manual_seed(num_k)
    a, b = (torch.randn(*shape, generator=generator).bfloat16().to(device) for shape in ((64, num_k), (num_k, 64)))
    out = torch.full((64, 64), torch.nan, device=device)
    module(64, device, False).kernel("multiply_over_rows").launch(1, 128, out, a, b, num_k, shared=1024 + 128 * 64)
    torch.testing.assert_close(out.double(), a.double() @ b.double(), rtol=1e-5, atol=1e-5 * num_k**0.5)


def test_sums_over_rows_emulated():
    over_rows(128, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("num_k", [64, 2880])
def test_sums_over_rows(num_k):
    over_rows(num_k, "cuda")


@pytest.mark.gpu
def test_the_bits_of_a_column_do_not_depend_on_the_number_of_columns():
    first = [check(size, 2880, "cuda", short) for size in SIZES for short in (False, True)]
    assert all(torch.equal(out[:, :16], first[0][0]) for out, _ in first)
    assert all(torch.equal(out, by_warp) for out, by_warp in first)  # linear_wgmma.cu rests on it
