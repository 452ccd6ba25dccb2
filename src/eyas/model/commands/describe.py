"""Describes a checkpoint, for `eyas models info`: sizes, context, taps and end tokens. Reads JSON and headers only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

from eyas.model.checkpoints.head_kinds import HEAD_KINDS, kind_of
from eyas.model.checkpoints.loader import inspect_target
from eyas.model.checkpoints.names import all_parts
from eyas.model.checkpoints.reading import FLOATS, Stored
from eyas.model.checkpoints.shards import StoredTensor, read_headers, read_json
from eyas.model.config import GptOssConfig
from eyas.model.taps import TapConvention, default_taps, show_taps

__all__ = ["describe", "lines"]

_HEAD_OWNERS = (
    ("self_attn", "attention"),
    ("mlp", "mlp"),
    ("norm", "norms"),
    ("embed", "embedding"),
    ("lm_head", "lm_head"),
    ("fc.", "fc"),
    ("d2t", "vocabulary map"),
    ("t2d", "vocabulary map"),
    ("", "other"),
)


def describe(
    folder: Path,
    stored: Stored | None = None,
    *,
    target: tuple[Path, Stored | None] | None = None,
    tap_convention: TapConvention = "auto",
) -> dict[str, Any]:
    """Describe a target or a head in JSON-able form; with its `target` a head is checked against it.

    `stored` holds the headers where the weights are not in the folder, as `hub.resolve_headers` gives both.
    Raises UserError as loading would.
    """
    config = folder / "config.json"
    if config.exists() and (kind := kind_of(raw := read_json(config))):
        return _describe_head(folder, stored, raw, kind, target, tap_convention)
    return _describe_target(folder, stored)


def _describe_target(folder: Path, stored: Stored | None) -> dict[str, Any]:
    config, stored, style = inspect_target(folder, stored)
    parts: dict[str, dict[str, int]] = {}
    for owner, _, _, group in all_parts(config, style):
        for part in group:
            _add(parts, owner, stored[part.name], packed=part.dtype == "U8")
    num_parameters = sum(size["parameters"] for size in parts.values())
    kv_layer = 2 * config.num_kv_heads * config.head_dim * 2
    num_sliding = sum(config.layer_is_sliding)
    return {
        "kind": "gpt_oss",
        "names": style,
        "layers": config.num_layers,
        "sliding_layers": num_sliding,
        "sliding_window": config.sliding_window,
        "hidden_size": config.hidden_size,
        "heads": [config.num_heads, config.num_kv_heads, config.head_dim],
        "experts": config.num_experts,
        "experts_per_token": config.experts_per_token,
        "expert_format": config.expert_format,
        "intermediate_size": config.intermediate_size,
        "vocab_size": config.vocab_size,
        "context": config.max_context,
        "rope": config.rope.text(),
        "eos_ids": list(config.eos_ids),
        "default_taps": list(default_taps(config.num_layers)),
        "parameters": num_parameters,
        "active_parameters": _of_one_token(config, parts, "parameters"),
        "bytes": sum(size["bytes"] for size in parts.values()),
        "bytes_read_per_token": _of_one_token(config, parts, "bytes"),
        "kv_bytes_per_token": kv_layer * (config.num_layers - num_sliding),
        "kv_bytes_of_windows": kv_layer * num_sliding * config.sliding_window,
        "parts": parts,
    }


def _of_one_token(config: GptOssConfig, parts: Mapping[str, Mapping[str, int]], unit: str) -> int:
    """Sum what one token uses: its experts, and all else but the embedding, unless that is the lm_head as well."""
    idle_experts = 1 - config.experts_per_token / config.num_experts
    embedding = 0 if config.tie_embeddings else parts["embedding"][unit]
    return sum(size[unit] for size in parts.values()) - embedding - round(parts["experts"][unit] * idle_experts)


def _describe_head(
    folder: Path,
    stored: Stored | None,
    raw: Mapping[str, Any],
    name: str,
    target: tuple[Path, Stored | None] | None,
    tap_convention: TapConvention,
) -> dict[str, Any]:
    kind, stored, config = HEAD_KINDS[name], read_headers(folder) if stored is None else stored, None
    parts: dict[str, dict[str, int]] = {}
    for tensor_name, tensor in stored.items():
        _add(parts, next(owner for key, owner in _HEAD_OWNERS if key in tensor_name), tensor, packed=False)
    if target is not None:
        config = kind.inspect(folder, inspect_target(*target)[0], stored, tap_convention=tap_convention)
    return {
        "kind": name,
        "parameters": sum(size["parameters"] for size in parts.values()),
        "bytes": sum(size["bytes"] for size in parts.values()),
        "parts": parts,
        **kind.describe(raw, config),
    }


def _add(parts: dict[str, dict[str, int]], owner: str, tensor: StoredTensor, *, packed: bool) -> None:
    """Add a tensor to its part. Packed blocks (4 axes) hold two parameters a byte, their scales none, nor do ids."""
    count = prod(tensor.shape) if packed or tensor.dtype in FLOATS else 0
    if packed:
        count = 2 * count if len(tensor.shape) == 4 else 0
    size = parts.setdefault(owner, {"parameters": 0, "bytes": 0})
    size["parameters"] += count
    size["bytes"] += tensor.num_bytes


def lines(description: Mapping[str, Any]) -> Iterator[str]:
    """Format the description for people."""
    kind = HEAD_KINDS.get(description["kind"])
    rows = _target_rows(description) if kind is None else kind.rows(description)
    for label, text in rows:
        yield f"{label:<14}{text}"
    yield ""
    yield f"{'part':<16}{'parameters':>18}{'bytes':>18}"
    total = {"parameters": description["parameters"], "bytes": description["bytes"]}
    for owner, size in [*description["parts"].items(), ("total", total)]:
        yield f"{owner:<16}{size['parameters']:>18,}{size['bytes']:>18,}"


def _target_rows(d: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    heads = "{} query, {} key/value, {} wide".format(*d["heads"])
    yield "model", f"gpt-oss, {d['parameters'] / 1e9:.4g} B parameters, {d['active_parameters'] / 1e9:.3g} B active"
    yield "layers", f"{d['layers']}, {d['sliding_layers']} of them with a window of {d['sliding_window']} tokens"
    yield "attention", f"hidden {d['hidden_size']}, heads {heads}"
    yield "experts", f"{d['experts']} a layer, {d['experts_per_token']} a token, {d['expert_format']}"
    yield "context", f"{d['context']:,} tokens, RoPE {d['rope']}"
    yield "vocabulary", f"{d['vocab_size']:,}, end tokens {', '.join(map(str, d['eos_ids'])) or 'none'}"
    yield "a token reads", f"{d['bytes_read_per_token'] / 1e9:.3g} GB of weights"
    yield "KV in bf16", f"{d['kv_bytes_per_token']:,} bytes a token, and {d['kv_bytes_of_windows']:,} for the windows"
    boundaries = d["default_taps"]
    yield "default taps", f"{show_taps(boundaries)}, the outputs of layers {', '.join(str(i - 1) for i in boundaries)}"
