"""Each loss's closed gradient against autograd of its formula, and at the edges of fp32."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.train.loss.kinds import CellTile, LossSettings, loss_and_gradient

SETTINGS = [
    LossSettings(kind="kl"),
    LossSettings(kind="tv"),
    LossSettings(kind="hard"),
    LossSettings(kind="lk", lk="alpha"),
    LossSettings(kind="lk", lk="lambda", kl_scale=0.7, kl_decay=3.0),
]


def tile_of(logits, target_logits, size, dtype=torch.float64):
    """Cells whose draft vocabulary is the first `size` ids of the target's."""
    z, t = logits.to(dtype), target_logits.to(dtype)
    q, full = z.softmax(-1), t.softmax(-1)[:, :size]
    labels = t[:, :size].argmax(-1)
    return CellTile(z, z.logsumexp(-1), q, labels, t[:, :size].softmax(-1), full, torch.minimum(q, full).sum(-1))


def formula(settings_, tile):
    """The loss from logits alone, as the table in `kinds.py` has it."""
    log_q = tile.logits_NV.log_softmax(-1)
    alpha = torch.minimum(log_q.exp(), tile.full_NV).sum(-1)
    kl = -(tile.p_NV * log_q).sum(-1)
    match settings_.kind:
        case "kl":
            return kl
        case "tv":
            return 1 - alpha
        case "hard":
            return -log_q.gather(1, tile.labels_N[:, None])[:, 0]
    if settings_.lk == "alpha":
        return -alpha.log()
    weight = settings_.kl_scale * torch.exp(-settings_.kl_decay * alpha.detach())
    return weight * kl + (1 - weight) * (1 - alpha)


@pytest.mark.parametrize("which", SETTINGS, ids=lambda s: f"{s.kind}-{s.lk}")
@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), spread=st.sampled_from([0.1, 1.0, 5.0]), size=st.integers(1, 9))
def test_gradients_are_those_of_autograd(which, seed, spread, size):
    generator = torch.Generator().manual_seed(seed)
    logits = (spread * torch.randn(4, size, generator=generator, dtype=torch.float64)).requires_grad_()
    target = spread * torch.randn(4, 11, generator=generator, dtype=torch.float64)
    wanted = formula(which, tile_of(logits, target, size))
    (gradient,) = torch.autograd.grad(wanted.sum(), logits)
    loss, found = loss_and_gradient(which, tile_of(logits.detach(), target, size))
    torch.testing.assert_close(loss, wanted.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found, gradient, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("which", SETTINGS, ids=lambda s: f"{s.kind}-{s.lk}")
def test_far_apart_distributions_stay_finite_in_fp32(which):
    logits = torch.tensor([[200.0, 0.0, -200.0], [-200.0, 0.0, 200.0]])
    target = torch.tensor([[-200.0, 0.0, 200.0, 0.0], [0.0, 0.0, 0.0, 400.0]])
    loss, gradient = loss_and_gradient(which, tile_of(logits, target, 3, torch.float32))
    assert loss.isfinite().all() and gradient.isfinite().all()
