"""Norms and SwiGLU against autograd in fp64, at widths that fill no block."""

import pytest
import torch

from eyas.kernels.training import rows
from eyas.kernels.training.rows import norm_backward, norm_forward, rotated, swiglu_backward, swiglu_forward
from eyas.train.heads.numerics import rotate

EPS = 1e-5


@pytest.fixture
def tolerance(dtype):
    return {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}


@pytest.mark.parametrize(("num_rows", "width"), [(1, 7), (50, 72)])
def test_norm(num_rows, width, device, dtype, tolerance, monkeypatch):
    monkeypatch.setattr(rows, "_PROGRAMS", 8)  # so that each has several rows
    generator = torch.Generator().manual_seed(0)
    # Parts of wider rows, as gradients of a concatenation are.
    x, d_out = (torch.randn(num_rows, 2 * width, generator=generator).to(device, dtype)[:, width:] for _ in range(2))
    weight = torch.randn(width, generator=generator).to(device)
    exact, exact_weight = x.double().requires_grad_(), weight.double().requires_grad_()
    factor = (exact.square().mean(-1, keepdim=True) + EPS).rsqrt()
    wanted = exact * factor * exact_weight
    d_x, d_weight = torch.autograd.grad(wanted, (exact, exact_weight), d_out.double())
    out, found_factor = norm_forward(x, weight, EPS)
    torch.testing.assert_close(out.double(), wanted, **tolerance)
    torch.testing.assert_close(found_factor.double(), factor, **tolerance)
    found, found_weight = norm_backward(d_out, x, found_factor, weight)
    torch.testing.assert_close(found.double(), d_x, **tolerance)
    torch.testing.assert_close(found_weight.double(), d_weight, rtol=1e-3, atol=1e-3)


def test_rotation_and_its_gradient(device, dtype, tolerance):
    generator = torch.Generator().manual_seed(2)
    x, d_out = (torch.randn(5, 3, 16, generator=generator).to(device, dtype) for _ in range(2))
    angles = torch.randn(5, 8, generator=generator)
    exact = x.double().requires_grad_()
    cos, sin = angles.cos().to(device), angles.sin().to(device)
    wanted = rotate(exact, cos.double(), sin.double())
    torch.testing.assert_close(rotated(x, cos, sin).double(), wanted, **tolerance)
    (d_x,) = torch.autograd.grad(wanted, exact, d_out.double())
    torch.testing.assert_close(rotated(d_out, cos, sin, back=True).double(), d_x, **tolerance)


def test_swiglu(device, dtype, tolerance):
    generator = torch.Generator().manual_seed(1)
    gate, up, d_out = ((torch.randn(5, 1001, generator=generator) * 3).to(device, dtype) for _ in range(3))
    exact = [x.double().requires_grad_() for x in (gate, up)]
    wanted = torch.nn.functional.silu(exact[0]) * exact[1]
    torch.testing.assert_close(swiglu_forward(gate, up).double(), wanted, **tolerance)
    for found, other in zip(
        swiglu_backward(d_out, gate, up), torch.autograd.grad(wanted, exact, d_out.double()), strict=True
    ):
        torch.testing.assert_close(found.double(), other, **tolerance)
