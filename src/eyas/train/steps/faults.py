"""Finds where a value that is not finite came from: the document and the first tensor."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from eyas.train.heads.base import TrainableHead
from eyas.train.loss.step import accumulate, prepare
from eyas.train.loss.tiles import TiledLoss
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
            one, of_one = _only(batch, state, number)
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


def _only(batch: Batch, states: States, number: int) -> tuple[Batch, States]:
    """Return one document of a batch by itself."""
    some = slice(batch.starts[number], batch.starts[number + 1])
    alone = Batch(
        ids_T=batch.ids_T[some],
        runs_T=batch.runs_T[some],
        segments_T=batch.segments_T[some],
        documents_T=torch.zeros_like(batch.documents_T[some]),
        positions_T=batch.positions_T[some],
        starts=(0, some.stop - some.start),
        sources=(batch.sources[number],),
    )
    last, best = (None if tensor is None else tensor[some] for tensor in (states.last_TH, states.best_T))
    return alone, States(states.taps_TC[some], last, best)
