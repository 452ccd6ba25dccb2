"""config.json of targets and heads: published forms, every complaint, and what tap ids mean."""

import copy
import logging
from dataclasses import replace

import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.base.errors import UserError
from eyas.model.checkpoints.config_json import generation_json, head_json, original_json, target_json
from eyas.model.checkpoints.eagle3_config import parse_head
from eyas.model.checkpoints.eagle3_names import head_parts
from eyas.model.checkpoints.parse import parse_target
from eyas.model.config import FINAL_NORM_TAP, RopeConfig
from eyas.model.making.presets import EAGLE3_VARIANTS, PRESETS, default_head, head_of_kind
from eyas.model.taps import default_taps, read_taps

TINY = PRESETS["tiny"]
BIG = PRESETS["gpt-oss-120b"]


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_targets_round_trip(name):
    config = PRESETS[name]
    assert parse_target(target_json(config), generation_json(config)) == config


def test_original_names_round_trip_with_the_published_end_tokens():
    config = PRESETS["gpt-oss-20b"]
    assert parse_target(original_json(config)) == replace(config, pad_id=None)


def test_transformers_5_rope_parameters(tmp_path):
    config = transformers.GptOssConfig(num_hidden_layers=2, vocab_size=1000, eos_token_id=7)
    parsed = parse_target(config.to_dict())
    assert "rope_scaling" not in config.to_dict() and parsed.eos_ids == (7,)
    assert parsed.rope == BIG.rope and parsed.expert_format == "dense" and parsed.num_experts == 128


def test_generation_config_has_the_end_tokens():
    raw = target_json(TINY)
    assert parse_target(raw).eos_ids == (510,)
    assert parse_target(raw, {"eos_token_id": [3, 4]}).eos_ids == (3, 4)
    assert parse_target(raw, {}).eos_ids == (510,)


def test_missing_truncate_is_false_for_gpt_oss_and_true_for_a_head():
    raw = target_json(TINY)
    del raw["rope_scaling"]["truncate"]
    assert parse_target(raw).rope.truncate is False
    head = head_json(default_head(TINY, rope=replace(TINY.rope, truncate=False)), "specforge", target=TINY)
    assert parse(head).rope.truncate is False
    del head["rope_scaling"]["truncate"]
    assert parse(head).rope.truncate is True


def test_tensors_overrule_a_foreign_quantization_config():
    raw = target_json(TINY) | {"quantization_config": {"quant_method": "gptq"}}
    with pytest.raises(UserError, match=r"quantization_config.quant_method is 'gptq'"):
        parse_target(raw)
    assert parse_target(raw, expert_format="mxfp4") == replace(TINY, eos_ids=(510,))


def test_one_error_names_everything_wrong_with_a_target():
    raw = target_json(TINY) | {
        "hidden_size": "64",
        "num_hidden_layers": 7,
        "num_attention_heads": 5,
        "hidden_act": "gelu",
        "experts_per_token": 2,
        "rms_norm_eps": -1,
        "eos_token_id": 512,
        "tie_word_embeddings": "no",
    }
    del raw["head_dim"]
    raw["rope_scaling"] |= {"mscale": 1.0, "beta_fast": None, "factor": True}
    with pytest.raises(UserError) as caught:
        parse_target(raw, source="here/config.json")
    message = str(caught.value)
    assert message.startswith("here/config.json") and "\n" not in message
    for part in (
        "hidden_size is '64'",
        "layer_types has 8 entries for 7 layers",
        "5 heads are no multiple of 2",
        "hidden_act is 'gelu', supported is 'silu'",
        "num_experts_per_tok=4 and experts_per_token=2 contradict",
        "rms_norm_eps is -1",
        "eos_token_id is 512",
        "head_dim is missing",
        "rope_scaling.mscale is not supported",
        "rope_scaling.factor is True",
        "tie_word_embeddings is 'no'",
    ):
        assert part in message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "llama"}, "model_type 'llama'; supported is gpt_oss"),
        ({"hidden_size": 72}, "hidden_size 72 is no multiple of 32"),
        ({"layer_types": ["chunked_attention"] * 8}, "layer_types holds something other"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "rope_type is 'longrope'"),
        ({"rope_scaling": 3}, "rope_scaling is 3, not an object"),
        ({"num_experts_per_tok": 9, "experts_per_token": 9}, "9 experts per token, but only 8"),
        ({"quantization_config": "x"}, "quantization_config is 'x', not an object"),
    ],
)
def test_wrong_targets(change, message):
    with pytest.raises(UserError, match=message):
        parse_target(target_json(TINY) | change)


def test_code_references_are_ignored():
    raw = target_json(TINY) | {"auto_map": {"AutoModelForCausalLM": "evil.Model"}, "id2label": {"0": "x"}}
    assert parse_target(raw, generation_json(TINY)) == TINY


def shapes_of(config, *without):
    parts = head_parts(config, "midlayer")
    shapes = {part.name: part.shape for group in parts.values() for part in group}
    return {name: shape for name, shape in shapes.items() if name not in without}


