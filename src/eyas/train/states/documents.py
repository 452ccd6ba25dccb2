"""Takes batches apart into documents, which alone determine their states, and puts the states together again.

Shape letters: T tokens of a batch or a document, C taps, H hidden.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from eyas.train.types import Batch, States

__all__ = ["Span", "concatenated", "document_key", "mapped", "num_bytes", "only", "spans_of", "split"]


class Span(NamedTuple):
    """A document's place in a batch."""

    start: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.start


def spans_of(batch: Batch) -> list[Span]:
    return [Span(start, end) for start, end in pairwise(batch.starts)]


def document_key(ids_T: Iterable[int] | Tensor) -> bytes:
    """Return 16 bytes that name a document: a hash of its token ids."""
    ids = ids_T.cpu().numpy() if isinstance(ids_T, Tensor) else np.asarray(ids_T)
    return hashlib.sha256(ids.astype("<i4").tobytes()).digest()[:16]


def only(batch: Batch, numbers: Sequence[int]) -> Batch:
    """Return the batch of these documents alone, in this order."""
    spans = [spans_of(batch)[number] for number in numbers]
    rows = torch.cat([torch.arange(*span) for span in spans]).to(batch.ids_T.device)
    lengths = torch.tensor([span.length for span in spans])
    return Batch(
        ids_T=batch.ids_T[rows],
        runs_T=batch.runs_T[rows],
        segments_T=batch.segments_T[rows],
        documents_T=torch.arange(len(spans)).repeat_interleave(lengths).to(rows.device),
        positions_T=batch.positions_T[rows],
        starts=(0, *lengths.cumsum(0).tolist()),
        sources=tuple(batch.sources[number] for number in numbers),
    )


def mapped(function: Callable[[Tensor], Tensor], states: States) -> States:
    """Apply a function to each tensor that is there."""
    taps_TC, last_TH, best_T = states
    return States(
        function(taps_TC),
        None if last_TH is None else function(last_TH),
        None if best_T is None else function(best_T),
    )


def num_bytes(states: States) -> int:
    return sum(tensor.nbytes for tensor in states if tensor is not None)


def split(states: States, spans: Sequence[Span]) -> list[States]:
    """Return the states of each document, as views."""
    return [mapped(itemgetter(slice(*span)), states) for span in spans]


def concatenated(parts: Sequence[States]) -> States:
    """Return the states of documents as those of one batch. All of them have the same tensors."""
    taps, last, best = zip(*parts, strict=True)
    return States(
        torch.cat(taps),
        None if last[0] is None else torch.cat(last),
        None if best[0] is None else torch.cat(best),
    )
