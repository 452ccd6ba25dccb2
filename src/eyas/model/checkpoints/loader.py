"""Loads weights from folders of safetensors, for targets and heads.

Headers are checked first, all of them, so that a wrong file is refused with one error before any memory is taken.
Then tensors go one after the other to their place on the device, a GPU getting them from threads that read ahead. On a
CPU packed experts stay in the mapped file: pages come in as experts are used. Nothing in a checkpoint is executed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eyas.base.errors import UserError
from eyas.model.checkpoints.names import HeadPrefix, Part, Parts, TargetStyle, global_parts, head_parts, layer_parts
from eyas.model.checkpoints.parse import parse_target
from eyas.model.checkpoints.parse_head import parse_head
from eyas.model.checkpoints.shards import Progress, StoredTensor, read_headers, read_json, shorten
from eyas.model.checkpoints.tensor_files import MappedTensors, StreamedTensors, TensorFiles
from eyas.model.config import Eagle3Config, GptOssConfig
from eyas.model.mxfp4 import Mxfp4Tensor
from eyas.model.taps import TapConvention
from eyas.model.weights import Eagle3Weights, Head, LayerWeights, TargetWeights

__all__ = ["Inspected", "Stored", "TensorReader", "inspect_head", "inspect_target", "load_head", "load_target"]

_FLOATS = {"BF16", "F16", "F32", "F64"}
_INTEGERS = {"I64", "I32"}
_IGNORED_IN_HEADS = ("t2d", "midlayer.self_attn.rotary_emb.inv_freq", "layers.0.self_attn.rotary_emb.inv_freq")

Stored = dict[str, StoredTensor]
Inspected = tuple[GptOssConfig, Stored, TargetStyle]


def inspect_target(folder: Path, stored: Stored | None = None) -> Inspected:
    """Return configuration, stored tensors and naming of a target, from its JSON files and headers alone.

    `stored` are the headers where the weights themselves are not in `folder`.
    Raises UserError if the folder holds no gpt-oss model, or one whose tensors do not fit its configuration.
    """
    raw, stored = _open(folder, stored)
    generation = folder / "generation_config.json"
    style: TargetStyle = "original" if "embedding.weight" in stored else "hf"
    packed = any(name.endswith(("_blocks", ".blocks")) for name in stored)
    config = parse_target(
        raw,
        read_json(generation) if generation.exists() else None,
        expert_format="mxfp4" if packed else "dense",
        source=str(folder / "config.json"),
    )
    _check(folder, stored, _target_parts(config, style))
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
        tensors = _open_files(folder, stored, _target_parts(config, style), device, files)
        reader = TensorReader(tensors, stored, device, dtype, progress)
        shared = reader.load(global_parts(config, style))
        layers = []
        for index in range(config.num_layers):
            layer = LayerWeights(**reader.load(layer_parts(config, index, style)))
            layers.append(layer if layout is None else layout(layer))
    return config, TargetWeights(layers=tuple(layers), **({"lm_head_VH": shared["embed_VH"]} | shared))


def inspect_head(
    folder: Path, target: GptOssConfig, stored: Stored | None = None, *, tap_convention: TapConvention = "auto"
) -> tuple[Eagle3Config, Stored, Parts]:
    """Return configuration, stored tensors and the parts to load of a head for `target`, from headers alone."""
    raw, stored = _open(folder, stored)
    shapes = {name: tensor.shape for name, tensor in stored.items()}
    source = str(folder / "config.json")
    config = parse_head(raw, target=target, shapes=shapes, tap_convention=tap_convention, source=source)
    prefix: HeadPrefix = "layers.0" if any(name.startswith("layers.0.") for name in stored) else "midlayer"
    parts = head_parts(config, prefix)
    for field in _absent(config, stored):
        del parts[field]
    ignored = _IGNORED_IN_HEADS if config.has_fc else (*_IGNORED_IN_HEADS, "fc.weight")  # as vLLM skips an unused fc
    _check(folder, stored, _flat(parts), ignored)
    return config, stored, parts


def load_head(
    folder: Path,
    target_config: GptOssConfig,
    target_weights: TargetWeights,
    *,
    device: torch.device,
    dtype: torch.dtype,
    stored: Stored | None = None,
    tap_convention: TapConvention = "auto",
    progress: Progress | None = None,
) -> Head:
    """Load an EAGLE-3 head in any published naming. The target shares what it lacks (embedding, lm_head) or repeats.

    Raises UserError if it was made for another target, or its tensors or configuration do not fit.
    """
    config, stored, parts = inspect_head(folder, target_config, stored, tap_convention=tap_convention)
    separate: Parts = {field: parts.pop(field) for field in ("fc_norms_H", "target_ids_V") if field in parts}
    with ExitStack() as files:
        tensors = _open_files(folder, stored, [*_flat(parts), *_flat(separate)], device, files)
        reader = TensorReader(tensors, stored, device, dtype, progress)
        loaded: dict[str, Any] = dict.fromkeys(("fc_HC", "fc_input_norm_C")) | reader.load(parts)
        loaded["fc_norms_H"] = tuple(reader.stacked((part,)) for part in separate.get("fc_norms_H", ()))
        offsets = reader.raw(separate["target_ids_V"][0]).cpu() if "target_ids_V" in separate else None
    for field in ("embed_VH", "lm_head_VH"):
        of_target = getattr(target_weights, field)
        own = loaded.setdefault(field, of_target)
        if own is not of_target and own.shape == of_target.shape and torch.equal(own, of_target):
            loaded[field] = of_target  # a copy in the file need not be one in memory
    ids = None if offsets is None else _target_ids(offsets, config, folder)
    return Head(config, Eagle3Weights(target_ids_V=None if ids is None else ids.to(device), **loaded))


def _open(folder: Path, stored: Stored | None) -> tuple[dict[str, Any], Stored]:
    if folder.is_dir() and not (folder / "config.json").exists():
        raise UserError(f"{folder} is no model folder: it has no config.json")
    stored = read_headers(folder) if stored is None else stored
    return read_json(folder / "config.json"), stored


def _open_files(
    folder: Path, stored: Stored, parts: Iterable[Part], device: torch.device, files: ExitStack
) -> TensorFiles:
    """Open the files of `parts`, which a GPU gets in this order."""
    if device.type == "cpu":
        return MappedTensors(folder, stored, files)
    return StreamedTensors(folder, stored, [part.name for part in parts], device, files)


def _target_parts(config: GptOssConfig, style: TargetStyle) -> list[Part]:
    """All tensors of a target in the order in which they are loaded."""
    layers = [_flat(layer_parts(config, layer, style)) for layer in range(config.num_layers)]
    return [*_flat(global_parts(config, style)), *chain.from_iterable(layers)]


def _flat(parts: Parts) -> list[Part]:
    return [part for group in parts.values() for part in group]


def _absent(config: Eagle3Config, stored: Mapping[str, StoredTensor]) -> list[str]:
    """Fields of Eagle3Weights that this head may leave to the target, and does."""
    absent = []
    if "embed_tokens.weight" not in stored and config.hidden_size == config.target_hidden_size:
        absent.append("embed_VH")
    if config.draft_vocab_size == config.vocab_size:
        if "lm_head.weight" not in stored and config.hidden_size == config.target_hidden_size:
            absent.append("lm_head_VH")
        if "d2t" not in stored:
            absent.append("target_ids_V")
    return absent


def _check(
    folder: Path, stored: Mapping[str, StoredTensor], expected: Iterable[Part], ignored: Sequence[str] = ()
) -> None:
    """Compare names, shapes and kinds of number; raise one UserError for all that differs."""
    wanted = {part.name: part for part in expected}
    kinds = {"BF16": _FLOATS, "I64": _INTEGERS, "U8": {"U8"}}
    missing = [name for name in wanted if name not in stored]
    extra = [name for name in stored if name not in wanted and name not in ignored]
    shapes, dtypes = [], []
    for name, part in wanted.items():
        if name not in stored:
            continue
        if stored[name].shape != part.shape:
            shapes.append(f"{name} is {list(stored[name].shape)} instead of {list(part.shape)}")
        if stored[name].dtype not in kinds[part.dtype]:
            dtypes.append(f"{name} is {stored[name].dtype} instead of {part.dtype}")
    found = {"missing": missing, "wrong shape": shapes, "wrong dtype": dtypes, "not known": extra}
    if any(found.values()):
        lines = "; ".join(f"{kind}: {shorten(names, 40)}" for kind, names in found.items() if names)
        raise UserError(f"{folder}: the tensors do not fit config.json; {lines}")


class TensorReader:
    """Reads tensors of files in the place and form that the forward pass needs."""

    def __init__(
        self,
        tensors: TensorFiles,
        stored: Mapping[str, StoredTensor],
        device: torch.device,
        dtype: torch.dtype,
        progress: Progress | None,
    ) -> None:
        self._tensors, self._stored, self._device, self._dtype = tensors, stored, device, dtype
        self._progress = progress
        self._done, self._total = 0, sum(tensor.num_bytes for tensor in stored.values())

    def raw(self, part: Part) -> Tensor:
        """The tensor as stored."""
        tensor = self._tensors.tensor(part.name)
        self._done += self._stored[part.name].num_bytes
        if self._progress:
            self._progress(self._done, self._total)
        return tensor

    def load(self, parts: Parts) -> dict[str, Any]:
        return {field: self._field(field, group) for field, group in parts.items()}

    def _field(self, field: str, group: Sequence[Part]) -> Tensor | Mxfp4Tensor:
        if group[0].dtype == "U8":
            return Mxfp4Tensor(*(self.raw(part).to(self._device) for part in group))
        if field in ("gate_up", "down"):  # dense experts are stored [E, in, out]
            transposed = self.raw(group[0]).to(self._device, self._dtype).mT
            return transposed.contiguous()
        return self.stacked(group)

    def stacked(self, group: Sequence[Part]) -> Tensor:
        """The rows of all parts in one new tensor: a matrix in the compute dtype, biases, norms and sinks in fp32."""
        shape = (sum(part.shape[0] for part in group), *group[0].shape[1:])
        vector = len(shape) == 1 or group[0].name.endswith("bias")
        whole = torch.empty(shape, dtype=torch.float32 if vector else self._dtype, device=self._device)
        row = 0
        for part in group:
            whole[row : row + part.shape[0]].copy_(self.raw(part))
            row += part.shape[0]
        return whole


def _target_ids(offsets: Tensor, config: Eagle3Config, folder: Path) -> Tensor | None:
    """Absolute target ids of the draft vocabulary, None for the identity; a file stores id minus position."""
    ids = offsets.to(torch.int64) + torch.arange(config.draft_vocab_size)
    num_distinct = len(torch.unique(ids))
    if bool(((ids < 0) | (ids >= config.vocab_size)).any()) or num_distinct < len(ids):
        raise UserError(
            f"{folder}: d2t leads to {num_distinct} distinct target ids from {int(ids.min())} to {int(ids.max())} "
            f"instead of {len(ids)} in a vocabulary of {config.vocab_size}; the file is damaged, or holds ids where "
            "offsets belong"
        )
    return ids if bool(offsets.any()) else None
