"""Parses config.json of a target into GptOssConfig: the published keys, transformers 5's, and those of `original/`.

One UserError names everything missing, wrong or not supported. Fields that do not change the computation are ignored;
`auto_map` and other code references are never followed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from eyas.base.errors import UserError
from eyas.model.checkpoints.fields import Fields
from eyas.model.config import GptOssConfig, RopeConfig
from eyas.model.mxfp4 import BLOCK

__all__ = ["ExpertFormat", "parse_rope", "parse_target", "raise_problems"]

ExpertFormat = Literal["mxfp4", "dense"]

_HARMONY_VOCAB = 201088
_HARMONY_EOS = (200002, 199999, 200012)  # generation_config.json of gpt-oss; `original/` has none
_ROPE_KINDS: tuple[Literal["default", "linear", "yarn", "llama3"], ...] = ("default", "linear", "yarn", "llama3")
_ROPE_KEYS = {"rope_type", "type", "rope_theta", "factor", "original_max_position_embeddings", "partial_rotary_factor"}
_ROPE_KEYS |= {"beta_fast", "beta_slow", "truncate", "attention_factor", "low_freq_factor", "high_freq_factor"}


def raise_problems(source: str, problems: list[str]) -> None:
    if problems:
        raise UserError(f"{source} does not fit: {'; '.join(problems)}")


def parse_target(
    raw: Mapping[str, Any],
    generation: Mapping[str, Any] | None = None,
    *,
    expert_format: ExpertFormat | None = None,
    source: str = "config.json",
) -> GptOssConfig:
    """The configuration of a target; end tokens come from generation_config.json where it names them.

    `expert_format` is what the tensors show; it overrules `quantization_config`, which re-exports forget to remove.
    """
    original = "model_type" not in raw and "rope_ntk_beta" in raw
    if not original and raw.get("model_type") != "gpt_oss":
        raise UserError(f"{source} has model_type {raw.get('model_type')!r}; supported is gpt_oss")
    problems: list[str] = []
    fields = Fields(raw, problems)
    _check_supported(fields)
    num_layers = fields.integer("num_hidden_layers", most=1024)
    vocab_size = fields.integer("vocab_size", least=2)
    config = GptOssConfig(
        vocab_size=vocab_size,
        hidden_size=fields.integer("hidden_size"),
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=fields.integer("num_attention_heads"),
        num_kv_heads=fields.integer("num_key_value_heads"),
        head_dim=fields.integer("head_dim", least=2),
        num_experts=fields.integer("num_local_experts", "num_experts"),
        experts_per_token=fields.integer("num_experts_per_tok", "experts_per_token"),
        sliding_window=fields.integer("sliding_window"),
        layer_is_sliding=_layer_types(fields, num_layers),
        rope=_original_rope(fields) if original else parse_rope(fields, gpt_oss=True),
        max_context=_original_context(fields) if original else fields.integer("max_position_embeddings"),
        swiglu_limit=fields.number("swiglu_limit", default=7.0),
        rms_norm_eps=fields.number("rms_norm_eps", default=1e-5 if original else None),
        eos_ids=_eos_ids(fields, Fields(generation or {}, problems, "generation_config.json: "), vocab_size),
        pad_id=(fields.ids("pad_token_id", least=0, most=vocab_size - 1) or (None,))[0],
        tie_embeddings=fields.flag("tie_word_embeddings", default=False),
        expert_format=expert_format or ("mxfp4" if original else _expert_format(fields)),
    )
    _check_sizes(config, fields)
    raise_problems(source, problems)
    return config


def _check_supported(fields: Fields) -> None:
    fields.only("hidden_act", "silu", default="silu")  # nominal: the experts' activation is the clamped SwiGLU
    fields.only("attention_bias", True, default=True)
    fields.only("swiglu_alpha", 1.702, default=1.702)


def _check_sizes(config: GptOssConfig, fields: Fields) -> None:
    if config.num_heads % config.num_kv_heads:
        fields.problem(f"{config.num_heads} heads are no multiple of {config.num_kv_heads} key/value heads")
    if config.head_dim % 2:
        fields.problem(f"head_dim {config.head_dim} is odd")
    if config.experts_per_token > config.num_experts:
        fields.problem(f"{config.experts_per_token} experts per token, but only {config.num_experts} experts")
    if config.expert_format == "mxfp4":
        for name in ("hidden_size", "intermediate_size"):
            if getattr(config, name) % BLOCK:
                fields.problem(f"{name} {getattr(config, name)} is no multiple of {BLOCK}, the MXFP4 block")


def _layer_types(fields: Fields, num_layers: int) -> tuple[bool, ...]:
    """Return True for each sliding layer; without `layer_types` they alternate, layer 0 sliding."""
    types = fields.get("layer_types")
    alternating = tuple(layer % 2 == 0 for layer in range(num_layers))
    if types is None:
        return alternating
    if not isinstance(types, list) or not set(map(str, types)) <= {"sliding_attention", "full_attention"}:
        fields.problem("layer_types holds something other than sliding_attention and full_attention")
        return alternating
    if len(types) != num_layers:
        fields.problem(f"layer_types has {len(types)} entries for {num_layers} layers")
    return tuple(kind == "sliding_attention" for kind in types)


def _expert_format(fields: Fields) -> ExpertFormat:
    if fields.get("quantization_config") is None:
        return "dense"
    quantization = fields.section("quantization_config")
    quantization.only("quant_method", "mxfp4", default=None)
    return "mxfp4"


def _eos_ids(fields: Fields, generation: Fields, vocab_size: int) -> tuple[int, ...]:
    ids = generation.ids("eos_token_id", least=0, most=vocab_size - 1)
    if ids is None:
        ids = fields.ids("eos_token_id", least=0, most=vocab_size - 1)
    if ids is None and vocab_size == _HARMONY_VOCAB:
        return _HARMONY_EOS
    return ids or ()


def parse_rope(fields: Fields, *, gpt_oss: bool) -> RopeConfig:
    """Parse `rope_parameters` (transformers 5), else `rope_scaling` with a top-level `rope_theta`.

    A yarn entry without `truncate` means False for gpt-oss: no gpt-oss was trained with rounded correction ranges, and
    OpenAI's reference has no such switch; a re-export that lost the key still wants it. For heads it means True, as
    transformers and vLLM read it. A head without `rope_theta` has Llama's 10,000.
    """
    name = "rope_parameters" if fields.get("rope_parameters") is not None else "rope_scaling"
    scaling = fields.section(name)
    for key in sorted(set(scaling.raw) - _ROPE_KEYS):
        scaling.problem(f"{key} is not supported")
    scaling.only("partial_rotary_factor", 1.0, default=1.0)
    kind = scaling.get("rope_type", "type") or "default"
    if kind not in _ROPE_KINDS:
        scaling.problem(f"rope_type is {kind!r}, supported are {', '.join(_ROPE_KINDS)}")
        kind = "default"
    has_theta = scaling.get("rope_theta") is not None
    default_theta = None if gpt_oss else 10000.0
    theta = (scaling if has_theta else fields).number("rope_theta", default=default_theta)
    if kind == "default":
        return RopeConfig(theta=theta)
    factor = scaling.number("factor")
    if kind == "linear":
        return RopeConfig(theta=theta, kind="linear", factor=factor)
    elsewhere = gpt_oss and fields.get("initial_context_length") is not None
    length = fields.integer("initial_context_length") if elsewhere else None
    context = scaling.integer("original_max_position_embeddings", default=length)
    if kind == "llama3":
        low, high = scaling.number("low_freq_factor"), scaling.number("high_freq_factor")
        if low >= high:
            scaling.problem(f"low_freq_factor {low} is not below high_freq_factor {high}")
        return RopeConfig(
            theta=theta,
            kind="llama3",
            factor=factor,
            original_context=context,
            low_freq_factor=low,
            high_freq_factor=high,
        )
    given = scaling.get("attention_factor") is not None
    return RopeConfig(
        theta=theta,
        kind="yarn",
        factor=factor,
        original_context=context,
        beta_fast=scaling.number("beta_fast", default=32.0),
        beta_slow=scaling.number("beta_slow", default=1.0),
        truncate=scaling.flag("truncate", default=not gpt_oss),
        attention_factor=scaling.number("attention_factor") if given else None,
    )


def _original_rope(fields: Fields) -> RopeConfig:
    """Parse as gpt_oss/torch/model.py: no scaling at factor 1; ntk_beta and ntk_alpha are yarn's fast and slow."""
    theta, factor = fields.number("rope_theta"), fields.number("rope_scaling_factor")
    if factor <= 1.0:
        return RopeConfig(theta=theta)
    return RopeConfig(
        theta=theta,
        kind="yarn",
        factor=factor,
        original_context=fields.integer("initial_context_length"),
        beta_fast=fields.number("rope_ntk_beta"),
        beta_slow=fields.number("rope_ntk_alpha"),
        truncate=False,
    )


def _original_context(fields: Fields) -> int:
    """Return the scaled context: 4,096 x 32 = 131,072 for the published models."""
    return int(fields.integer("initial_context_length") * fields.number("rope_scaling_factor"))
