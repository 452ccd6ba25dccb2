"""Reads an exported target back into its trainable form, the experts as the numbers that the file stands for."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from target import TargetModel

from eyas.model.config import GptOssConfig
from eyas.model.mxfp4 import Mxfp4Tensor, dequantize

__all__ = ["load_trainable"]


def load_trainable(folder: Path, config: GptOssConfig) -> TargetModel:
    """fp32 parameters. Quantising its experts again changes nothing."""
    stored = load_file(folder / "model.safetensors")
    layers = range(config.num_layers)

    def stacked(name: str) -> torch.Tensor:
        return torch.stack([stored[f"model.layers.{i}.{name}"].float() for i in layers])

    def experts(name: str) -> torch.Tensor:
        keys = [f"model.layers.{i}.mlp.experts.{name}_proj" for i in layers]
        packed = [Mxfp4Tensor(stored[f"{key}_blocks"], stored[f"{key}_scales"]) for key in keys]
        return torch.stack([dequantize(matrices, torch.float32) for matrices in packed])

    values = {
        "embed": stored["model.embed_tokens.weight"].float(),
        "norm": stored["model.norm.weight"].float(),
        "lm_head": stored["lm_head.weight"].float(),
        "input_norm": stacked("input_layernorm.weight"),
        "post_norm": stacked("post_attention_layernorm.weight"),
        "qkv_bias": torch.cat([stacked(f"self_attn.{name}_proj.bias") for name in "qkv"], dim=1),
        "sinks": stacked("self_attn.sinks"),
        "o_bias": stacked("self_attn.o_proj.bias"),
        "router": stacked("mlp.router.weight"),
        "router_bias": stacked("mlp.router.bias"),
        "gate_up": experts("gate_up"),
        "gate_up_bias": stacked("mlp.experts.gate_up_proj_bias"),
        "down": experts("down"),
        "down_bias": stacked("mlp.experts.down_proj_bias"),
    }
    values |= {name: stacked(f"self_attn.{name}_proj.weight") for name in "qkvo"}
    model = TargetModel(config, torch.Generator())
    model.load_state_dict(values)
    return model
