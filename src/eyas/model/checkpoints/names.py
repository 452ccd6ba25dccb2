"""Lists the tensors of a target by name and shape, and the field of the weights dataclasses that each fills.

Names are those of openai/gpt-oss (root and `original/`) and of its bf16 re-exports by transformers. Knows no file and
no tensor: loading, random making and the size table all read the same list.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from eyas.model.config import GptOssConfig
from eyas.model.mxfp4 import BLOCK

__all__ = ["Part", "Parts", "TargetStyle", "all_parts", "flat", "global_parts", "layer_parts"]

TargetStyle = Literal["hf", "original"]


class Part(NamedTuple):
    """One tensor of a file. `dtype` is the published one in safetensors' spelling; any float passes for BF16."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "BF16"


Parts = dict[str, tuple[Part, ...]]  # field of a weights dataclass -> the tensors that make it, stacked along rows


def flat(parts: Parts) -> list[Part]:
    """List the tensors of all fields."""
    return [part for group in parts.values() for part in group]


def global_parts(config: GptOssConfig, style: TargetStyle) -> Parts:
    """Embedding, final norm and output matrix; no output matrix where the embedding serves as one."""
    matrix, vector = (config.vocab_size, config.hidden_size), (config.hidden_size,)
    hf = style == "hf"
    parts: Parts = {
        "embed_VH": (Part("model.embed_tokens.weight" if hf else "embedding.weight", matrix),),
        "norm_H": (Part("model.norm.weight" if hf else "norm.scale", vector),),
    }
    if not config.tie_embeddings:
        parts["lm_head_VH"] = (Part("lm_head.weight" if hf else "unembedding.weight", matrix),)
    return parts


def layer_parts(config: GptOssConfig, layer: int, style: TargetStyle) -> Parts:
    """The tensors of one block, by field of LayerWeights."""
    return _hf_layer(config, layer) if style == "hf" else _original_layer(config, layer)


def _hf_layer(config: GptOssConfig, layer: int) -> Parts:
    hidden, experts = config.hidden_size, config.num_experts
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    prefix = f"model.layers.{layer}"
    attn, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
    projections = (("q_proj", query), ("k_proj", key), ("v_proj", key))
    return {
        "input_norm_H": (Part(f"{prefix}.input_layernorm.weight", (hidden,)),),
        "qkv_NH": tuple(Part(f"{attn}.{name}.weight", (rows, hidden)) for name, rows in projections),
        "qkv_bias_N": tuple(Part(f"{attn}.{name}.bias", (rows,)) for name, rows in projections),
        "sinks_Q": (Part(f"{attn}.sinks", (config.num_heads,)),),
        "o_HN": (Part(f"{attn}.o_proj.weight", (hidden, query)),),
        "o_bias_H": (Part(f"{attn}.o_proj.bias", (hidden,)),),
        "post_norm_H": (Part(f"{prefix}.post_attention_layernorm.weight", (hidden,)),),
        "router_EH": (Part(f"{mlp}.router.weight", (experts, hidden)),),
        "router_bias_E": (Part(f"{mlp}.router.bias", (experts,)),),
        "gate_up": _experts(config, f"{mlp}.experts.gate_up_proj", "_", 2 * config.intermediate_size, hidden),
        "gate_up_bias": (Part(f"{mlp}.experts.gate_up_proj_bias", (experts, 2 * config.intermediate_size)),),
        "down": _experts(config, f"{mlp}.experts.down_proj", "_", hidden, config.intermediate_size),
        "down_bias": (Part(f"{mlp}.experts.down_proj_bias", (experts, hidden)),),
    }


def _original_layer(config: GptOssConfig, layer: int) -> Parts:
    hidden, experts = config.hidden_size, config.num_experts
    query = config.num_heads * config.head_dim
    rows = query + 2 * config.num_kv_heads * config.head_dim
    attn, mlp = f"block.{layer}.attn", f"block.{layer}.mlp"
    return {
        "input_norm_H": (Part(f"{attn}.norm.scale", (hidden,)),),
        "qkv_NH": (Part(f"{attn}.qkv.weight", (rows, hidden)),),
        "qkv_bias_N": (Part(f"{attn}.qkv.bias", (rows,)),),
        "sinks_Q": (Part(f"{attn}.sinks", (config.num_heads,)),),
        "o_HN": (Part(f"{attn}.out.weight", (hidden, query)),),
        "o_bias_H": (Part(f"{attn}.out.bias", (hidden,)),),
        "post_norm_H": (Part(f"{mlp}.norm.scale", (hidden,)),),
        "router_EH": (Part(f"{mlp}.gate.weight", (experts, hidden)),),
        "router_bias_E": (Part(f"{mlp}.gate.bias", (experts,)),),
        "gate_up": _experts(config, f"{mlp}.mlp1_weight", ".", 2 * config.intermediate_size, hidden),
        "gate_up_bias": (Part(f"{mlp}.mlp1_bias", (experts, 2 * config.intermediate_size)),),
        "down": _experts(config, f"{mlp}.mlp2_weight", ".", hidden, config.intermediate_size),
        "down_bias": (Part(f"{mlp}.mlp2_bias", (experts, hidden)),),
    }


def _experts(config: GptOssConfig, name: str, joint: str, rows: int, columns: int) -> tuple[Part, ...]:
    """List packed experts, blocks and scales along the input axis, or dense ones, [E, in, out] as transformers' bmm."""
    experts = config.num_experts
    if config.expert_format == "dense":
        return (Part(name, (experts, columns, rows)),)
    num_blocks = columns // BLOCK
    return (
        Part(f"{name}{joint}blocks", (experts, rows, num_blocks, BLOCK // 2), "U8"),
        Part(f"{name}{joint}scales", (experts, rows, num_blocks), "U8"),
    )


def all_parts(config: GptOssConfig, style: TargetStyle) -> Iterator[tuple[str, int | None, str, tuple[Part, ...]]]:
    """Every tensor of a target in file order, as (owner, layer, field, parts); owner is the row of the size table."""
    shared = global_parts(config, style)
    yield "embedding", None, "embed_VH", shared["embed_VH"]
    for layer in range(config.num_layers):
        for field, parts in layer_parts(config, layer, style).items():
            yield _owner(field), layer, field, parts
    yield "norms", None, "norm_H", shared["norm_H"]
    if "lm_head_VH" in shared:
        yield "lm_head", None, "lm_head_VH", shared["lm_head_VH"]


def _owner(field: str) -> str:
    if "norm" in field:
        return "norms"
    if "router" in field:
        return "router"
    return "experts" if field.startswith(("gate_up", "down")) else "attention"
