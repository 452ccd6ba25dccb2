"""Types that the parts of training exchange: documents, packed batches, hidden states of the target, cells of a loss.

A *document* is one assistant turn with everything before it, as a server would build it. A *run* is a stretch of tokens
that the model generated without interruption; all other tokens were given to it. A *cell* is one prediction of the head
that the loss counts: an output row of the head and the target position that teaches it.

Shape letters: T tokens of a packed batch, C = len(taps) Ht, H hidden, V vocabulary, N cells.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Batch", "Cells", "Document", "Rule", "Segment", "States", "Teacher", "supervises"]

Rule = Literal["loose", "faithful"]


class Segment(IntEnum):
    """Part of an answer that a token belongs to."""

    GIVEN = 0  # not generated
    HEADER = 1  # control tokens, channel names, recipients: what stands outside of contents
    REASONING = 2
    FINAL = 3  # text for the user, preambles of calls included
    CALL = 4  # arguments of a call
    CODE = 5  # between the fences of a code block, in reasoning or text


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """One assistant turn and what it answers."""

    ids_T: NDArray[np.int32]
    runs_T: NDArray[np.int32]  # number of the generated run, from 0; -1: given
    segments_T: NDArray[np.uint8]  # `Segment`
    source: str  # for messages: "chats.jsonl:12, turn 2"

    def __len__(self) -> int:
        return len(self.ids_T)


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Documents side by side, without padding: document d is `starts[d] : starts[d + 1]`. None sees another."""

    ids_T: Tensor  # int64
    runs_T: Tensor  # int64, as in Document: numbers of different documents may be equal
    segments_T: Tensor  # uint8
    documents_T: Tensor  # int64, 0, 1, ...
    positions_T: Tensor  # int64, in the document
    starts: tuple[int, ...]  # ascending, from 0 to T
    sources: tuple[str, ...]

    @property
    def num_tokens(self) -> int:
        return self.starts[-1]

    def to(self, device: torch.device) -> Batch:
        moved = (x.to(device) for x in (self.ids_T, self.runs_T, self.segments_T, self.documents_T, self.positions_T))
        ids, runs, segments, documents, positions = moved
        return Batch(
            ids_T=ids,
            runs_T=runs,
            segments_T=segments,
            documents_T=documents,
            positions_T=positions,
            starts=self.starts,
            sources=self.sources,
        )


class States(NamedTuple):
    """Results of the frozen target for a batch. The last state is after the final norm: the input of the lm_head.

    Where the loss wants labels only (`hard`), a source may leave out `last_TH` and give `best_T`, the most likely next
    token of each position, int64.
    """

    taps_TC: Tensor
    last_TH: Tensor | None
    best_T: Tensor | None = None


class Teacher(NamedTuple):
    """The frozen matrices of the target that training reads, plain, in the compute dtype."""

    embed_VH: Tensor
    lm_head_VH: Tensor


class Cells(NamedTuple):
    """The cells of one depth, ascending by target position.

    A cell teaches output row `rows_N[i]` of its depth the target's distribution at position `targets_N[i]`, which is
    that of the token at `targets_N[i] + 1`. The loss of the depth is the mean over its cells times `weight`.
    """

    rows_N: Tensor  # int64
    targets_N: Tensor  # int64
    weight: float


def supervises(batch: Batch, known_N: Tensor, predicted_N: Tensor, rule: Rule) -> Tensor:
    """Whether drafting the token at `predicted` when `known` is the newest token is taught: bool [N].

    Positions at or beyond the end of the document of `known` are never taught. "loose": the token was generated, which
    teaches every generated token once for each depth, also from rows inside the prompt; this is what other trainers do.
    "faithful": both tokens are of one run, since an engine drafts only after a generated token; a run of n tokens has
    max(0, n - 1 - j) cells at depth j.
    """
    last = batch.num_tokens - 1
    known, predicted = known_N.clamp(max=last), predicted_N.clamp(max=last)
    same_document = (predicted_N <= last) & (batch.documents_T[known] == batch.documents_T[predicted])
    taught = same_document & (batch.runs_T[predicted] >= 0)
    return taught if rule == "loose" else taught & (batch.runs_T[known] == batch.runs_T[predicted])
