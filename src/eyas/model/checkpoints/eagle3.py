"""EAGLE-3 heads as a kind: checkpoints in every published naming, their form for a GPU, smaller and 8-bit forms."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eyas.base.errors import UserError
from eyas.kernels.layouts.dense import BlockedMatrix
from eyas.model.checkpoints.device_layout import dense_layout, has_dense_layout
from eyas.model.checkpoints.eagle3_config import is_eagle3, parse_head, tap_ids
from eyas.model.checkpoints.eagle3_names import HeadPrefix, head_parts
from eyas.model.checkpoints.head_kind import HeadKind
from eyas.model.checkpoints.head_options import kept_places, rounded_to_fp8
from eyas.model.checkpoints.names import Parts, flat
from eyas.model.checkpoints.reading import Stored, TensorReader, check_tensors, open_checkpoint, open_files
from eyas.model.config import Eagle3Config, GptOssConfig
from eyas.model.taps import TapConvention, read_taps, show_taps
from eyas.model.weights import Eagle3Weights, Head, TargetWeights, num_bytes

__all__ = ["EAGLE3", "has_device_layout", "in_fp8", "inspect_head", "keep_tokens"]

_IGNORED = ("t2d", "midlayer.self_attn.rotary_emb.inv_freq", "layers.0.self_attn.rotary_emb.inv_freq")


def inspect_head(
    folder: Path, target: GptOssConfig, stored: Stored | None = None, *, tap_convention: TapConvention = "auto"
) -> tuple[Eagle3Config, Stored, Parts]:
    """Return configuration, stored tensors and the parts to load of a head for `target`, from headers alone."""
    raw, stored = open_checkpoint(folder, stored)
    shapes = {name: tensor.shape for name, tensor in stored.items()}
    source = str(folder / "config.json")
    config = parse_head(raw, target=target, shapes=shapes, tap_convention=tap_convention, source=source)
    prefix: HeadPrefix = "layers.0" if any(name.startswith("layers.0.") for name in stored) else "midlayer"
    parts = head_parts(config, prefix)
    for field in _absent(config, stored):
        del parts[field]
    ignored = _IGNORED if config.has_fc else (*_IGNORED, "fc.weight")  # as vLLM skips an unused fc
    check_tensors(folder, stored, flat(parts), ignored)
    return config, stored, parts


def _load(
    folder: Path,
    target_config: GptOssConfig,
    target_weights: TargetWeights,
    *,
    device: torch.device,
    dtype: torch.dtype,
    stored: Stored | None,
) -> Head:
    """Load an EAGLE-3 head in any published naming. The target shares what it lacks (embedding, lm_head) or repeats.

    Raises UserError if it was made for another target, or its tensors or configuration do not fit.
    """
    config, stored, parts = inspect_head(folder, target_config, stored)
    separate: Parts = {field: parts.pop(field) for field in ("fc_norms_H", "target_ids_V") if field in parts}
    with ExitStack() as files:
        tensors = open_files(folder, stored, [*flat(parts), *flat(separate)], device, files)
        reader = TensorReader(tensors, stored, device, dtype)
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


def _absent(config: Eagle3Config, stored: Stored) -> list[str]:
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


def has_device_layout(config: Eagle3Config) -> bool:
    return has_dense_layout(config, outputs=[config.draft_vocab_size])


def _pack(head: Head, *, plain: TargetWeights, packed: TargetWeights) -> Head:
    """Pack all matrices; the lm_head may be the target's."""
    weights: Eagle3Weights = head.weights
    is_shared = weights.lm_head_VH is plain.lm_head_VH
    return replace(
        head,
        weights=replace(
            weights,
            fc_HC=None if weights.fc_HC is None else dense_layout(weights.fc_HC),
            qkv_NH=dense_layout(weights.qkv_NH),
            o_HN=dense_layout(weights.o_HN),
            gate_up_IH=BlockedMatrix.pack(weights.gate_up_IH, gated=True),
            down_HI=dense_layout(weights.down_HI),
            lm_head_VH=packed.lm_head_VH if is_shared else dense_layout(weights.lm_head_VH),
        ),
    )


