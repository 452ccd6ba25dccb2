"""Every published form of a target and of a head loads bit for bit; everything else is one clear error."""

import json
import shutil
from dataclasses import fields, replace

import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from eyas.base.errors import UserError
from eyas.model.checkpoints.head_kinds import find_kind
from eyas.model.checkpoints.loader import load_head, load_target
from eyas.model.checkpoints.shards import read_headers
from eyas.model.making.make import make_head, make_target
from eyas.model.making.presets import EAGLE3_VARIANTS, PRESETS, default_head, head_of_kind
from eyas.model.mxfp4 import Mxfp4Tensor, dequantize
from eyas.model.weights import tensors_of

TINY = PRESETS["tiny"]
CPU = {"device": torch.device("cpu"), "dtype": torch.float32}


@pytest.fixture(scope="module")
def target_folder(tmp_path_factory):
    return make_target(TINY, tmp_path_factory.mktemp("target") / "tiny", shard_bytes=300_000)


@pytest.fixture(scope="module")
def target(target_folder):
    return load_target(target_folder, **CPU)


@pytest.fixture
def damaged(target_folder, tmp_path):
    return shutil.copytree(target_folder, tmp_path / "damaged")


def edit(folder, change):
    """Apply `change` to the tensors of a single-file checkpoint."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def edit_json(path, **changes):
    value = {k: v for k, v in (json.loads(path.read_text()) | changes).items() if v is not ...}
    path.write_text(json.dumps(value))


def assert_same(ours, theirs):
    for first, second in zip(tensors_of(ours), tensors_of(theirs), strict=True):
        assert first.dtype == second.dtype and torch.equal(first, second)


def test_what_is_loaded(target, target_folder):
    config, weights = target
    assert config == TINY
    stored = {k: v for file in target_folder.glob("*.safetensors") for k, v in load_file(file).items()}
    layer, prefix = weights.layers[3], "model.layers.3"
    rows = [stored[f"{prefix}.self_attn.{name}_proj.weight"] for name in "qkv"]
    assert torch.equal(layer.qkv_NH, torch.cat(rows).float())
    assert torch.equal(layer.down.blocks, stored[f"{prefix}.mlp.experts.down_proj_blocks"])
    assert torch.equal(layer.sinks_Q, stored[f"{prefix}.self_attn.sinks"].float())
    assert torch.equal(weights.lm_head_VH, stored["lm_head.weight"].float())
    assert len(weights.layers) == 8 and layer.gate_up.shape == (8, 192, 64)


def test_dtypes(target_folder):
    _, weights = load_target(target_folder, device=torch.device("cpu"), dtype=torch.bfloat16)
    layer = weights.layers[0]
    for field in fields(layer):
        for tensor in tensors_of(getattr(layer, field.name)):
            packed = isinstance(getattr(layer, field.name), Mxfp4Tensor)
            matrix = field.name in ("qkv_NH", "o_HN", "router_EH")
            assert tensor.dtype == (torch.uint8 if packed else torch.bfloat16 if matrix else torch.float32), field.name
    assert (
        weights.embed_VH.dtype == weights.lm_head_VH.dtype == torch.bfloat16 and weights.norm_H.dtype == torch.float32
    )


def test_original_names_hold_the_same_weights(target, tmp_path):
    config, weights = load_target(make_target(TINY, tmp_path / "original", style="original"), **CPU)
    assert config == replace(TINY, eos_ids=(), pad_id=None)
    assert_same(weights, target[1])


def test_dense_experts_are_turned_to_out_by_in(target, tmp_path):
    dense = replace(TINY, expert_format="dense")
    config, weights = load_target(make_target(dense, tmp_path / "dense"), **CPU)
    assert config == dense
    for ours, packed in zip(weights.layers, target[1].layers, strict=True):
        assert torch.equal(ours.gate_up, dequantize(packed.gate_up, torch.float32))
        assert torch.equal(ours.down, dequantize(packed.down, torch.float32))
        assert ours.gate_up.is_contiguous()


def test_packed_experts_equal_those_of_transformers(target, target_folder):
    config = transformers.Mxfp4Config(dequantize=True)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(target_folder, quantization_config=config)
    for layer, ours in zip(theirs.model.layers, target[1].layers, strict=True):
        experts = layer.mlp.experts
        assert torch.equal(dequantize(ours.gate_up, torch.bfloat16), experts.gate_up_proj.mT)
        assert torch.equal(dequantize(ours.down, torch.bfloat16), experts.down_proj.mT)


@pytest.mark.parametrize("tie", [False, True])
def test_a_model_saved_by_transformers(tmp_path, tie):
    torch.manual_seed(0)
    config = transformers.GptOssConfig(
        vocab_size=300,
        hidden_size=48,  # dense experts need no blocks of 32
        intermediate_size=40,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=16,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=8,
        tie_word_embeddings=tie,
        eos_token_id=[5, 7],
        pad_token_id=0,
    )
    model = transformers.GptOssForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(tmp_path / "saved", max_shard_size="50KB")
    assert len(list((tmp_path / "saved").glob("*.safetensors"))) > 1
    ours, weights = load_target(tmp_path / "saved", **CPU)
    assert (ours.eos_ids, ours.expert_format, ours.tie_embeddings) == ((5, 7), "dense", tie)
    assert ours.rope.kind == "yarn" and ours.rope.truncate is False and ours.layer_is_sliding == (True, False, True)
    for layer, mine in zip(model.model.layers, weights.layers, strict=True):
        attention, experts = layer.self_attn, layer.mlp.experts
        biases = (attention.q_proj.bias, attention.k_proj.bias, attention.v_proj.bias)
        assert torch.equal(mine.qkv_bias_N, torch.cat(biases).float())
        assert torch.equal(mine.o_HN, attention.o_proj.weight.float())
        assert torch.equal(mine.router_EH, layer.mlp.router.weight.float())
        assert torch.equal(mine.gate_up, experts.gate_up_proj.mT.float())
        assert torch.equal(mine.down_bias, experts.down_proj_bias.float())
    assert torch.equal(weights.lm_head_VH, model.lm_head.weight.float())
    assert (weights.lm_head_VH is weights.embed_VH) == tie


@pytest.mark.parametrize("kind", sorted(EAGLE3_VARIANTS))
def test_heads_of_every_kind(kind, target, tmp_path):
    config, style = head_of_kind(kind, TINY)
    folder = make_head(config, tmp_path / "head", target=TINY, style=style)
    head = load_head(folder, *target, **CPU)
    weights = head.weights
    assert head.config == config
    stored = load_file(folder / "model.safetensors")
    prefix = "midlayer" if style == "specforge" else "layers.0"
    rows = [stored[f"{prefix}.self_attn.{name}_proj.weight"] for name in "qkv"]
    assert torch.equal(weights.qkv_NH, torch.cat(rows).float())
    halves = [stored[f"{prefix}.mlp.{name}_proj.weight"] for name in ("gate", "up")]
    assert torch.equal(weights.gate_up_IH, torch.cat(halves).float())
    assert torch.equal(weights.lm_head_VH, stored["lm_head.weight"].float())
    assert weights.embed_VH is target[1].embed_VH
    assert (weights.fc_HC is not None) == config.has_fc
    assert (weights.fc_input_norm_C is not None) == config.norm_before_fc
    assert len(weights.fc_norms_H) == (3 if config.fc_norm else 0)
    if config.draft_vocab_size == TINY.vocab_size:
        assert weights.target_ids_V is None
    else:
        assert torch.equal(weights.target_ids_V, stored["d2t"] + torch.arange(config.draft_vocab_size))


def test_own_and_shared_embedding_and_lm_head(target, tmp_path):
    full = default_head(TINY, draft_vocab_size=TINY.vocab_size)
    shared = make_head(full, tmp_path / "shared", target=TINY, own_lm_head=False)
    own = make_head(full, tmp_path / "own", target=TINY, own_embedding=True)
    weights = load_head(shared, *target, **CPU).weights
    assert weights.embed_VH is target[1].embed_VH and weights.lm_head_VH is target[1].lm_head_VH
    weights = load_head(own, *target, **CPU).weights
    assert not torch.equal(weights.embed_VH, target[1].embed_VH)
    edit(own, lambda tensors: tensors.update({"embed_tokens.weight": target[1].embed_VH.bfloat16()}))
    weights = load_head(own, *target, **CPU).weights
    assert weights.embed_VH is target[1].embed_VH  # a copy of the target's takes no memory


def test_int32_maps_fp32_weights_and_unused_tensors(target, tmp_path):
    folder = make_head(default_head(TINY), tmp_path / "head", target=TINY)
    before = load_head(folder, *target, **CPU).weights

    def change(tensors):
        tensors["d2t"] = tensors["d2t"].int()
        tensors["fc.weight"] = tensors["fc.weight"].float()
        tensors["midlayer.self_attn.rotary_emb.inv_freq"] = torch.zeros(16)

    edit(folder, change)
    assert_same(load_head(folder, *target, **CPU).weights, before)


def test_progress(target_folder):
    steps = []
    load_target(target_folder, progress=lambda *step: steps.append(step), **CPU)
    assert steps == sorted(steps) and steps[-1][0] == steps[-1][1] > 900_000


def complaint(folder, load=load_target, *args):
    with pytest.raises(UserError) as caught:
        load(folder, *args, **CPU)
    message = str(caught.value)
    assert "\n" not in message and str(folder) in message
    return message


def test_folders_that_are_no_models(tmp_path):
    assert "is not a folder" in complaint(tmp_path / "absent")
    assert "has no config.json" in complaint(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert "holds no weights" in complaint(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    assert "only pickled weights (.bin, .pt), which can run code" in complaint(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"short")
    assert "model.safetensors: not a safetensors file" in complaint(tmp_path)


def test_every_bad_shard_is_named(damaged):
    shards = sorted(damaged.glob("*.safetensors"))
    shards[0].unlink()
    data = shards[1].read_bytes()
    shards[1].write_bytes(data[:-100])
    shards[2].write_bytes(shards[2].read_bytes()[:200])
    message = complaint(damaged)
    assert f"shard {shards[0].name} is missing" in message
    assert f"{shards[1].name}: {len(data) - 100} bytes instead of {len(data)}: truncated" in message
    assert f"{shards[2].name}: truncated inside its header" in message


@pytest.mark.parametrize("garbage", [b"", b"\xff" * 64, b"\x02\0\0\0\0\0\0\0[]", b"\x05\0\0\0\0\0\0\0{oops"])
def test_garbage_in_a_shard(damaged, garbage):
    shard = sorted(damaged.glob("*.safetensors"))[0]
    shard.write_bytes(garbage)
    assert shard.name in complaint(damaged)


def test_bad_header_entries(damaged):
    shard = sorted(damaged.glob("*.safetensors"))[0]
    for entry in ({"dtype": "X9", "shape": [1], "data_offsets": [0, 1]}, {"dtype": "U8"}, 3):
        header = json.dumps({"a": entry}).encode()
        shard.write_bytes(len(header).to_bytes(8, "little") + header + b"\0")
        assert "bad header entry for a" in complaint(damaged)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_damage_to_a_header_loads_or_is_told_to_the_user(tmp_path, data):
    good = json.dumps({"a": {"dtype": "U8", "shape": [2, 2], "data_offsets": [0, 4]}, "__metadata__": {}}).encode()
    whole = len(good).to_bytes(8, "little") + good + b"1234"
    start = data.draw(st.integers(0, len(whole) - 1))
    spoiled = whole[:start] + data.draw(st.binary(max_size=4)) + whole[start + data.draw(st.integers(0, 4)) :]
    (tmp_path / "model.safetensors").write_bytes(spoiled)
    try:
        stored = read_headers(tmp_path)
    except UserError as error:
        assert "model.safetensors" in str(error)
        return
    assert sum(tensor.num_bytes for tensor in stored.values()) <= 4


def test_an_index_may_not_lead_out_of_the_folder(damaged):
    index = damaged / "model.safetensors.index.json"
    placed = json.loads(index.read_text())["weight_map"]
    edit_json(index, weight_map=placed | {"lm_head.weight": "../elsewhere.safetensors"})
    assert "'../elsewhere.safetensors', which is not a plain file name" in complaint(damaged)
    edit_json(index, weight_map=placed | {"lm_head.weight": placed["model.embed_tokens.weight"]})
    assert "places tensors where they are not: lm_head.weight" in complaint(damaged)
    index.write_text("[1]")
    assert "holds no JSON object" in complaint(damaged)


def test_one_error_names_every_tensor_that_differs(tmp_path):
    folder = make_target(TINY, tmp_path / "model")

    def change(tensors):
        del tensors["model.layers.2.self_attn.sinks"], tensors["model.layers.5.mlp.router.bias"]
        tensors["model.norm.weight"] = torch.ones(65)
        tensors["model.layers.0.mlp.experts.down_proj_scales"] = torch.ones(8, 64, 3)
        tensors["model.layers.8.input_layernorm.weight"] = torch.ones(64)

    edit(folder, change)
    message = complaint(folder)
    assert "missing: model.layers.2.self_attn.sinks, model.layers.5.mlp.router.bias;" in message
    assert "wrong shape: model.norm.weight is [65] instead of [64];" in message
    assert "wrong dtype: model.layers.0.mlp.experts.down_proj_scales is F32 instead of U8;" in message
    assert "not known: model.layers.8.input_layernorm.weight" in message


def test_a_head_where_a_model_belongs_and_the_reverse(target, target_folder, damaged, tmp_path):
    head = make_head(default_head(TINY), tmp_path / "head", target=TINY)
    assert "is that of an EAGLE-3 head; give the model itself" in complaint(head)
    message = complaint(target_folder, load_head, *target)
    assert "is that of a whole gpt-oss model" in message and message.endswith("--draft wants an EAGLE-3 head")
    edit_json(damaged / "config.json", architectures=["LlamaForCausalLMEagle3"])
    assert "EAGLE-3 head; give the model itself" in complaint(damaged)


@pytest.mark.parametrize(
    "changes",
    [
        {"architectures": ["LlamaForCausalLM"]},  # as in SafeAILab's own
        {"draft_vocab_size": ..., "eagle_config": ...},
        {"architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3"},
    ],
    ids=str,
)
def test_what_says_that_a_head_is_one_of_eagle3(tmp_path, changes):
    folder = make_head(default_head(TINY), tmp_path / "head", target=TINY)
    edit_json(folder / "config.json", **changes)
    assert find_kind(folder) == "eagle3"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"architectures": ["DFlashDraftModel"], "model_type": "qwen3"}, "['DFlashDraftModel'], model_type 'qwen3'"),
        ({"speculators_model_type": "peagle", "draft_vocab_size": 256}, "speculators_model_type 'peagle'"),
        ({}, "it names no architecture"),
    ],
    ids=str,
)
def test_a_head_of_no_known_kind(target, tmp_path, config, said):
    (tmp_path / "config.json").write_text(json.dumps(config))
    message = complaint(tmp_path, load_head, *target)
    assert "of no known kind of draft head" in message and said in message
    assert message.endswith("--draft wants an EAGLE-3 head")


@pytest.mark.parametrize("changes", [{"hidden_size": 96}, {"vocab_size": 600}])
def test_a_head_of_another_target(target, tmp_path, changes):
    other = replace(TINY, **changes)
    head = make_head(default_head(other), tmp_path / "head", target=other)
    assert "this head was made for another target" in complaint(head, load_head, *target)


def test_draft_maps_that_cannot_be(target, tmp_path):
    folder = make_head(default_head(TINY), tmp_path / "head", target=TINY)
    offsets = load_file(folder / "model.safetensors")["d2t"]
    edit(folder, lambda tensors: tensors.update(d2t=offsets + torch.arange(256)))  # ids instead of offsets
    assert "holds ids where offsets belong" in complaint(folder, load_head, *target)
    edit(folder, lambda tensors: tensors.update(d2t=-torch.arange(256)))
    assert "d2t leads to 1 distinct target ids from 0 to 0 instead of 256" in complaint(folder, load_head, *target)
    edit(folder, lambda tensors: tensors.pop("d2t"))
    assert "d2t is missing" in complaint(folder, load_head, *target)


def test_tensors_missing_from_a_head(target, tmp_path):
    folder = make_head(default_head(TINY), tmp_path / "head", target=TINY)

    def change(tensors):
        del tensors["lm_head.weight"], tensors["midlayer.hidden_norm.weight"]
        tensors["midlayer.self_attn.q_norm.weight"] = torch.ones(32)

    edit(folder, change)
    message = complaint(folder, load_head, *target)
    assert "missing: midlayer.hidden_norm.weight, lm_head.weight;" in message
    assert "not known: midlayer.self_attn.q_norm.weight" in message
