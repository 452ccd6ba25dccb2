"""Writes a configuration as the config.json that others read: the inverse of `model/checkpoints/parse.py`.

Targets are written with the keys of openai/gpt-oss, heads in three published styles: SpecForge, ModelOpt, speculators.
"""

from __future__ import annotations

from typing import Any, Literal

from eyas.base.errors import UserError
from eyas.model.config import FINAL_NORM_TAP, Eagle3Config, GptOssConfig, RopeConfig
from eyas.model.taps import default_taps, read_taps

__all__ = ["HEAD_STYLES", "HeadStyle", "generation_json", "head_json", "target_json"]

HeadStyle = Literal["specforge", "modelopt", "speculators"]
HEAD_STYLES: tuple[HeadStyle, ...] = ("specforge", "modelopt", "speculators")


def target_json(config: GptOssConfig) -> dict[str, Any]:
    """Return config.json of a target, keys and values as published for gpt-oss-20b and -120b."""
    layer_types = ["sliding_attention" if sliding else "full_attention" for sliding in config.layer_is_sliding]
    value: dict[str, Any] = {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "num_hidden_layers": config.num_layers,
        "num_local_experts": config.num_experts,
        "num_experts_per_tok": config.experts_per_token,
        "experts_per_token": config.experts_per_token,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "attention_bias": True,
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "swiglu_limit": config.swiglu_limit,
        "sliding_window": config.sliding_window,
        "layer_types": layer_types,
        "max_position_embeddings": config.max_context,
        "initial_context_length": config.rope.original_context,
        **_rope_json(config.rope),
        "rms_norm_eps": config.rms_norm_eps,
        "vocab_size": config.vocab_size,
        "tie_word_embeddings": config.tie_embeddings,
        "eos_token_id": config.eos_ids[0] if config.eos_ids else None,
        "pad_token_id": config.pad_id,
        "initializer_range": 0.02,
        "output_router_logits": False,
        "router_aux_loss_coef": 0.9,
        "use_cache": True,
    }
    if config.expert_format == "dense":
        return value | {"torch_dtype": "bfloat16"}
    kept = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    return value | {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": kept}}


def original_json(config: GptOssConfig) -> dict[str, Any]:
    """Return config.json of the `original/` folder; it says neither eps, nor end tokens, nor the longest context."""
    return {
        "num_hidden_layers": config.num_layers,
        "num_experts": config.num_experts,
        "experts_per_token": config.experts_per_token,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "swiglu_limit": config.swiglu_limit,
        "head_dim": config.head_dim,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "sliding_window": config.sliding_window,
        "initial_context_length": config.rope.original_context,
        "rope_theta": config.rope.theta,
        "rope_scaling_factor": config.rope.factor,
        "rope_ntk_alpha": config.rope.beta_slow,
        "rope_ntk_beta": config.rope.beta_fast,
    }


def generation_json(config: GptOssConfig) -> dict[str, Any]:
    """Return generation_config.json: all end tokens."""
    value: dict[str, Any] = {"do_sample": True, "eos_token_id": list(config.eos_ids), "pad_token_id": config.pad_id}
    return {key: item for key, item in value.items() if item is not None}


def head_json(config: Eagle3Config, style: HeadStyle, *, target: GptOssConfig) -> dict[str, Any]:
    """config.json of a head. Default taps are left out, so that every engine agrees on them (formats: tap indices)."""
    aux: dict[str, Any] = {}
    if config.taps == (FINAL_NORM_TAP,) and not config.has_fc:
        aux["use_aux_hidden_state"] = False
    elif config.taps != default_taps(target.num_layers):
        aux["eagle_aux_hidden_state_layer_ids"] = _tap_ids(config.taps, style, target.num_layers)
    norms = {
        name: True
        for name in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
        if getattr(config, name)
    }
    layer: dict[str, Any] = {
        "model_type": "llama",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "rms_norm_eps": config.rms_norm_eps,
        "max_position_embeddings": config.max_context,
        "vocab_size": config.vocab_size,
        **_rope_json(config.rope),
    }
    common = {"target_hidden_size": config.target_hidden_size, "draft_vocab_size": config.draft_vocab_size}
    if style == "speculators":
        if "use_aux_hidden_state" in aux:
            raise UserError("the speculators format cannot say use_aux_hidden_state false; use the modelopt style")
        kind: dict[str, Any] = {"architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3"}
        norms["norm_before_residual"] = config.norm_before_residual  # a missing key means True to its readers
        return kind | common | norms | aux | {"transformer_layer_config": layer}
    kind = {"architectures": ["LlamaForCausalLMEagle3"], "tie_word_embeddings": False, "torch_dtype": "bfloat16"}
    if style == "modelopt":
        return kind | layer | common | {"eagle_config": {"use_aux_hidden_state": True} | aux | norms}
    return kind | layer | common | norms | ({"eagle_config": aux} if aux else {})


def _tap_ids(taps: tuple[int, ...], style: HeadStyle, num_layers: int) -> list[int]:
    """Return the list that a reader without further hint takes back to `taps`."""
    for shift in (0, 1):
        ids = [tap if tap == FINAL_NORM_TAP else tap - shift for tap in taps]
        if read_taps(ids, speculators=style == "speculators", num_layers=num_layers).taps == taps:
            return ids
    raise UserError(f"taps {list(taps)} cannot be written unambiguously in the {style} style; use speculators")


def _rope_json(rope: RopeConfig) -> dict[str, Any]:
    scaling: dict[str, Any] = {"rope_type": rope.kind}
    if rope.kind != "default":
        scaling["factor"] = rope.factor
    if rope.kind in ("yarn", "llama3"):
        scaling["original_max_position_embeddings"] = rope.original_context
    if rope.kind == "yarn":
        scaling |= {"beta_fast": rope.beta_fast, "beta_slow": rope.beta_slow, "truncate": rope.truncate}
        if rope.attention_factor is not None:
            scaling["attention_factor"] = rope.attention_factor
    if rope.kind == "llama3":
        scaling |= {"low_freq_factor": rope.low_freq_factor, "high_freq_factor": rope.high_freq_factor}
    return {"rope_theta": rope.theta, "rope_scaling": None if rope.kind == "default" else scaling}
