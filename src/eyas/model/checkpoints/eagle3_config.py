"""Parses config.json of an EAGLE-3 head in every published style: SafeAILab/SpecForge, ModelOpt, speculators.

Driven by the configuration and by the shapes in the file: what the configuration leaves open (vocabulary, head_dim,
fc, norms) the tensors answer, and where both speak they must agree. One UserError names everything that does not fit.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from eyas.base.errors import UserError
from eyas.model.checkpoints.fields import Fields
from eyas.model.checkpoints.parse import parse_rope, raise_problems
from eyas.model.config import FINAL_NORM_TAP, Eagle3Config, GptOssConfig
from eyas.model.taps import TapConvention, TapReading, read_taps, show_taps

__all__ = ["is_eagle3", "parse_head", "tap_ids"]

_log = logging.getLogger(__name__)
_Shapes = Mapping[str, Sequence[int]]


def is_eagle3(raw: Mapping[str, Any]) -> bool:
    """Whether a config.json is that of an EAGLE-3 head; SafeAILab's own say so by their draft vocabulary alone."""
    if (kind := raw.get("speculators_model_type")) is not None:
        return bool(kind == "eagle3")
    return "eagle" in str(raw.get("architectures")).lower() or "eagle_config" in raw or "draft_vocab_size" in raw


