"""The interface of trainable heads: what loss, data, loop, evaluation and plan know of them.

A head drafts in *depths*: depth j predicts the j-th token after the newest known one. It says which cells of a batch it
predicts, computes outputs in *passes* over some of its rows, all depths each, and takes gradients with respect to these
outputs. The loss applies the head's final norm and its lm_head itself, tile by tile, so no head makes logits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from eyas.train.heads.ways import WayName
from eyas.train.types import Batch, Cells, Rule, States, Teacher

__all__ = ["WHOLE", "HeadPass", "Readout", "Share", "TrainableHead"]


@dataclass(frozen=True, slots=True)
class Share:
    """The part of a batch's rows that one of several processes computes; all of them together compute each row once."""

    index: int = 0
    of: int = 1


WHOLE = Share()


class Readout(NamedTuple):
    """The map from outputs to logits: lm_head(rms_norm(output)). Gradients are added where the parameters want them."""

    norm_H: Tensor
    lm_head_VH: Tensor
    eps: float
    target_ids_V: Tensor  # int64 [Vd], the target id of every draft id, ascending


class HeadPass(ABC):
    """Outputs of a head for R rows of a batch. It keeps what its backward pass needs."""

    rows_R: Tensor  # int64, ascending: the row of the batch of every output
    outputs: list[Tensor]  # by depth [R, H], before the final norm, without a graph
    cells: list[Cells]  # by depth; their rows count within `rows_R`

    @abstractmethod
    def backward(self, grads: Sequence[Tensor]) -> None:
        """Add the gradients of the parameters, given those of `outputs`, to their `.grad`. Once for each pass."""


class TrainableHead(nn.Module, ABC):
    """Base of trainable heads. Parameters have the names that the checkpoint has; the embedding is the target's."""

    config: Any  # of its kind, e.g. `Eagle3Config`
    num_depths: int
    rows_of_pass: int  # computed at a time
    attention: WayName = "auto"
    cuts_rows: bool = True  # False: passes compute every row, as most trainers do
    recomputes: bool = False  # the depths of a pass once more in its backward pass, of which then one is kept at a time

    def settle_attention(
        self, device: torch.device, dtype: torch.dtype, *, longest: int, deterministic: bool
    ) -> str | None:
        """Settle `attention` for a run of documents of up to `longest` tokens; return why, for people, if it was open.

        `deterministic`: two runs give the same bits. Raises UserError if the way that was asked for does not.
        """
        return None

    @property
    def fixed_tensors(self) -> dict[str, Tensor]:
        """Return the tensors of its checkpoint that are not trained, such as an embedding of its own."""
        return {}

    @property
    @abstractmethod
    def readout(self) -> Readout: ...

    @abstractmethod
    def cells(self, batch: Batch, *, rule: Rule, share: Share = WHOLE, decay: float = 1.0) -> list[Cells]:
        """Return the cells of this share by depth; depth j's weigh decay^j. Rows are rows of the batch."""

    @abstractmethod
    def passes(
        self, batch: Batch, states: States, teacher: Teacher, *, rule: Rule, share: Share = WHOLE, decay: float = 1.0
    ) -> Iterator[HeadPass]:
        """Yield the passes that together hold every cell of `cells` once, in order.

        The caller takes each pass backward before it asks for the next one and draws the iterator to its end, which
        completes the gradients; under `torch.no_grad()` it does neither. The compute dtype is the teacher's.
        A row without a taught token at any depth is not computed, except for what other rows see of it.
        """
