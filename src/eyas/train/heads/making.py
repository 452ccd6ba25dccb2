"""A kind of trainable head as one record: how a run makes one, and what it costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from eyas.model.config import GptOssConfig
from eyas.train.heads.base import TrainableHead
from eyas.train.heads.flops import Work
from eyas.train.settings.schema import HeadSettings
from eyas.train.types import Teacher

__all__ = ["HeadMaking"]


class _FreshConfig(Protocol):
    def __call__(self, settings: HeadSettings, target: GptOssConfig, *, context: int) -> Any: ...


class _Fresh(Protocol):
    def __call__(
        self, config: Any, target_ids_V: Tensor, teacher: Teacher, *, num_depths: int, seed: int
    ) -> TrainableHead: ...


class _TapReadings(Protocol):
    def __call__(self, folder: Path, target: GptOssConfig) -> Mapping[str, tuple[int, ...]]: ...


class _CheckpointConfig(Protocol):
    def __call__(self, folder: Path, target: GptOssConfig) -> Any: ...


class _FromCheckpoint(Protocol):
    def __call__(
        self, folder: Path, taps: tuple[int, ...], target: GptOssConfig, teacher: Teacher, *, num_depths: int
    ) -> TrainableHead: ...


class _ActivationBytes(Protocol):
    def __call__(self, config: Any, *, num_rows: int, num_tokens: int, num_depths: int, itemsize: int) -> int: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadMaking:
    """Functions of a kind. `config` is what its checkpoints hold, such as `Eagle3Config`. All raise UserError."""

    fresh_config: _FreshConfig
    fresh: _Fresh
    checkpoint_config: _CheckpointConfig  # from headers alone
    tap_readings: _TapReadings  # of a checkpoint: the meanings that its tap ids can have, by name
    from_checkpoint: _FromCheckpoint
    activation_bytes: _ActivationBytes  # of one pass
    flops: Callable[[Any, Work], dict[str, float]]  # of a step, by part
    num_parameters: Callable[[Any], int]  # that are trained
    read_config: Callable[[Mapping[str, Any]], Any]  # from the JSON of its fields
