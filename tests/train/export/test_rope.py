"""Rotary tables of exported heads, as their config.json says them, beside those of vLLM and transformers.

vLLM's table is reimplemented here from its formula (`rotary_embedding/yarn_scaling_rope.py`, `common.py`).
"""

import math

import pytest
import torch

from eyas.model.making.presets import PRESETS
from eyas.model.networks.rope import inverse_frequencies, rope_table
from eyas.train.export.config import config_json
from eyas.train.heads.registry import find_making
from eyas.train.settings.schema import HeadSettings

TARGET, CONTEXT = PRESETS["gpt-oss-120b"], 131_072
HEADS = {
    "target": HeadSettings(),
    "default": HeadSettings(rope="default", rope_theta=5e5),
    "linear": HeadSettings(rope="linear", rope_theta=1e4, rope_factor=8.0),
    "yarn": HeadSettings(rope="yarn", rope_theta=1.5e5, rope_factor=16.0, rope_original_context=8192),
    "llama3": HeadSettings(rope="llama3", rope_theta=5e5, rope_factor=8.0, rope_original_context=8192),
}


def exported(settings, form="midlayer"):
    """The head's config, and the fields of its layer in config.json."""
    config = find_making("eagle3").fresh_config(settings, TARGET, context=CONTEXT)
    raw = config_json(
        config, form=form, engine="vllm", target=TARGET, target_name="target", draft_tokens=4, dtype="bfloat16"
    )
    return config, raw.get("transformer_layer_config", raw)


def vllm_yarn(layer):
    """Inverse frequencies, magnitude and length of vLLM's table for a config.json."""
    rope, dim = layer["rope_scaling"], layer["head_dim"]
    base, original, factor = layer["rope_theta"], rope["original_max_position_embeddings"], rope["factor"]

    def turning(rotations):
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low, high = turning(rope.get("beta_fast", 32)), turning(rope.get("beta_slow", 1))
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    kept = 1 - ((torch.arange(dim // 2, dtype=torch.float) - low) / (high - low or 0.001)).clamp(0, 1)
    wavelengths = base ** (torch.arange(0, dim, 2, dtype=torch.float) / dim)
    frequencies = 1 / (factor * wavelengths) * (1 - kept) + 1 / wavelengths * kept
    return frequencies, 1.0 if factor <= 1 else 0.1 * math.log(factor) + 1, math.ceil(original * factor)


@pytest.mark.parametrize("form", ["midlayer", "speculators"])
@pytest.mark.parametrize("name", ["target", "yarn"])
def test_the_table_of_a_long_head_is_that_of_vllm(name, form):
    config, layer = exported(HEADS[name], form)
    frequencies, magnitude, length = vllm_yarn(layer)
    assert length >= CONTEXT == layer["max_position_embeddings"]
    torch.testing.assert_close(
        inverse_frequencies(config.rope, config.head_dim).float(), frequencies, rtol=1e-6, atol=0
    )
    # What rounding of frequencies in fp32 makes of the last angle: 131,071 times 6e-8 of a turn's fastest.
    places = torch.tensor([0, 1, 4095, 4096, 50_000, CONTEXT - 1])
    angles = torch.outer(places.float(), frequencies)
    table = rope_table(config.rope, config.head_dim, CONTEXT, torch.device("cpu"))
    for found, wanted in zip(table, (angles.cos(), angles.sin()), strict=True):
        torch.testing.assert_close(found[places], wanted * magnitude, rtol=0, atol=3e-2)
        torch.testing.assert_close(found[places[:4]], (wanted * magnitude)[:4], rtol=0, atol=1e-3)


def test_a_head_has_the_targets_theta_and_yarn_unless_told_otherwise():
    config, layer = exported(HEADS["target"])
    assert config.rope == TARGET.rope and TARGET.rope.kind == "yarn" and not TARGET.rope.truncate
    assert layer["rope_theta"] == 150_000 and layer["rope_scaling"]["truncate"] is False
    assert (layer["rope_scaling"]["factor"], layer["rope_scaling"]["original_max_position_embeddings"]) == (32, 4096)
    _, other = exported(HEADS["default"])
    assert other["rope_theta"] == 5e5 and other["rope_scaling"] is None


@pytest.mark.parametrize("name", [name for name in HEADS if name != "default"])
def test_frequencies_are_those_of_transformers(name):
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config, layer = exported(HEADS[name])
    theirs = LlamaConfig(**{key: value for key, value in layer.items() if key != "architectures"})
    theirs.standardize_rope_params()
    wanted, magnitude = ROPE_INIT_FUNCTIONS[config.rope.kind](theirs, torch.device("cpu"))
    torch.testing.assert_close(inverse_frequencies(config.rope, config.head_dim).float(), wanted, rtol=1e-6, atol=0)
    cos, _ = rope_table(config.rope, config.head_dim, 1, torch.device("cpu"))
    assert float(cos[0, 0]) == pytest.approx(magnitude)