def parse(raw, *, target=TINY, shapes=None, convention="auto"):
    shapes = shapes_of(default_head(target)) if shapes is None else shapes
    return parse_head(raw, target=target, shapes=shapes, tap_convention=convention)


@pytest.mark.parametrize("kind", sorted(EAGLE3_VARIANTS))
@pytest.mark.parametrize("target", [TINY, BIG], ids=["tiny", "120b"])
def test_heads_round_trip_in_their_own_style(kind, target):
    config, style = head_of_kind(kind, target)
    raw = head_json(config, style, target=target)
    assert parse(raw, target=target, shapes=shapes_of(config)) == config


@pytest.mark.parametrize("style", ["specforge", "modelopt", "speculators"])
@pytest.mark.parametrize("taps", [(2, 4, 5), (2, 5, 7), (3, 5, 8), (4, FINAL_NORM_TAP), (0, 3, 8)])
def test_explicit_taps_come_back_from_every_style(style, taps):
    config = default_head(TINY, taps=taps)
    assert parse(head_json(config, style, target=TINY), shapes=shapes_of(config)) == config


def test_taps_that_only_one_style_can_say():
    config = default_head(TINY, taps=(1, 4, 6))
    with pytest.raises(UserError, match="cannot be written unambiguously"):
        head_json(config, "specforge", target=TINY)
    assert parse(head_json(config, "speculators", target=TINY), shapes=shapes_of(config)).taps == (1, 4, 6)


def test_published_lmsys_config(caplog):
    """The SpecForge configuration of the 120b head: no rope_theta, ids that count layer outputs."""
    raw = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 17, 33]},
        "draft_vocab_size": 32000,
        "hidden_act": "silu",
        "hidden_size": 2880,
        "head_dim": 64,
        "intermediate_size": 17280,
        "max_position_embeddings": 4096,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "num_hidden_layers": 1,
        "rms_norm_eps": 1e-05,
        "vocab_size": 201088,
    }
    with caplog.at_level(logging.WARNING):
        config = parse(raw, target=BIG)
    assert config == default_head(BIG, taps=(2, 18, 34))
    assert config.rope == RopeConfig(theta=10000.0)
    assert "HS[2], HS[18], HS[34]" in caplog.text and "HS[1], HS[17], HS[33]" in caplog.text
    assert parse(raw, target=BIG, convention="boundary").taps == (1, 17, 33)
    assert len(caplog.records) == 1  # an answer given by the user needs no warning


@pytest.mark.parametrize(
    ("ids", "speculators", "taps", "certain"),
    [
        (None, False, (2, 18, 33), True),
        ([2, 18, 33], False, (2, 18, 33), True),
        ([1, 17, 32], False, (2, 18, 33), False),
        ([1, 17, 32], True, (1, 17, 32), True),
        ([24, 30, 36], False, (24, 30, 36), True),
        ([30, 36, 24], False, (24, 30, 36), True),
        ([5, 17, 30], False, (5, 17, 30), False),
        ([-1], False, (FINAL_NORM_TAP,), True),
        ([-1, 1, 17], False, (2, 18, FINAL_NORM_TAP), False),
    ],
)
def test_what_tap_ids_mean(ids, speculators, taps, certain):
    reading = read_taps(ids, speculators=speculators, num_layers=36)
    assert (reading.taps, reading.certain) == (taps, certain)


def test_default_taps_of_shallow_models_stay_inside():
    for num_layers in range(1, 40):
        taps = default_taps(num_layers)
        assert taps == tuple(sorted(taps)) and taps[0] >= 0 and taps[-1] <= num_layers
    assert default_taps(24) == (2, 12, 21)


def test_final_hidden_state_heads():
    final = default_head(TINY, taps=(FINAL_NORM_TAP,), has_fc=False)
    raw = head_json(default_head(TINY), "modelopt", target=TINY)
    without_fc = shapes_of(default_head(TINY), "fc.weight")
    explicit = raw | {"eagle_config": {"use_aux_hidden_state": False}}
    listed = raw | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [-1]}}
    silent = {key: value for key, value in raw.items() if key != "eagle_config"}
    for config in (explicit, listed, silent):
        assert parse(config, shapes=without_fc) == final
    assert parse(explicit) == final  # a stored fc goes unused, as in vLLM
    with_fc = shapes_of(default_head(TINY, taps=(FINAL_NORM_TAP,)))
    assert parse(listed, shapes=with_fc) == default_head(TINY, taps=(FINAL_NORM_TAP,))


def test_norms_are_found_in_either_place_or_by_their_tensor():
    raw = head_json(default_head(TINY), "modelopt", target=TINY)
    normed = shapes_of(default_head(TINY, norm_before_fc=True))
    wanted = default_head(TINY, norm_before_fc=True)
    assert parse(raw | {"norm_before_fc": True}, shapes=normed) == wanted
    assert parse(raw | {"eagle_config": {"norm_before_fc": True}}, shapes=normed) == wanted
    assert parse(raw, shapes=normed) == wanted
    assert parse(raw, shapes=shapes_of(default_head(TINY, fc_norm=True))) == default_head(TINY, fc_norm=True)


