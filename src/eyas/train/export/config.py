"""Writes the config.json of an exported head, for the engine that is to load it.

The layers that a head taps are the one thing that engines read differently (see `model/taps.py`). Default taps are left
out, so that every engine takes the same ones. Others are written as the chosen engine reads them, at the top, where
vLLM looks, and in `eagle_config`, where SGLang does. Read from the sources of vLLM 0.33.0 (llama_eagle3.py,
gpu_model_runner.py, eagle3_utils.py, configs/speculators/algos.py), SGLang 0.5.23 (llama_eagle3.py, gpt_oss.py,
spec_aux_hidden_state.py), TensorRT-LLM of 2026 (modeling_speculative.py) and speculators 0.9.0 (models/eagle3).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, get_args

from eyas.base.errors import UserError
from eyas.model.checkpoints.config_json import head_json
from eyas.model.config import FINAL_NORM_TAP, Eagle3Config, GptOssConfig
from eyas.model.taps import default_taps, show_taps

__all__ = ["ENGINES", "Engine", "Form", "config_json", "has_default_taps", "obstacle", "tap_ids_for"]

Form = Literal["midlayer", "speculators"]
Engine = Literal["eyas", "vllm", "sglang", "tensorrt-llm"]
ENGINES: tuple[Engine, ...] = get_args(Engine)
SPECULATORS_VERSION = "0.9.0"  # of the format


def has_default_taps(config: Eagle3Config, target: GptOssConfig) -> bool:
    """Whether engines need no ids: the default taps, or the final hidden state without fc."""
    return config.taps in (default_taps(target.num_layers), (FINAL_NORM_TAP,)) and (
        config.has_fc == (config.taps != (FINAL_NORM_TAP,))
    )


def tap_ids_for(config: Eagle3Config, engine: Engine, target: GptOssConfig) -> list[int]:
    """Return the ids by which vLLM, SGLang or TensorRT-LLM find a head's taps. Raises UserError if it has none."""
    taps = list(config.taps)
    if engine == "tensorrt-llm":  # the output of layer i; -1 is the final norm
        ids = [tap if tap == FINAL_NORM_TAP else tap - 1 for tap in taps]
        known = 0 not in taps
    elif engine == "sglang":  # the same, except that with id L all of them are boundaries
        ids = taps if max(taps) == target.num_layers else [tap - 1 for tap in taps]
        known = FINAL_NORM_TAP not in taps and min(ids) >= 0
    else:
        ids, known = taps, FINAL_NORM_TAP not in taps
    if not known:
        raise UserError(f"{engine} has no ids for the taps {show_taps(taps)}; train a head on other layers")
    return ids


def obstacle(config: Eagle3Config, form: Form, engine: Engine, target: GptOssConfig) -> str | None:
    """Return why an engine cannot use a head in this form, None if it can."""
    if engine in ("sglang", "tensorrt-llm"):
        if form == "speculators":
            return "it does not read the speculators form"
        if config.norm_before_residual:
            return "it has no norm_before_residual"
    if engine == "sglang" and config.hidden_size != target.hidden_size:
        return "it takes the target's embedding, which has another width"
    if engine != "eyas" and not has_default_taps(config, target):
        try:
            tap_ids_for(config, engine, target)
        except UserError as error:
            return str(error)
    return None


def form_for(config: Eagle3Config, engine: Engine, target: GptOssConfig) -> Form:
    """Return the form in which an engine finds a head's taps without doubt, the midlayer form if it can.

    Raises UserError if there is none.
    """
    forms: tuple[Form, Form] = ("midlayer", "speculators")
    reasons = []
    for form in forms:
        try:
            config_json(
                config, form=form, engine=engine, target=target, target_name="", draft_tokens=1, dtype="bfloat16"
            )
            return form
        except UserError as error:
            reasons.append(f"{form}: {error}")
    raise UserError(f"this head cannot be exported for {engine} ({'; '.join(reasons)})")


def config_json(
    config: Eagle3Config,
    *,
    form: Form,
    engine: Engine,
    target: GptOssConfig,
    target_name: str,
    draft_tokens: int,
    dtype: Literal["bfloat16", "float32"],
) -> dict[str, Any]:
    """Return config.json. `draft_tokens` is what the speculators form recommends, which vLLM takes for its default.

    Raises UserError for what the form or the engine cannot express.
    """
    if reason := obstacle(config, form, engine, target):
        raise UserError(f"{engine} cannot use this head: {reason}")
    style: Literal["specforge", "speculators"] = "specforge" if form == "midlayer" else "speculators"
    if form == "speculators":
        _check_speculators(config)
    if has_default_taps(config, target):
        value = head_json(config, style, target=target)
    else:
        value = _with_taps(config, style, engine, target)
    layer = value["transformer_layer_config"] if form == "speculators" else value
    if (count := len(config.taps)) != 3 and config.has_fc:
        layer["num_aux_hidden_states"] = count
    value["torch_dtype"] = dtype
    if form == "midlayer" and config.norm_before_fc:
        value["eagle_config"] = value.get("eagle_config", {}) | {"norm_before_fc": True}  # TensorRT-LLM looks only here
    if form == "speculators":
        layer["torch_dtype"] = dtype
        value["speculators_version"] = SPECULATORS_VERSION
        value["speculators_config"] = {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": draft_tokens,
                    "verifier_accept_k": 1,
                    "accept_tolerance": 0.0,
                }
            ],
            "verifier": {"name_or_path": target_name, "architectures": ["GptOssForCausalLM"]},
        }
    return value


def _check_speculators(config: Eagle3Config) -> None:
    if not config.has_fc:
        raise UserError("the speculators form always has an fc; export the midlayer form")
    if config.hidden_size != config.target_hidden_size:
        raise UserError(
            f"the speculators form has one hidden size, this head has {config.hidden_size} and its target "
            f"{config.target_hidden_size}; export the midlayer form"
        )
    if FINAL_NORM_TAP in config.taps:
        raise UserError("the speculators form has no id for the final norm; export the midlayer form")


def _with_taps(
    config: Eagle3Config, style: Literal["specforge", "speculators"], engine: Engine, target: GptOssConfig
) -> dict[str, Any]:
    if engine == "eyas" and style == "specforge":
        ids = head_json(config, style, target=target)["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
    else:  # the speculators form knows vLLM's ids only
        ids = tap_ids_for(config, "vllm" if style == "speculators" else engine, target)
    value = head_json(replace(config, taps=default_taps(target.num_layers)), style, target=target)
    value["eagle_aux_hidden_state_layer_ids"] = ids
    if style == "specforge":
        value["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": ids}
    return value
