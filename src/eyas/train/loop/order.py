"""The batches of a run by step: which of them, in which epoch, for which process."""

from __future__ import annotations

from collections.abc import Iterator

from eyas.train.data.packing import Packing
from eyas.train.types import Batch

__all__ = ["Order"]


class Order:
    """Counts batches over epochs, so that a step's batches follow from its number alone."""

    def __init__(self, packing: Packing, *, per_step: int) -> None:
        """`per_step` is the number of batches of one step, of all processes together."""
        self._packing = packing
        self._per_step = per_step
        self._ends: list[int] = []  # number of batches up to the end of each epoch

    def num_steps(self, epochs: int) -> int:
        """Return the steps of this many passes over the data; the last one may begin another pass."""
        return -(-self._end(epochs - 1) // self._per_step)

    def filled(self) -> float:
        """Return the share of the first epoch's batches that documents fill."""
        return self._packing.filled(0)

    def batches(self, step: int, *, first: int, every: int) -> Iterator[Batch]:
        """Yield the batches `first`, `first + every`, ... of step 0, 1, ..."""
        for number in range(step * self._per_step + first, (step + 1) * self._per_step, every):
            epoch = 0
            while self._end(epoch) <= number:
                epoch += 1
            yield self._packing.batch(epoch, number - (self._end(epoch - 1) if epoch else 0))

    def _end(self, epoch: int) -> int:
        while len(self._ends) <= epoch:
            before = self._ends[-1] if self._ends else 0
            self._ends.append(before + self._packing.num_batches(len(self._ends)))
        return self._ends[epoch]
