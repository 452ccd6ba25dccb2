"""Finds where a value that is not finite came from: the document and the first tensor."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

import torch
from torch import Tensor

from eyas.train.heads.base import TrainableHead
from eyas.train.loss.step import accumulate, prepare
from eyas.train.loss.tiles import TiledLoss
from eyas.train.states.documents import mapped, only, spans_of
from eyas.train.states.source import HiddenStates
from eyas.train.types import Batch, Rule, States

__all__ = ["first_fault"]


@torch.no_grad()
def first_fault(
    head: TrainableHead,
    loss: TiledLoss,
    source: HiddenStates,
    batches: Sequence[Batch],
    states: Sequence[States],
    *,
    rule: Rule,
) -> str:
    """Say which tensor is the first that is not finite, and in which document: parameters, states, outputs, loss."""
    for name, parameter in head.named_parameters():
        if _is_bad(parameter):
            return f"the parameter {name} is not finite"
    for batch, state in zip(batches, states, strict=True):
        for number, document in enumerate(batch.sources):
            rows = slice(*spans_of(batch)[number])
            one, of_one = only(batch, [number]), mapped(itemgetter(rows), state)
            parts = (("tapped states", of_one.taps_TC), ("last hidden state", of_one.last_TH))
            for name, tensor in parts:
                if tensor is not None and _is_bad(tensor):
                    return f"the target's {name} of {document} is not finite"
            for one_pass in head.passes(one, of_one, source.teacher, rule=rule):
                for depth, output in enumerate(one_pass.outputs):
                    if _is_bad(output):
                        return f"the head's output at depth {depth} of {document} is not finite"
            ready = prepare(head, loss, one, of_one, rule=rule)
            sums = accumulate(head, loss, one, of_one, source.teacher, ready, normalisers_J=None, rule=rule, decay=1.0)
            if _is_bad(sums.losses_J):
                depth = int(sums.losses_J.isfinite().logical_not().nonzero()[0])
                return f"the loss at depth {depth} of {document} is not finite"
    bad = [name for name, p in head.named_parameters() if p.grad is not None and _is_bad(p.grad)]
    return f"the gradient of {bad[0]} is not finite" if bad else "no single document repeats it"


def _is_bad(tensor: Tensor) -> bool:
    return not bool(tensor.isfinite().all())
