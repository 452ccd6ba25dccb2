"""Runs the stages of a round, eagerly or as CUDA graphs that are captured once and replayed.

A stage is a function of tensors and of buffers that it closes over. It must not read a value on the host, and its key
holds all that its shapes and branches depend on. Replays of one key reuse inputs and outputs in place, so results must
be copied or handed to another stage before the same key runs again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

__all__ = ["CudaGraphs", "Stages", "buckets"]

T = TypeVar("T")


def buckets(most: int) -> list[int]:
    """Return the batch sizes for which CUDA graphs are captured: powers of two, and `most`."""
    return [*(1 << exponent for exponent in range((most - 1).bit_length())), most]


class Stages:
    """Runs every stage eagerly."""

    has_fixed_shapes = False  # with fixed shapes, bounds are those of the engine, not of the step
    splits_rounds = False  # sampling and commit are a stage of their own, to be timed

    def run(self, key: Hashable, stage: Callable[..., T], *inputs: Tensor) -> T:
        """Return `stage(*inputs)`; `key` names the stage and all that its shapes and branches depend on."""
        return stage(*inputs)

    def rows(self, num_sequences: int) -> int:
        """Return the batch size of a round of `num_sequences`, padded with dead sequences."""
        return num_sequences


@dataclass(frozen=True, slots=True)
class _Captured:
    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    outputs: Any


class CudaGraphs(Stages):
    """Runs a stage eagerly once (warm-up), then captures and replays a CUDA graph.

    All graphs share one memory pool: they run one after the other, and what a later stage reads lies outside it.
    """

    has_fixed_shapes = True

    def __init__(self, *, max_sequences: int) -> None:
        self._buckets = buckets(max_sequences)
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()  # else torch shares one per process, on the GPU of the first capture
        self._captured: dict[Hashable, _Captured] = {}

    def rows(self, num_sequences: int) -> int:
        return next(size for size in self._buckets if size >= num_sequences)

    def run(self, key: Hashable, stage: Callable[..., T], *inputs: Tensor) -> T:
        captured = self._captured.get(key)
        if captured is None:
            outputs = stage(*inputs)
            self._captured[key] = self._capture(stage, inputs, outputs)
            return outputs
        for own, given in zip(captured.inputs, inputs, strict=True):
            if own.data_ptr() != given.data_ptr():
                own.copy_(given, non_blocking=True)
        captured.graph.replay()
        replayed: T = captured.outputs
        return replayed

    def _capture(self, stage: Callable[..., Any], inputs: tuple[Tensor, ...], outputs: Any) -> _Captured:
        """Capture a stage into `outputs`, which its eager run returned; replays write to the same tensors."""
        own = tuple(tensor.clone() for tensor in inputs)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            results = tree_flatten(stage(*own))[0]
            for output, result in zip(tree_flatten(outputs)[0], results, strict=True):
                # The same address twice: a buffer of the stage itself.
                if isinstance(result, Tensor) and result.data_ptr() != output.data_ptr():
                    output.copy_(result)
        return _Captured(graph, own, outputs)
