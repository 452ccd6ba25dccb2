"""Attention of torch's libraries: shapes by the operators' own rules, and on a GPU a part of a longer softmax."""

import pytest
import torch
from tests.kernels.support.plain_library import plain_backward, plain_forward

from eyas.kernels.training import library
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


@pytest.mark.parametrize("name", LIBRARIES)
def test_keys_go_backward_some_at_a_time(monkeypatch, name):
    """By the formula: a part of the keys gives its own gradients, and a part of those of the queries."""
    asked = []

    def part(d_out, q, k, v, out, lse):
        asked.append(len(k))
        grouped = [x.reshape(ROWS, GROUPS, QUERIES, DIM) for x in (d_out, q, out)]
        return plain_backward(*grouped[:2], k, v, grouped[2], lse.reshape(-1, ROWS).T.view(ROWS, GROUPS, QUERIES), None)

    def flash(d_out, q, k, v, out, lse, *rest):
        assert lse.is_contiguous() and rest[:4] == (None, None, ROWS, k.shape[1])
        d_q, d_k, d_v = part(*(x[0] for x in (d_out, q, k, v, out)), lse)
        return d_q.flatten(1, 2)[None], d_k[None], d_v[None]

    def cudnn(d_out, q, k, v, out, lse, seed, offset, bias, cum_q, cum_k, *sizes):
        assert lse.is_contiguous() and lse.shape == (1, GROUPS * QUERIES, ROWS, 1) and bias is None
        assert sizes == (ROWS, k.shape[2], 0.0, False)
        d_q, d_k, d_v = part(*(x[0].transpose(0, 1) for x in (d_out, q, k, v, out)), lse)
        return tuple(x.transpose(0, 1)[None] for x in (d_q.flatten(1, 2), d_k, d_v))

    generator = torch.Generator().manual_seed(0)
    q, d_out = (torch.randn(ROWS, GROUPS, QUERIES, DIM, generator=generator) for _ in range(2))
    k, v = (torch.randn(KEYS, GROUPS, DIM, generator=generator) for _ in range(2))
    out, lse = (x.contiguous() for x in plain_forward(q, k, v)[:2])
    rest = {"flash": (None, None), "cudnn": ((1, GROUPS * QUERIES, ROWS, 1), None, None, ROWS, None, None)}[name]
    monkeypatch.setattr(library, "PART_KEYS", 64)
    monkeypatch.setattr(torch.ops.aten, "_flash_attention_backward", flash)
    monkeypatch.setattr(torch.ops.aten, "_scaled_dot_product_cudnn_attention_backward", cudnn)
    found = LIBRARIES[name].backward(d_out, q, k, v, out, lse, rest)
    assert asked == [64, 64, 32]
    for x, wanted in zip(found, plain_backward(d_out, q, k, v, out, lse, None), strict=True):
        torch.testing.assert_close(x, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("name", LIBRARIES)
def test_the_backward_pass_takes_the_output_and_log_sum_exp_of_a_longer_softmax(monkeypatch, name):
    monkeypatch.setattr(library, "PART_KEYS", 64)
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
        d_out, q, k[part], v[part], exact_out.bfloat16().contiguous(), exact_lse.float().contiguous(), rest
    )
    near(d_k, grads[1][part]), near(d_v, grads[2][part])


def near(found, wanted):
    assert (found.double() - wanted).norm() < 1e-2 * wanted.norm()
