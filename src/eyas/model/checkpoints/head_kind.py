"""A kind of draft head as one record: how its checkpoints are read, what can be done with them, how it is described.

`head_kinds.py` registers the kinds. Code that serves all of them asks the record, never for a kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from eyas.model.checkpoints.reading import Stored
from eyas.model.config import GptOssConfig
from eyas.model.taps import TapConvention
from eyas.model.weights import Head, TargetWeights

__all__ = ["HeadKind"]


class _Inspect(Protocol):
    def __call__(
        self, folder: Path, target: GptOssConfig, stored: Stored | None, *, tap_convention: TapConvention
    ) -> Any: ...


class _Load(Protocol):
    def __call__(
        self,
        folder: Path,
        target_config: GptOssConfig,
        target_weights: TargetWeights,
        *,
        device: torch.device,
        dtype: torch.dtype,
        stored: Stored | None,
    ) -> Head: ...


class _Pack(Protocol):
    def __call__(self, head: Head, *, plain: TargetWeights, packed: TargetWeights) -> Head: ...


class _KeepTokens(Protocol):
    def __call__(self, head: Head, size: int, *, counts_V: Tensor | None, always: Iterable[int]) -> Head: ...


def _rows(description: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "model", f"{description['kind']} head, {description['parameters'] / 1e9:.3g} B parameters"


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadKind:
    """A kind of draft head. `config` is what it reads from config.json, `weights` its tensors, in a form of its own.

    Everything that checks raises UserError. None stands for what heads of this kind cannot do.
    """

    title: str  # with its article: "an EAGLE-3 head"
    recognises: Callable[[Mapping[str, Any]], bool]  # a config.json; no other kind may recognise it too
    inspect: _Inspect  # checks a folder against its target, from its headers alone; returns the config
    load: _Load
    round_bytes: Callable[[Any, float], float]  # bytes of `weights` that a round of this many drafts reads
    has_device_layout: Callable[[Any], bool] = lambda config: False  # whether a GPU's kernels can compute it
    pack: _Pack | None = None  # into the form of those kernels; `plain` and `packed` are the target's weights
    in_fp8: Callable[[Head], Head] | None = None  # large matrices rounded to e4m3, packed ones too
    keep_tokens: _KeepTokens | None = None  # a smaller draft vocabulary; ids are the target's, weights not packed
    # For `eyas models info`: what config.json says (`config` is None without a target), and its lines for people.
    describe: Callable[[Mapping[str, Any], Any], dict[str, Any]] = lambda raw, config: {}
    rows: Callable[[Mapping[str, Any]], Iterable[tuple[str, str]]] = _rows
