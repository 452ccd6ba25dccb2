"""Evaluates a head on held-out documents: the acceptance that an engine's rounds would have on them."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from eyas.train.evaluation.chances import TILE, accepted_chances
from eyas.train.evaluation.results import Evaluation
from eyas.train.evaluation.tally import Tally
from eyas.train.heads.base import TrainableHead
from eyas.train.states.source import HiddenStates
from eyas.train.types import Batch

__all__ = ["evaluate", "tally"]


def tally(
    head: TrainableHead,
    source: HiddenStates,
    batches: Iterable[Batch],
    *,
    temperature: float | None = 1.0,
    tile: int = TILE,
) -> Tally:
    """Return the sums over the rounds of all batches; several processes take batches each and merge theirs.

    `temperature` is that of the sampled reading, None to leave it out. `tile` bounds memory: as many target positions
    have their distributions in memory at a time. Raises UserError, see `accepted_chances`.
    """
    sums = Tally(head.num_depths, temperature)
    readout = head.readout
    with torch.no_grad():
        for batch in batches:
            states = source.states(batch)
            # Faithful cells are what rounds look at.
            passes = head.passes(batch, states, source.teacher, rule="faithful")
            chances = accepted_chances(
                passes,
                readout,
                batch,
                states,
                source.teacher,
                num_depths=head.num_depths,
                temperature=temperature,
                tile=tile,
            )
            sums.add(batch, chances, readout.target_ids_V)
    return sums


def evaluate(
    head: TrainableHead,
    source: HiddenStates,
    batches: Iterable[Batch],
    *,
    temperature: float | None = 1.0,
    tile: int = TILE,
) -> Evaluation:
    """Evaluate a head on batches of held-out documents; parameters as in `tally`."""
    return tally(head, source, batches, temperature=temperature, tile=tile).result()
