"""Timers around the stages of a round, for benchmarks."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

from eyas.engine.drafters.base import Drafter
from eyas.engine.round.stages import Stages
from eyas.engine.step.runner import Runner

__all__ = ["TimedStages", "timed_stages"]

T = TypeVar("T")


class TimedStages(Stages):
    """Wraps stages with a timer around each."""

    def __init__(self, inner: Stages, device: torch.device) -> None:
        self.has_fixed_shapes = inner.has_fixed_shapes
        self._inner = inner
        self._is_cuda = device.type == "cuda"
        self._marks: dict[str, list[tuple[Any, Any]]] = defaultdict(list)

    def run(self, key: Hashable, stage: Callable[..., T], *inputs: Tensor) -> T:
        assert isinstance(key, tuple)
        start = self._mark()
        output = self._inner.run(key, stage, *inputs)
        self._marks[key[0]].append((start, self._mark()))
        return output

    def rows(self, num_sequences: int) -> int:
        return self._inner.rows(num_sequences)

    def tiles(self, num_tiles: int) -> int:
        return self._inner.tiles(num_tiles)

    def _mark(self) -> Any:
        if not self._is_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def clear(self) -> None:
        self._marks.clear()

    def totals(self) -> dict[str, tuple[int, float]]:
        """Return how often each stage ran, and its total milliseconds."""
        if self._is_cuda:
            torch.cuda.synchronize()
        return {name: (len(marks), sum(map(self._between, marks))) for name, marks in self._marks.items()}

    def _between(self, marks: tuple[Any, Any]) -> float:
        start, end = marks
        return float(start.elapsed_time(end)) if self._is_cuda else 1e3 * (end - start)


@contextmanager
def timed_stages(runner: Runner) -> Iterator[TimedStages]:
    """Time the stages of the runner and of its drafters within this context."""
    staged: list[Runner | Drafter] = [runner, runner.drafter, *([runner.ngram_drafter] if runner.ngram_drafter else [])]
    own = runner.stages
    timed = TimedStages(own, runner.state.device)
    try:
        for part in staged:
            part.stages = timed
        yield timed
    finally:
        for part in staged:
            part.stages = own
