"""Losses and gradients of cells against the plain formulas, ties and unlikely labels included."""

import pytest
import torch

from eyas.kernels.training.loss import TeacherRows, cell_losses, row_stats
from eyas.train.loss.kinds import CellTile, LossSettings, loss_and_gradient

CELLS, POSITIONS = 5, 3
KINDS = {"kl": "kl", "tv": "tv", "hard": "hard", "alpha": "lk", "lambda": "lk"}


@pytest.mark.parametrize("columns", [1, 300, 4096, 9001])
def test_stats_of_rows(columns, device):
    logits = (torch.randn(CELLS, columns, generator=torch.Generator().manual_seed(0)) * 20).round().to(device)
    found = row_stats(logits)
    torch.testing.assert_close(found.lse_N, logits.double().logsumexp(-1).float())
    assert torch.equal(found.peak_N, logits.amax(-1))
    assert torch.equal(found.best_N, (logits == logits.amax(-1, keepdim=True)).int().argmax(-1))  # of many equals


@pytest.mark.parametrize("kind", KINDS)
def test_losses_and_gradients(kind, device):
    generator = torch.Generator().manual_seed(1)
    columns = 4099
    logits, target = (torch.randn(n, columns, generator=generator) * 3 for n in (CELLS, POSITIONS))
    target[0] = logits[0] - 1  # the draft is right
    labels, at = torch.tensor([0, 7, columns - 1, 3, 7]), torch.tensor([0, 2, 1, 1, 2])
    share, scale = torch.tensor([0.9, 0.5, 1.0]), torch.tensor([1.0, 0.0, 2.0, 0.25, -1.0])
    settings = LossSettings(kind=KINDS[kind], lk="lambda" if kind == "lambda" else "alpha", kl_scale=0.8, kl_decay=2.0)
    p = target.double().softmax(-1)[at]
    q, full = logits.double().softmax(-1), p * share[at].double()[:, None]
    alpha = torch.minimum(full, q).sum(-1)
    lse = logits.double().logsumexp(-1)
    wanted, gradient = loss_and_gradient(settings, CellTile(logits.double(), lse, q, labels, p, full, alpha))

    rows = TeacherRows(target, target.logsumexp(-1), share)
    on = [x.to(device) for x in (logits, lse.float(), labels, scale)]
    found = cell_losses(
        kind, *on, TeacherRows(*(x.to(device) for x in rows)), at.to(device),
        kl_scale=0.8, kl_decay=2.0, dtype=torch.float32,
    )  # fmt: skip
    torch.testing.assert_close(found.loss_N.cpu().double(), wanted, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.alpha_N.cpu().double(), alpha, rtol=1e-5, atol=1e-6)
    error = found.d_logits_NV.cpu().double() - gradient * scale[:, None]
    assert error.abs().max() < 1e-5 * gradient.abs().max()


def test_labels_alone_suffice_for_hard(device):
    logits = torch.randn(CELLS, 77, generator=torch.Generator().manual_seed(2)).to(device)
    labels, lse = torch.arange(CELLS, device=device), logits.logsumexp(-1)
    found = cell_losses(
        "hard", logits, lse, labels, torch.ones_like(lse), None, labels, kl_scale=1.0, kl_decay=1.0, dtype=torch.float32
    )
    torch.testing.assert_close(found.loss_N, torch.nn.functional.cross_entropy(logits, labels, reduction="none"))
    onehot = torch.nn.functional.one_hot(labels, 77)
    torch.testing.assert_close(found.d_logits_NV, logits.softmax(-1) - onehot, rtol=0, atol=1e-6)