def test_speculators_default_for_a_missing_norm_before_residual_is_true():
    raw = head_json(default_head(TINY), "speculators", target=TINY)
    assert parse(raw).norm_before_residual is False
    del raw["norm_before_residual"]
    assert parse(raw).norm_before_residual is True
    assert parse(head_json(default_head(TINY), "specforge", target=TINY)).norm_before_residual is False


def test_vocabulary_and_head_dim_follow_the_shapes_where_the_config_is_silent():
    raw = head_json(default_head(TINY), "specforge", target=TINY)
    del raw["draft_vocab_size"], raw["head_dim"]
    assert parse(raw) == default_head(TINY)
    full = default_head(TINY, draft_vocab_size=TINY.vocab_size)
    assert parse(raw, shapes=shapes_of(full, "d2t", "lm_head.weight")) == full


def test_layer_ids_of_the_newer_vllm_runner():
    raw = head_json(default_head(TINY), "modelopt", target=TINY)
    raw["eagle_config"] = {"layer_ids": [3, 5, 8]}
    assert parse(raw).taps == (3, 5, 8)
    raw["eagle_aux_hidden_state_layer_ids"] = [3, 5, 7]
    with pytest.raises(UserError, match=r"contradict each other: \[3, 5, 7\], \[3, 5, 8\]"):
        parse(raw)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"hidden_size": 128, "target_hidden_size": 128},
            "made for another target: hidden size 128 and vocabulary 512",
        ),
        ({"vocab_size": 1000}, "made for another target: hidden size 64 and vocabulary 1000"),
        ({"num_hidden_layers": 2}, "num_hidden_layers is 2, supported is 1"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"speculators_model_type": "peagle"}, "speculators_model_type is 'peagle'"),
        ({"eagle_config": {"eh_proj_before_attn": True}}, "eagle_config.eh_proj_before_attn is True"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [3, 5]}}, "fc.weight takes 3 hidden states .* 2 taps"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [3, 5, 9]}}, r"taps HS\[9\] do not exist .* 8 layers"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [3, 5, "x"]}}, "not whole numbers from -1"),
        ({"norm_before_fc": True, "fc_norm": True}, "exclude each other"),
        ({"draft_vocab_size": 513}, "draft_vocab_size is 513, not a whole number from 1 to 512"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "original_max_position_embeddings is missing"),
    ],
)
def test_wrong_heads(change, message):
    with pytest.raises(UserError, match=message):
        parse(copy.deepcopy(head_json(default_head(TINY), "specforge", target=TINY)) | change)


def test_heads_told_from_their_shapes_alone():
    raw = head_json(default_head(TINY), "specforge", target=TINY)
    with pytest.raises(UserError, match="d2t is missing: the draft vocabulary of 256 cannot be mapped to 512"):
        parse(raw, shapes=shapes_of(default_head(TINY), "d2t"))
    plain = shapes_of(default_head(TINY)) | {"midlayer.self_attn.q_proj.weight": (128, 64)}
    with pytest.raises(UserError, match="EAGLE-1 style"):
        parse(raw, shapes=plain)


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
TARGET = target_json(TINY)
HEADS = [head_json(*head_of_kind(kind, TINY), target=TINY) for kind in sorted(EAGLE3_VARIANTS)]
SWITCHES = ("eagle_config", "norm_output", "use_aux_hidden_state", "layer_ids", "speculators_model_type")


def spoil(raw, data, keys):
    """Put arbitrary values into one to three fields, at the top or one level below."""
    raw = copy.deepcopy(raw)
    for key in data.draw(st.lists(st.sampled_from(keys), min_size=1, max_size=3)):
        inside = raw.get(key)
        if isinstance(inside, dict) and inside and data.draw(st.booleans()):
            inside[data.draw(st.sampled_from(sorted(inside)))] = data.draw(ANY_JSON)
        else:
            raw[key] = data.draw(ANY_JSON)
    return raw


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_value_in_a_target_parses_or_is_told_to_the_user(data):
    raw = spoil(TARGET, data, [*TARGET, "rope_parameters", "num_experts"])
    try:
        config = parse_target(raw, data.draw(st.just({}) | st.fixed_dictionaries({"eos_token_id": ANY_JSON})))
    except UserError:
        return
    assert len(config.layer_is_sliding) == config.num_layers and config.num_heads % config.num_kv_heads == 0


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_value_in_a_head_parses_or_is_told_to_the_user(data):
    raw = data.draw(st.sampled_from(HEADS))
    raw = spoil(raw, data, [*raw, *SWITCHES])
    shapes = shapes_of(default_head(TINY))
    shapes[data.draw(st.sampled_from(sorted(shapes)))] = tuple(data.draw(st.lists(st.integers(0, 600), max_size=3)))
    try:
        config = parse(raw, shapes=shapes)
    except UserError:
        return
    assert config.draft_vocab_size <= config.vocab_size == 512 and all(-1 <= tap <= 8 for tap in config.taps)
