"""Closed backward passes against autograd's finite differences, and in bf16 against fp64."""

import torch
import torch.nn.functional as F

from eyas.train.heads.numerics import rms_norm, swiglu


def normal(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)), dtype=torch.float64)


def test_gradients_are_those_of_finite_differences():
    x, weight = normal(3, 5).requires_grad_(), normal(5).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: rms_norm(a, b, 1e-5), (x, weight))
    assert torch.autograd.gradcheck(swiglu, (x, (2 * x.detach()).cos().requires_grad_()))
    torch.testing.assert_close(rms_norm(x, weight, 1e-5), F.rms_norm(x, (5,), weight, 1e-5))


def test_narrow_rows_have_narrow_gradients_near_the_exact_ones():
    found = []
    for dtype in (torch.float64, torch.bfloat16):
        x, weight = normal(64, 32), normal(32)
        weight_dtype = torch.float64 if dtype == torch.float64 else torch.float32
        leaves = [x.to(dtype), weight.to(weight_dtype)]
        for leaf in leaves:
            leaf.requires_grad_()
        out = swiglu(rms_norm(*leaves, 1e-5), leaves[0])
        out.backward(torch.ones_like(out))
        assert out.dtype == dtype and all(leaf.grad.dtype == leaf.dtype for leaf in leaves)
        found.append([leaf.grad.double() for leaf in leaves])
    for exact, narrow in zip(*found, strict=True):
        assert (exact - narrow).norm() < 0.02 * exact.norm()
