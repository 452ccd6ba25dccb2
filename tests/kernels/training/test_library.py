"""Attention of torch's libraries: shapes by the operators' own rules, and on a GPU a part of a longer softmax."""

import pytest
import torch

from eyas.kernels.training.library import LIBRARIES

ROWS, KEYS, GROUPS, QUERIES, DIM = 96, 160, 2, 8, 64


def shapes(tensors):
    return [tuple(x.shape) for x in tensors]


@pytest.mark.parametrize("name", LIBRARIES)
def test_shapes(name):
    q = torch.empty(ROWS, GROUPS, QUERIES, DIM, device="meta", dtype=torch.bfloat16)
    k = torch.empty(KEYS, GROUPS, DIM, device="meta", dtype=torch.bfloat16)
    out, lse, rest = LIBRARIES[name].forward(q, k, k)
    assert shapes((out, lse)) == [tuple(q.shape), tuple(q.shape[:3])]
    assert shapes(LIBRARIES[name].backward(out, q, k, k, out, lse, rest)) == shapes((q, k, k))


@pytest.mark.gpu
@pytest.mark.parametrize("name", LIBRARIES)
def test_the_backward_pass_takes_the_output_and_log_sum_exp_of_a_longer_softmax(name):
    generator = torch.Generator("cuda").manual_seed(0)

    def normal(*shape):
        return torch.randn(shape, generator=generator, device="cuda").bfloat16()

    q, d_out = (normal(ROWS, GROUPS, QUERIES, DIM) for _ in range(2))
    k, v = (normal(KEYS, GROUPS, DIM) for _ in range(2))
    part = slice(0, KEYS - 32)  # the library's; others saw the rest
    wide = [x.double().requires_grad_() for x in (q, k, v)]
    scores = torch.einsum("ngqd,sgd->ngqs", wide[0], wide[1]) * DIM**-0.5
    exact_out, exact_lse = torch.einsum("ngqs,sgd->ngqd", scores.softmax(-1), wide[2]), scores.logsumexp(-1)
    grads = torch.autograd.grad(exact_out, wide, d_out.double())
    found, lse, rest = LIBRARIES[name].forward(q, k[part], v[part])
    seen = scores[..., part]
    torch.testing.assert_close(lse.double(), seen.logsumexp(-1), rtol=1e-3, atol=1e-3)
    near(found, torch.einsum("ngqs,sgd->ngqd", seen.softmax(-1), wide[2][part]))
    _, d_k, d_v = LIBRARIES[name].backward(
        d_out, q, k[part], v[part], exact_out.bfloat16(), exact_lse.float().contiguous(), rest
    )
    near(d_k, grads[1][part]), near(d_v, grads[2][part])


def near(found, wanted):
    assert (found.double() - wanted).norm() < 1e-2 * wanted.norm()
