"""Lists the tensors of an EAGLE-3 head by name and shape, and the field of Eagle3Weights that each fills."""

from __future__ import annotations

from typing import Literal

from eyas.model.checkpoints.names import Part, Parts
from eyas.model.config import Eagle3Config

__all__ = ["HeadPrefix", "head_parts"]

HeadPrefix = Literal["midlayer", "layers.0"]


def head_parts(config: Eagle3Config, prefix: HeadPrefix) -> Parts:
    """All tensors that a head can hold, by field of Eagle3Weights; the loader knows which ones may be absent."""
    hidden, inter = config.hidden_size, config.intermediate_size
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    width = len(config.taps) * config.target_hidden_size
    attn, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
    projections = (("q_proj", query), ("k_proj", key), ("v_proj", key))
    parts: Parts = {"embed_VH": (Part("embed_tokens.weight", (config.vocab_size, hidden)),)}
    if config.has_fc:
        parts["fc_HC"] = (Part("fc.weight", (hidden, width)),)
    if config.norm_before_fc:
        parts["fc_input_norm_C"] = (Part("input_norm.weight", (width,)),)
    if config.fc_norm:
        parts["fc_norms_H"] = tuple(
            Part(f"fc_norm.{tap}.weight", (config.target_hidden_size,)) for tap in range(len(config.taps))
        )
    return parts | {
        "hidden_norm_H": (Part(f"{prefix}.hidden_norm.weight", (hidden,)),),
        "input_norm_H": (Part(f"{prefix}.input_layernorm.weight", (hidden,)),),
        "qkv_NH": tuple(Part(f"{attn}.{name}.weight", (rows, 2 * hidden)) for name, rows in projections),
        "o_HN": (Part(f"{attn}.o_proj.weight", (hidden, query)),),
        "post_norm_H": (Part(f"{prefix}.post_attention_layernorm.weight", (hidden,)),),
        "gate_up_IH": (
            Part(f"{mlp}.gate_proj.weight", (inter, hidden)),
            Part(f"{mlp}.up_proj.weight", (inter, hidden)),
        ),
        "down_HI": (Part(f"{mlp}.down_proj.weight", (hidden, inter)),),
        "norm_H": (Part("norm.weight", (hidden,)),),
        "lm_head_VH": (Part("lm_head.weight", (config.draft_vocab_size, hidden)),),
        "target_ids_V": (Part("d2t", (config.draft_vocab_size,), "I64"),),
    }
