"""Random checkpoints of any shape in the real file format: for tests, for sizing and for timing without a download.

The tensors are drawn one chunk at a time from generators keyed by (seed, tensor name), so the values depend neither on
the sharding nor on the memory there is. Scales are chosen so that the model computes something: experts differ,
attention prefers some keys, logits spread over a few units. The weights mean nothing; acceptance of a made head is
about that of chance.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import floor, log2, prod, sqrt
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import torch

from eyas.base.errors import UserError
from eyas.model.checkpoints.config_json import HeadStyle, generation_json, head_json, original_json, target_json
from eyas.model.checkpoints.eagle3_names import head_parts
from eyas.model.checkpoints.names import Part, Parts, TargetStyle, all_parts
from eyas.model.checkpoints.shards import Progress, TensorSource, write_shards
from eyas.model.config import Eagle3Config, GptOssConfig
from eyas.model.mxfp4 import BLOCK, Mxfp4Tensor, dequantize

__all__ = ["SHARD_BYTES", "has_random_weights", "make_head", "make_target"]

SHARD_BYTES = 5_000_000_000
MARKER = "eyas_random_weights"  # in config.json, so that figures measured with it say SIMULATED
_CHUNK = 1 << 22  # elements drawn at once
_E2M1_RMS = sqrt(68.5 / 8)  # of the eight magnitudes, equally likely
# Standard deviation of a matrix times sqrt(its inputs), so: of its output on a unit-variance input.
_GAINS = {"qkv_NH": 1.2, "o_HN": 2.0, "router_EH": 2.0, "lm_head_VH": 3.0}
_EXPERT_GAINS = {"gate_up": 1.5, "down": 1.0}


def make_target(
    config: GptOssConfig,
    out: Path,
    *,
    seed: int = 0,
    shard_bytes: int = SHARD_BYTES,
    style: TargetStyle = "hf",
    progress: Progress | None = None,
) -> Path:
    """Write a random target to the new folder `out` and return it.

    `config.expert_format` "dense" writes the same numbers as "mxfp4" of the same seed, dequantised to bf16 and in
    transformers' orientation. Raises UserError if `out` exists or the disk is too small.
    """
    if style == "original" and (config.tie_embeddings or config.expert_format == "dense"):
        raise UserError("the original/ format has packed experts and its own unembedding matrix")
    sources: list[TensorSource] = []
    drawn = all_parts(config, "hf")  # the published names decide what is drawn, independent of the names in the file
    for (_, layer, field, parts), (_, _, _, draws) in zip(all_parts(config, style), drawn, strict=True):
        name = field if layer is None else f"{layer}.{field}"
        if field in ("gate_up", "down"):
            sources += _expert_sources(config, parts, _EXPERT_GAINS[field], seed, name)
        elif len(parts) == len(draws):
            pairs = zip(parts, draws, strict=True)
            sources += [_normal_source(part, (draw,), field, seed, name) for part, draw in pairs]
        else:
            sources.append(_normal_source(parts[0], draws, field, seed, name))
    files = {"config.json": target_json(config), "generation_config.json": generation_json(config)}
    if style == "original":
        files = {"config.json": original_json(config)}
    return _write(out, sources, files, shard_bytes, progress)


def make_head(
    config: Eagle3Config,
    out: Path,
    *,
    target: GptOssConfig,
    seed: int = 0,
    style: HeadStyle = "specforge",
    own_embedding: bool = False,
    own_lm_head: bool = True,
    shard_bytes: int = SHARD_BYTES,
    progress: Progress | None = None,
) -> Path:
    """Write a random head for `target` to the new folder `out` and return it.

    `style` chooses config keys and names: "specforge" (midlayer.*, t2d), "modelopt" (layers.0.*, eagle_config),
    "speculators" (layers.0.*, transformer_layer_config). Without its own embedding or lm_head it shares the target's.
    """
    reduced = config.draft_vocab_size < config.vocab_size
    if reduced and not own_lm_head:
        raise UserError("a head with a reduced vocabulary needs its own lm_head")
    parts = head_parts(config, "midlayer" if style == "specforge" else "layers.0")
    ids = _draft_ids(config, target.eos_ids, seed)
    dropped = {"target_ids_V"}  # written from `ids`
    dropped |= set() if own_embedding else {"embed_VH"}
    dropped |= set() if own_lm_head else {"lm_head_VH"}
    kept: Parts = {field: parts[field] for field in parts if field not in dropped}
    sources = [_normal_source(part, (part,), field, seed, part.name) for field, group in kept.items() for part in group]
    if reduced:
        offsets = ids - np.arange(len(ids))
        sources.append(_constant("d2t", "I64", offsets.astype("<i8")))
        if style == "specforge":
            sources.append(_constant("t2d", "BOOL", np.isin(np.arange(config.vocab_size), ids)))
    return _write(out, sources, {"config.json": head_json(config, style, target=target)}, shard_bytes, progress)


def _write(
    out: Path,
    sources: Sequence[TensorSource],
    files: dict[str, dict[str, Any]],
    shard_bytes: int,
    progress: Progress | None,
) -> Path:
    """Fill a neighbour folder and rename it, so that `out` is whole or absent."""
    unfinished = out.with_name(out.name + ".partial")
    for folder in (out, unfinished):
        if folder.exists():
            raise UserError(f"{folder} exists; choose another --out or delete it")
    unfinished.mkdir(parents=True)
    for name, value in files.items():
        marked = value | {MARKER: True} if name == "config.json" else value
        (unfinished / name).write_text(json.dumps(marked, indent=2) + "\n", encoding="utf-8")
    write_shards(unfinished, sources, shard_bytes=shard_bytes, progress=progress)
    return unfinished.rename(out)


def has_random_weights(folder: Path) -> bool:
    """Whether a checkpoint was made here: its weights mean nothing."""
    return json.loads((folder / "config.json").read_text(encoding="utf-8")).get(MARKER) is True


def _rng(seed: int, name: str) -> np.random.Generator:
    return np.random.Generator(np.random.SFC64([seed, crc32(name.encode())]))


def _constant(name: str, dtype: str, values: np.ndarray[Any, Any]) -> TensorSource:
    return TensorSource(name=name, shape=values.shape, dtype=dtype, chunks=lambda: iter([values.tobytes()]))


def _normal_source(part: Part, draws: Sequence[Part], field: str, seed: int, name: str) -> TensorSource:
    """Draw normal numbers in bf16; `draws` are stacked along rows to make `part`."""
    if "norm" in field:
        mean, spread = 1.0, 0.1
    elif len(part.shape) == 1 or "bias" in field:
        mean, spread = 0.0, 1.0 if field == "sinks_Q" else 0.1
    else:
        mean, spread = 0.0, 1.0 if field == "embed_VH" else _GAINS.get(field, 1.0) / sqrt(part.shape[-1])

    def chunks() -> Iterator[bytes]:
        for draw in draws:
            rng, left = _rng(seed, f"{name}.{draw.name}"), prod(draw.shape)
            while left:
                count = min(left, _CHUNK)
                values = torch.from_numpy(rng.standard_normal(count, dtype=np.float32)).mul_(spread).add_(mean)
                yield values.to(torch.bfloat16).view(torch.uint16).numpy().tobytes()
                left -= count

    return TensorSource(name=part.name, shape=part.shape, dtype=part.dtype, chunks=chunks)


def _expert_sources(
    config: GptOssConfig, parts: Sequence[Part], gain: float, seed: int, name: str
) -> Iterator[TensorSource]:
    """Draw uniform E2M1 codes under block scales of two neighbouring powers of two, mixed to the wanted spread."""
    dense = config.expert_format == "dense"
    columns, rows = parts[0].shape[1:] if dense else (parts[1].shape[2] * BLOCK, parts[1].shape[1])
    exponent = log2(gain / sqrt(columns) / _E2M1_RMS)
    upper_share = (4 ** (exponent - floor(exponent)) - 1) / 3  # of scales one power higher, so that variances add up

    def blocks() -> Iterator[np.ndarray[Any, Any]]:
        rng = _rng(seed, f"{name}.blocks")
        for _ in range(config.num_experts):
            yield np.frombuffer(rng.bytes(rows * columns // 2), dtype=np.uint8)

    def scales() -> Iterator[np.ndarray[Any, Any]]:
        rng = _rng(seed, f"{name}.scales")
        for _ in range(config.num_experts):
            upper = rng.random(rows * columns // BLOCK, dtype=np.float32) < upper_share
            yield upper.astype(np.uint8) + np.uint8(127 + floor(exponent))

    def unpacked() -> Iterator[bytes]:
        for block, scale in zip(blocks(), scales(), strict=True):
            shape = (rows, columns // BLOCK)
            packed = Mxfp4Tensor(
                torch.from_numpy(block.copy()).view(*shape, BLOCK // 2), torch.from_numpy(scale).view(shape)
            )
            yield dequantize(packed, torch.bfloat16).T.contiguous().view(torch.uint16).numpy().tobytes()

    if dense:
        yield TensorSource(name=parts[0].name, shape=parts[0].shape, dtype="BF16", chunks=unpacked)
        return
    for part, values in zip(parts, (blocks, scales), strict=True):
        yield TensorSource(name=part.name, shape=part.shape, dtype="U8", chunks=partial(_to_bytes, values))


def _to_bytes(values: Callable[[], Iterator[np.ndarray[Any, Any]]]) -> Iterator[bytes]:
    return (value.tobytes() for value in values())


def _draft_ids(config: Eagle3Config, eos_ids: Sequence[int], seed: int) -> np.ndarray[Any, Any]:
    """Choose the sorted target ids of the draft vocabulary: the end tokens and a random choice of the others."""
    order = _rng(seed, "d2t").permutation(config.vocab_size)
    first = np.isin(order, list(eos_ids))
    return np.sort(np.concatenate([order[first], order[~first]])[: config.draft_vocab_size])
