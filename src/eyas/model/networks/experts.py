"""Expert matrices on demand: packed MXFP4 stacks that are dequantised one expert at a time, with a bounded cache."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor

from eyas.model.mxfp4 import Mxfp4Tensor, dequantize

__all__ = ["DequantCache", "ExpertStack"]


class DequantCache:
    """Least recently used dequantised matrices, shared by all stacks of a model, at most `budget_bytes` together."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.used_bytes = 0
        self._entries: OrderedDict[tuple[int, int], Tensor] = OrderedDict()

    def get(self, key: tuple[int, int]) -> Tensor | None:
        matrix = self._entries.get(key)
        if matrix is not None:
            self._entries.move_to_end(key)
        return matrix

    def put(self, key: tuple[int, int], matrix: Tensor) -> None:
        if matrix.nbytes > self.budget_bytes:
            return
        while self.used_bytes + matrix.nbytes > self.budget_bytes:
            self.used_bytes -= self._entries.popitem(last=False)[1].nbytes
        self._entries[key] = matrix
        self.used_bytes += matrix.nbytes


class ExpertStack:
    """Stack whose `stack[e]` is the [N, K] matrix of expert e in the compute dtype; a dense one is indexed as it is."""

    def __init__(self, weights: Mxfp4Tensor | Tensor, dtype: torch.dtype, cache: DequantCache) -> None:
        self.weights = weights
        self._dtype = dtype
        self._cache = cache

    def __getitem__(self, expert: int) -> Tensor:
        if isinstance(self.weights, Tensor):
            return self.weights[expert]
        key = (id(self), expert)
        matrix = self._cache.get(key)
        if matrix is None:
            matrix = dequantize(self.weights[expert], self._dtype)
            self._cache.put(key, matrix)
        return matrix
