"""Norms of embeddings and rows against the plain ones."""

import pytest
import torch
from tests.kernels.cuda.emulator import emulated

from eyas.kernels.cuda import norm as ops
from eyas.kernels.reference.layers.norm import inverse_rms, prepare_norm, rms_norm

EPS = 1e-5


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request, monkeypatch):
    if request.param == "emulated":
        monkeypatch.setattr(ops, "load", emulated)
        return "cpu"
    return request.param


def normal(*shape, device, scale=1.0):
    return torch.randn(shape, device=device) * scale


@pytest.mark.parametrize("width", [48, 288])
def test_embed_and_prepare(device, width):
    embed, norm = normal(9, width, device=device, scale=4).bfloat16(), normal(width, device=device)
    tokens = torch.tensor([8, 0, 3], device=device)
    residual, normed = ops.embed(tokens, embed, norm)
    assert torch.equal(residual, embed[tokens].float())
    expected = prepare_norm(residual, norm, torch.bfloat16)
    for ours in (normed, ops.prepare_norm(residual, norm)):
        assert torch.equal(ours.rows_TH, expected.rows_TH)
        torch.testing.assert_close(inverse_rms(ours, EPS), inverse_rms(expected, EPS), rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [48, 608])
def test_pair(device, width, dtype):
    embed, hidden = normal(9, width, device=device).bfloat16(), normal(3, width, device=device, scale=4).to(dtype)
    norms = normal(2, width, device=device)
    tokens = torch.tensor([8, 0, 3], device=device)
    out, alone = ops.pair(tokens, embed, norms[0], hidden, norms[1], EPS)
    expected = torch.cat((rms_norm(embed[tokens].float(), norms[0], EPS), rms_norm(hidden.float(), norms[1], EPS)), 1)
    torch.testing.assert_close(out.float(), expected, rtol=2**-7, atol=1e-6)
    assert torch.equal(alone.bfloat16(), out[:, width:]) and torch.equal(alone, alone.bfloat16().float())