def in_fp8(head: Head) -> Head:
    """Round the matrices after attention. What writes the head's cache stays as it is."""
    names = ("o_HN", "gate_up_IH", "down_HI", "lm_head_VH")
    rounded = {name: rounded_to_fp8(getattr(head.weights, name)) for name in names}
    return replace(head, weights=replace(head.weights, **rounded))


def keep_tokens(head: Head, size: int, *, counts_V: Tensor | None, always: Iterable[int]) -> Head:
    """Keep `size` of the draft ids, as `kept_places` chooses them. Raises UserError."""
    config: Eagle3Config = head.config
    weights: Eagle3Weights = head.weights
    known = torch.arange(config.draft_vocab_size) if weights.target_ids_V is None else weights.target_ids_V.cpu()
    kept = kept_places(known, size, vocab_size=config.vocab_size, counts_V=counts_V, always=always)
    device = weights.lm_head_VH.device
    return Head(
        replace(config, draft_vocab_size=size),
        replace(weights, lm_head_VH=weights.lm_head_VH[kept.to(device)], target_ids_V=known[kept].to(device)),
    )


def _round_bytes(weights: Eagle3Weights, num_drafts: float) -> float:
    """Count a pass for each draft; the first one fuses the target's states. Embeddings are gathered."""
    if not num_drafts:
        return 0.0
    once = num_bytes((weights.fc_HC, weights.fc_norms_H, weights.fc_input_norm_C))
    gathered = num_bytes((weights.embed_VH, weights.target_ids_V))
    return once + num_drafts * (num_bytes(weights) - once - gathered)


def _describe(raw: Mapping[str, Any], config: Eagle3Config | None) -> dict[str, Any]:
    description: dict[str, Any] = {"speculators": "transformer_layer_config" in raw}
    if ids := tap_ids(raw, []):
        reading = read_taps(ids, speculators=False, num_layers=0)
        description |= {
            "tap_ids": ids,
            "as_boundary": show_taps(reading.boundary),
            "as_output": show_taps(reading.output),
        }
    if config is None:
        return description
    norms = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    return description | {
        "hidden_size": config.hidden_size,
        "heads": [config.num_heads, config.num_kv_heads, config.head_dim],
        "intermediate_size": config.intermediate_size,
        "vocab_size": config.vocab_size,
        "draft_vocab_size": config.draft_vocab_size,
        "context": config.max_context,
        "rope": config.rope.text(),
        "taps": show_taps(config.taps),
        "norms": [name for name in norms if getattr(config, name)],
    }


def _rows(d: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    style = "speculators format" if d["speculators"] else "SpecForge or ModelOpt format"
    yield "model", f"EAGLE-3 head, {d['parameters'] / 1e9:.3g} B parameters, {style}"
    if "tap_ids" in d:
        yield "tap ids", ", ".join(map(str, d["tap_ids"]))
        yield "  as boundary", d["as_boundary"]
        yield "  as output", d["as_output"]
    else:
        yield "tap ids", "none: the default taps of its target, or its final hidden state"
    if "taps" not in d:
        yield "check", "name its model with --target to check that they fit"
        return
    yield "taps", d["taps"]
    yield "vocabulary", f"{d['draft_vocab_size']:,} of {d['vocab_size']:,}"
    yield "context", f"{d['context']:,} tokens, RoPE {d['rope']}"
    yield "norms", ", ".join(d["norms"]) or "classic"


EAGLE3 = HeadKind(
    title="an EAGLE-3 head",
    recognises=is_eagle3,
    inspect=lambda *args, **options: inspect_head(*args, **options)[0],
    load=_load,
    round_bytes=_round_bytes,
    has_device_layout=has_device_layout,
    pack=_pack,
    in_fp8=in_fp8,
    keep_tokens=keep_tokens,
    describe=_describe,
    rows=_rows,
)
