"""Packs documents into flat batches, in an order that is a pure function of seed and epoch.

So (epoch, index) says where a run stands, and a resumed one goes on with the same batches.

Shape letters: T tokens of a batch, D documents of the corpus.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from eyas.base.errors import UserError
from eyas.train.types import Batch, Document

__all__ = ["Packing", "batches_in_order", "pack"]


def pack(documents: Sequence[Document]) -> Batch:
    """Return the documents side by side as one batch, on the CPU."""
    lengths = [len(document) for document in documents]
    starts = [0, *np.cumsum(lengths).tolist()]

    def joined(parts: Iterable[NDArray[np.generic]], dtype: torch.dtype) -> torch.Tensor:
        return torch.from_numpy(np.concatenate(list(parts))).to(dtype)

    return Batch(
        ids_T=joined((document.ids_T for document in documents), torch.int64),
        runs_T=joined((document.runs_T for document in documents), torch.int64),
        segments_T=joined((document.segments_T for document in documents), torch.uint8),
        documents_T=torch.from_numpy(np.repeat(np.arange(len(lengths)), lengths)),
        positions_T=joined(map(np.arange, lengths), torch.int64),
        starts=tuple(starts),
        sources=tuple(document.source for document in documents),
    )


class Packing:
    """Batches of at most `tokens` tokens, each document in one batch of every epoch.

    A batch has no padding; one that is not full makes a step of fewer tokens.
    With `num_buckets` > 1 a batch has documents of similar length, so that attention costs about the same for each of
    its tokens; the batches of all buckets are mixed.
    """

    def __init__(self, documents: Sequence[Document], *, tokens: int, seed: int, num_buckets: int = 1) -> None:
        """Raises UserError for a document that no batch has room for."""
        _check_lengths(documents, tokens)
        self._documents = documents
        self._tokens = tokens
        self._seed = seed
        self._lengths_D = np.array([len(document) for document in documents])
        by_length_D = self._lengths_D.argsort(kind="stable")
        self._buckets_D = np.empty(len(documents), dtype=np.int64)
        for bucket, members in enumerate(np.array_split(by_length_D, num_buckets)):
            self._buckets_D[members] = bucket
        self._planned: tuple[int, list[NDArray[np.int64]]] | None = None

    def num_batches(self, epoch: int) -> int:
        """Return the number of batches of an epoch; it depends on the order, and so on the epoch."""
        return len(self.plan(epoch))

    def filled(self, epoch: int) -> float:
        """Return the share of the batches' tokens that documents fill."""
        return float(self._lengths_D.sum()) / (self._tokens * max(self.num_batches(epoch), 1))

    def batch(self, epoch: int, index: int) -> Batch:
        return pack([self._documents[number] for number in self.plan(epoch)[index]])

    def plan(self, epoch: int) -> list[NDArray[np.int64]]:
        """Return the numbers of each batch's documents; that of the last epoch asked for is kept."""
        if self._planned is None or self._planned[0] != epoch:
            self._planned = epoch, self._plan(epoch)
        return self._planned[1]

    def _plan(self, epoch: int) -> list[NDArray[np.int64]]:
        # numpy promises the raw bits of its generators, and not what it makes of them (NEP 19).
        bits = np.random.PCG64(np.random.SeedSequence([self._seed, epoch]))
        order = bits.random_raw(len(self._documents)).argsort(kind="stable")
        order = order[self._buckets_D[order].argsort(kind="stable")]
        edges = np.flatnonzero(np.diff(self._buckets_D[order])) + 1
        batches = [batch for bucket in np.split(order, edges) for batch in self._filled(bucket)]
        return [batches[number] for number in bits.random_raw(len(batches)).argsort(kind="stable")]

    def _filled(self, order: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Divide documents in this order into batches: each goes to the fullest that has room for it (best fit).

        So no two batches would fit into one.
        """
        batches: list[list[int]] = []
        rooms: list[tuple[int, int]] = []  # ascending: tokens that are left, and the batch
        for number, length in zip(order.tolist(), self._lengths_D[order].tolist(), strict=True):
            place = bisect_left(rooms, (length, -1))
            room, batch = rooms.pop(place) if place < len(rooms) else (self._tokens, len(batches))
            if batch == len(batches):
                batches.append([])
            batches[batch].append(number)
            insort(rooms, (room - length, batch))
        return [np.array(batch, dtype=np.int64) for batch in batches]


def batches_in_order(documents: Sequence[Document], tokens: int) -> Iterator[Batch]:
    """Yield batches of at most `tokens` tokens in the order of the documents: for evaluation. Raises UserError."""
    _check_lengths(documents, tokens)
    waiting: list[Document] = []
    num_tokens = 0
    for document in documents:
        if num_tokens + len(document) > tokens:
            yield pack(waiting)
            waiting, num_tokens = [], 0
        waiting.append(document)
        num_tokens += len(document)
    if waiting:
        yield pack(waiting)


def _check_lengths(documents: Sequence[Document], tokens: int) -> None:
    for document in documents:
        if len(document) > tokens:
            raise UserError(
                f"{document.source} has {len(document)} tokens, and a batch has room for {tokens}; give batches more "
                "tokens, or set a shorter context"
            )
