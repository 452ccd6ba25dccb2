"""Writes the trained target as a checkpoint that any loader of gpt-oss reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from target import TargetModel
from torch import Tensor

from eyas.model.checkpoints.config_json import generation_json, target_json
from eyas.model.mxfp4 import quantize

__all__ = ["MAX_FILE_BYTES", "MAX_TOTAL_BYTES", "check_sizes", "export_target"]

MAX_FILE_BYTES = 16 * 2**20
MAX_TOTAL_BYTES = 24 * 2**20


def export_target(model: TargetModel, folder: Path, tokenizer: Path) -> None:
    """Write a whole checkpoint with tokenizer and chat template. Experts are packed, all else is bf16."""
    config, state = model.config, {name: value.detach().cpu() for name, value in model.named_parameters()}
    tensors: dict[str, Tensor] = {
        "model.embed_tokens.weight": state["embed"],
        "model.norm.weight": state["norm"],
        "lm_head.weight": state["lm_head"],
    }
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    packed: dict[str, Tensor] = {}
    for i in range(config.num_layers):
        prefix = f"model.layers.{i}"
        attn, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        biases = state["qkv_bias"][i].split((query, key, key))
        for name, bias in zip("qkv", biases, strict=True):
            tensors[f"{attn}.{name}_proj.weight"] = state[name][i]
            tensors[f"{attn}.{name}_proj.bias"] = bias
        tensors |= {
            f"{prefix}.input_layernorm.weight": state["input_norm"][i],
            f"{prefix}.post_attention_layernorm.weight": state["post_norm"][i],
            f"{attn}.sinks": state["sinks"][i],
            f"{attn}.o_proj.weight": state["o"][i],
            f"{attn}.o_proj.bias": state["o_bias"][i],
            f"{mlp}.router.weight": state["router"][i],
            f"{mlp}.router.bias": state["router_bias"][i],
            f"{mlp}.experts.gate_up_proj_bias": state["gate_up_bias"][i],
            f"{mlp}.experts.down_proj_bias": state["down_bias"][i],
        }
        for name in ("gate_up", "down"):
            matrices = quantize(state[name][i])
            packed[f"{mlp}.experts.{name}_proj_blocks"] = matrices.blocks
            packed[f"{mlp}.experts.{name}_proj_scales"] = matrices.scales
    files = {"config.json": target_json(config), "generation_config.json": generation_json(config)}
    _write(folder, files, {name: value.bfloat16() for name, value in tensors.items()} | packed)
    for file in (tokenizer, tokenizer.with_name("chat_template.jinja")):
        (folder / file.name).write_bytes(file.read_bytes())


def _write(folder: Path, files: dict[str, dict[str, Any]], tensors: dict[str, Tensor]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        (folder / name).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    contiguous = {name: value.contiguous() for name, value in tensors.items()}
    save_file(contiguous, folder / "model.safetensors", metadata={"format": "pt"})


def check_sizes(folder: Path) -> dict[str, int]:
    """Return the bytes of every file; raises ValueError where the package would get too large."""
    sizes = {str(path.relative_to(folder)): path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()}
    heavy = [name for name, size in sizes.items() if size >= MAX_FILE_BYTES]
    if heavy or sum(sizes.values()) >= MAX_TOTAL_BYTES:
        raise ValueError(f"too heavy: {heavy or sum(sizes.values())}")
    return sizes
