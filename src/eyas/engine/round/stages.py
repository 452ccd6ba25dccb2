"""Runs the stages of a round and of a prompt pass, eagerly or as CUDA graphs that are captured once and replayed.

A stage is a function of tensors and of buffers that it closes over. It must not read a value on the host, and its key
holds all that its shapes and branches depend on. Replays of one key reuse inputs and outputs in place, so results must
be copied or handed to another stage before the same key runs again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

__all__ = ["CudaGraphs", "FixedShapes", "Stages", "buckets"]

T = TypeVar("T")

FINE_SEQUENCES, FINE_TILES = 64, 2  # from where on sizes lie closer than powers of two
STEPS = 4  # of them a doubling


def buckets(most: int, fine_from: int = FINE_SEQUENCES) -> list[int]:
    """Return the sizes for which CUDA graphs are captured: powers of two, from `fine_from` on four a doubling; `most`.

    Up to there a pass reads its weights whatever its size; above it computes, and a padded row costs what others do.
    """
    sizes: set[int] = set()
    size = 1
    while size < most:
        steps = STEPS if size >= fine_from else 1
        sizes.update(size + size * step // steps for step in range(steps))
        size *= 2
    return [*sorted(size for size in sizes if size < most), most]


class Stages:
    """Runs every stage eagerly."""

    has_fixed_shapes = False  # with fixed shapes, bounds are those of the engine, not of the step
    row_sizes: Seq[int] = ()  # all that `rows` returns, if they are few
    tile_sizes: Seq[int] = ()  # the same of `tiles`

    def run(self, key: Hashable, stage: Callable[..., T], *inputs: Tensor) -> T:
        """Return `stage(*inputs)`; `key` names the stage and all that its shapes and branches depend on."""
        return stage(*inputs)

    def prepare(self, key: Hashable, stage: Callable[..., T], *inputs: Tensor) -> T:
        """Return `stage(*inputs)`, run as it is before it is captured.

        A stage that needs much memory would else need it twice: for its eager run, beside what a captured one keeps.
        """
        return stage(*inputs)

    def keep(self, tensor: Tensor) -> None:
        """Note that stages are given this tensor, or its first rows, again and again: they need no copy of it."""

    def rows(self, num_sequences: int) -> int:
        """Return the batch size of a round of `num_sequences`, padded with dead sequences."""
        return num_sequences

    def tiles(self, num_tiles: int) -> int:
        """Return the tiles of a prompt pass, padded with dead tiles."""
        return num_tiles


class FixedShapes(Stages):
    """Runs every stage eagerly, in few sizes."""

    has_fixed_shapes = True

    def __init__(self, *, max_sequences: int, max_tiles: int) -> None:
        self.row_sizes = buckets(max_sequences)
        self.tile_sizes = buckets(max_tiles, FINE_TILES)

    def rows(self, num_sequences: int) -> int:
        return self.row_sizes[bisect_left(self.row_sizes, num_sequences)]

    def tiles(self, num_tiles: int) -> int:
        return self.tile_sizes[bisect_left(self.tile_sizes, num_tiles)]


@dataclass(frozen=True, slots=True)
class _Captured:
    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    outputs: Any


class CudaGraphs(FixedShapes):
    """Runs a stage eagerly once (warm-up), then captures and replays a CUDA graph.

    All graphs share one memory pool: they run one after the other, and what a later stage reads lies outside it.
    """

    def __init__(self, *, max_sequences: int, max_tiles: int) -> None:
        super().__init__(max_sequences=max_sequences, max_tiles=max_tiles)
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()  # else torch shares one per process, on the GPU of the first capture
        self._captured: dict[Hashable, _Captured] = {}
        self._prepared: dict[Hashable, Any] = {}  # outputs of stages not captured yet
        self._kept: dict[int, Tensor] = {}  # by address

    def run(self, key: Hashable, stage: Callable[..., T], *inputs: Tensor) -> T:
        captured = self._captured.get(key)
        if captured is None:
            is_prepared = key in self._prepared
            outputs: T = self._prepared.pop(key) if is_prepared else stage(*inputs)
            captured = self._captured[key] = self._capture(stage, inputs, outputs)
            if not is_prepared:
                return outputs
        for own, given in zip(captured.inputs, inputs, strict=True):
            if own.data_ptr() != given.data_ptr():
                own.copy_(given, non_blocking=True)
        captured.graph.replay()
        replayed: T = captured.outputs
        return replayed

    def keep(self, tensor: Tensor) -> None:
        self._kept[tensor.data_ptr()] = tensor

    def prepare(self, key: Hashable, stage: Callable[..., T], *inputs: Tensor) -> T:
        outputs = self._prepared[key] = stage(*inputs)
        return outputs

    def _capture(self, stage: Callable[..., Any], inputs: tuple[Tensor, ...], outputs: Any) -> _Captured:
        """Capture a stage into `outputs`, which its eager run returned; replays write to the same tensors."""
        own = tuple(tensor if tensor.data_ptr() in self._kept else tensor.clone() for tensor in inputs)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            results = tree_flatten(stage(*own))[0]
            for output, result in zip(tree_flatten(outputs)[0], results, strict=True):
                # The same address twice: a buffer of the stage itself.
                if isinstance(result, Tensor) and result.data_ptr() != output.data_ptr():
                    output.copy_(result)
        return _Captured(graph, own, outputs)
