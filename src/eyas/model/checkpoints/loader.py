"""Loads a target or a draft head from a folder of safetensors; how a head is loaded is up to its kind."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from itertools import chain
from pathlib import Path

import torch

from eyas.base.errors import UserError
from eyas.model.checkpoints.head_kinds import HEAD_KINDS, find_kind, kind_of
from eyas.model.checkpoints.names import Part, TargetStyle, flat, global_parts, layer_parts
from eyas.model.checkpoints.parse import parse_target
from eyas.model.checkpoints.reading import Stored, TensorReader, check_tensors, open_checkpoint, open_files
from eyas.model.checkpoints.shards import Progress, read_json
from eyas.model.config import GptOssConfig
from eyas.model.weights import Head, LayerWeights, TargetWeights

__all__ = ["Inspected", "inspect_target", "load_head", "load_target"]

Inspected = tuple[GptOssConfig, Stored, TargetStyle]


def inspect_target(folder: Path, stored: Stored | None = None) -> Inspected:
    """Return configuration, stored tensors and naming of a target, from its JSON files and headers alone.

    `stored` are the headers where the weights themselves are not in `folder`.
    Raises UserError if the folder holds no gpt-oss model, or one whose tensors do not fit its configuration.
    """
    raw, stored = open_checkpoint(folder, stored)
    source = folder / "config.json"
    if (kind := kind_of(raw)) is not None:
        raise UserError(
            f"{source} is that of {HEAD_KINDS[kind].title}; give the model itself, and the head with --draft"
        )
    generation = folder / "generation_config.json"
    style: TargetStyle = "original" if "embedding.weight" in stored else "hf"
    packed = any(name.endswith(("_blocks", ".blocks")) for name in stored)
    config = parse_target(
        raw,
        read_json(generation) if generation.exists() else None,
        expert_format="mxfp4" if packed else "dense",
        source=str(source),
    )
    check_tensors(folder, stored, _target_parts(config, style))
    return config, stored, style


def load_target(
    folder: Path,
    *,
    device: torch.device,
    dtype: torch.dtype,
    inspected: Inspected | None = None,
    progress: Progress | None = None,
    layout: Callable[[LayerWeights], LayerWeights] | None = None,
) -> tuple[GptOssConfig, TargetWeights]:
    """Load a gpt-oss model: matrices in `dtype`, vectors in fp32, MXFP4 experts as stored.

    `inspected` is what `inspect_target` said of the folder, where it was asked. Each layer goes through `layout` once
    it is there, so that no second copy of the model is needed to change its form.
    Raises UserError naming all missing, unexpected or misshapen tensors, damaged shards and wrong configuration fields.
    """
    config, stored, style = inspected or inspect_target(folder)
    with ExitStack() as files:
        tensors = open_files(folder, stored, _target_parts(config, style), device, files)
        reader = TensorReader(tensors, stored, device, dtype, progress)
        shared = reader.load(global_parts(config, style))
        layers = []
        for index in range(config.num_layers):
            layer = LayerWeights(**reader.load(layer_parts(config, index, style)))
            layers.append(layer if layout is None else layout(layer))
    return config, TargetWeights(layers=tuple(layers), **({"lm_head_VH": shared["embed_VH"]} | shared))


def _target_parts(config: GptOssConfig, style: TargetStyle) -> list[Part]:
    """All tensors of a target in the order in which they are loaded."""
    layers = [flat(layer_parts(config, layer, style)) for layer in range(config.num_layers)]
    return [*flat(global_parts(config, style)), *chain.from_iterable(layers)]


def load_head(
    folder: Path,
    target_config: GptOssConfig,
    target_weights: TargetWeights,
    *,
    device: torch.device,
    dtype: torch.dtype,
    stored: Stored | None = None,
) -> Head:
    """Load a head of any kind, made for this target. `stored` are its headers, where they were read already.

    Raises UserError if it was made for another target, or its tensors or configuration do not fit.
    """
    kind = HEAD_KINDS[find_kind(folder)]
    return kind.load(folder, target_config, target_weights, device=device, dtype=dtype, stored=stored)