def parse_head(
    raw: Mapping[str, Any],
    *,
    target: GptOssConfig,
    shapes: _Shapes,
    tap_convention: TapConvention = "auto",
    source: str = "config.json",
) -> Eagle3Config:
    """Parse the configuration of a head for `target`. `shapes` are those of the tensors in its file, by name.

    Warns in the log where the tap ids could mean something else (see `model/taps.py`).
    """
    problems: list[str] = []
    top = Fields(raw, problems)
    speculators = "speculators_model_type" in raw or "transformer_layer_config" in raw
    layer = top.section("transformer_layer_config") if speculators else top
    eagle = top.section("eagle_config")
    _check_supported(top, layer, eagle)
    hidden_size = layer.integer("hidden_size")
    target_hidden_size = top.integer("target_hidden_size", default=hidden_size)
    vocab_size = layer.integer("vocab_size", least=2)
    if (target_hidden_size, vocab_size) != (target.hidden_size, target.vocab_size):
        raise_problems(source, problems)  # a size may differ because its field is missing
        raise UserError(
            f"{source}: this head was made for another target: hidden size {target_hidden_size} and vocabulary "
            f"{vocab_size}, but the model has {target.hidden_size} and {target.vocab_size}; choose a head of this model"
        )
    taps, has_fc = _taps(top, eagle, shapes, target, speculators, tap_convention)
    num_heads = layer.integer("num_attention_heads")
    config = Eagle3Config(
        vocab_size=vocab_size,
        draft_vocab_size=_draft_vocab(top, shapes, vocab_size),
        hidden_size=hidden_size,
        target_hidden_size=target_hidden_size,
        intermediate_size=layer.integer("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=layer.integer("num_key_value_heads", default=num_heads),
        head_dim=layer.integer("head_dim", default=_head_dim(shapes, hidden_size, num_heads), least=2),
        taps=taps.taps,
        rope=parse_rope(layer, gpt_oss=False),
        max_context=layer.integer("max_position_embeddings", default=target.max_context),
        has_fc=has_fc,
        rms_norm_eps=layer.number("rms_norm_eps", default=1e-5),
        # The readers of the speculators format take a missing key for True
        norm_before_residual=_flag(top, eagle, "norm_before_residual", default=speculators),
        norm_before_fc=_shown(top, eagle, "norm_before_fc", shapes, "input_norm.weight"),
        fc_norm=_shown(top, eagle, "fc_norm", shapes, "fc_norm.0.weight"),
        norm_output=_flag(top, eagle, "norm_output", default=False),
    )
    _check_shapes(config, shapes, target.num_layers, problems)
    raise_problems(source, problems)
    if not taps.certain:
        other = taps.boundary if taps.taps == taps.output else taps.output
        _log.warning(
            "%s: the tap ids can mean two things; reading them as %s, the other reading is %s. "
            "If acceptance is low, try the other tap convention (boundary or output).",
            source,
            show_taps(taps.taps),
            show_taps(other),
        )
    return config


def tap_ids(raw: Mapping[str, Any], problems: list[str]) -> tuple[int, ...] | None:
    """The layer ids that a head's configuration names, uninterpreted; None where it leaves them to the default."""
    top = Fields(raw, problems)
    eagle, name = top.section("eagle_config"), "eagle_aux_hidden_state_layer_ids"
    found = [
        ids for f, key in ((top, name), (eagle, name), (eagle, "layer_ids")) if (ids := f.ids(key, least=-1, most=4096))
    ]
    if any(ids != found[0] for ids in found[1:]):
        top.problem("the lists of tap ids contradict each other: " + ", ".join(str(list(ids)) for ids in found))
    return found[0] if found else None


def _check_supported(top: Fields, layer: Fields, eagle: Fields) -> None:
    top.only("speculators_model_type", "eagle3", default="eagle3")
    layer.only("num_hidden_layers", 1, default=1)
    layer.only("hidden_act", "silu", default="silu")
    layer.only("attention_bias", False, default=False)
    layer.only("mlp_bias", False, default=False)
    eagle.only("parallel_draft_step", 1, default=1)
    for name in ("use_mtp_layernorm", "eh_proj_before_attn", "return_hidden_post_norm"):
        eagle.only(name, False, default=False)


def _flag(top: Fields, eagle: Fields, name: str, *, default: bool | None) -> bool:
    """Read a switch that may be in eagle_config or at the top."""
    return eagle.flag(name) if eagle.get(name) is not None else top.flag(name, default=default)


def _shown(top: Fields, eagle: Fields, name: str, shapes: _Shapes, tensor: str) -> bool:
    """Read a switch; where the configuration lacks it, the presence of a tensor decides."""
    return _flag(top, eagle, name, default=tensor in shapes)


def _taps(
    top: Fields, eagle: Fields, shapes: _Shapes, target: GptOssConfig, speculators: bool, convention: TapConvention
) -> tuple[TapReading, bool]:
    """The taps and whether fc combines them; use_aux_hidden_state false means the final hidden state as it is."""
    ids = tap_ids(top.raw, top.problems)
    final = (FINAL_NORM_TAP,)
    if not _flag(top, eagle, "use_aux_hidden_state", default=True):
        return TapReading(final, final, final, True), False
    if ids is None and "fc.weight" not in shapes:
        return TapReading(final, final, final, True), False
    taps = read_taps(ids, speculators=speculators, num_layers=target.num_layers, convention=convention)
    return taps, "fc.weight" in shapes or taps.taps != final


def _draft_vocab(top: Fields, shapes: _Shapes, vocab_size: int) -> int:
    stored = shapes.get("d2t") or shapes.get("lm_head.weight") or (vocab_size,)
    return top.integer("draft_vocab_size", default=stored[0], most=vocab_size)


def _head_dim(shapes: _Shapes, hidden_size: int, num_heads: int) -> int:
    for prefix in ("midlayer", "layers.0"):
        if shape := shapes.get(f"{prefix}.self_attn.q_proj.weight"):
            return shape[0] // num_heads
    return hidden_size // num_heads


def _check_shapes(config: Eagle3Config, shapes: _Shapes, num_layers: int, problems: list[str]) -> None:
    """Check shapes whose errors need an explanation; plain mismatches are found tensor by tensor when loading."""
    if config.num_heads % config.num_kv_heads or config.head_dim % 2:
        problems.append(f"heads {config.num_heads}/{config.num_kv_heads} of {config.head_dim} are impossible")
    wrong = [tap for tap in config.taps if not FINAL_NORM_TAP <= tap <= num_layers]
    if wrong:
        problems.append(f"taps {show_taps(wrong)} do not exist in a model of {num_layers} layers")
    width = (shapes.get("fc.weight") or (0,))[-1]
    if config.has_fc and width and width != len(config.taps) * config.target_hidden_size:
        states = f"{width / config.target_hidden_size:g} hidden states of the target"
        problems.append(f"fc.weight takes {states}, but there are {len(config.taps)} taps ({show_taps(config.taps)})")
    for prefix in ("midlayer", "layers.0"):
        columns = (shapes.get(f"{prefix}.self_attn.q_proj.weight") or (0,))[-1]
        if columns == config.hidden_size:
            problems.append("its attention takes H inputs, not 2 H: an EAGLE-1 style head, which is not supported")
    if config.draft_vocab_size < config.vocab_size and "d2t" not in shapes:
        problems.append(
            f"d2t is missing: the draft vocabulary of {config.draft_vocab_size} cannot be mapped to {config.vocab_size}"
        )
    if config.norm_before_fc and config.fc_norm:
        problems.append("norm_before_fc and fc_norm exclude each other")
