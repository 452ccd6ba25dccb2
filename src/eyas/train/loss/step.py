"""Loss and gradients of one batch."""

from __future__ import annotations

import torch
from torch import Tensor

from eyas.train.heads.base import WHOLE, Share, TrainableHead
from eyas.train.loss.tiles import LossSums, Prepared, TiledLoss
from eyas.train.types import Batch, Rule, States, Teacher

__all__ = ["accumulate", "prepare"]


def prepare(
    head: TrainableHead, loss: TiledLoss, batch: Batch, states: States, *, rule: Rule, share: Share = WHOLE
) -> Prepared:
    """Find what teaches a share of a batch, and count its cells; the head does not run."""
    return loss.prepare(head.cells(batch, rule=rule, share=share), states)


def accumulate(
    head: TrainableHead,
    loss: TiledLoss,
    batch: Batch,
    states: States,
    teacher: Teacher,
    prepared: Prepared,
    *,
    normalisers_J: Tensor | None,
    rule: Rule,
    share: Share = WHOLE,
    decay: float,
) -> LossSums:
    """Add the gradients of a share of a batch to the parameters' `.grad`, and return its sums.

    Without normalisers the sums are all there is.
    """
    sums = LossSums.zero(head.num_depths, batch.ids_T.device)
    with torch.set_grad_enabled(normalisers_J is not None):
        for one in head.passes(batch, states, teacher, rule=rule, share=share, decay=decay):
            some, grads = loss(one, prepared, states, normalisers_J)
            if normalisers_J is not None:
                one.backward(grads)
            sums = sums + some
    return sums
