"""Checkpoints as GGUF, read back with the gguf library: every number, every key, and what is refused."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from gguf import GGUFReader, dequantize
from gguf.constants import GGMLQuantizationType as Type
from safetensors.torch import load_file
from tests.model.support.random_gguf import LETTERS, TINY, make_random, write_tokenizer

from eyas.base.bundled import DEMO, OWN_HEAD
from eyas.base.errors import UserError
from eyas.base.harmony.rendering import Message, developer_message, render_conversation, system_message
from eyas.base.tokens.tokenizer import Tokenizer
from eyas.cli import main
from eyas.model.checkpoints.loader import load_head, load_target
from eyas.model.config import RopeConfig
from eyas.model.gguf.export import WEIGHTS, export_head, export_target
from eyas.model.mxfp4 import Mxfp4Tensor
from eyas.model.mxfp4 import dequantize as our_dequantize

CPU = torch.device("cpu")


def tensors(path):
    """{name: fp32 (or int64) array}, and {name: type}, by the library's own reading and unpacking."""
    found = GGUFReader(path).tensors
    values = {}
    for tensor in found:
        shape = [int(n) for n in reversed(tensor.shape)]
        data = tensor.data if tensor.tensor_type == Type.I64 else dequantize(tensor.data, tensor.tensor_type)
        values[tensor.name] = np.array(data).reshape(shape)
    return values, {tensor.name: tensor.tensor_type for tensor in found}


def keys(path):
    return {name: field.contents() for name, field in GGUFReader(path).fields.items()}


def expected_target(folder):
    """{GGUF name: fp32} from the weights as our forward pass gets them."""
    config, weights = load_target(folder, device=CPU, dtype=torch.float32)
    rows = [config.num_heads * config.head_dim] + 2 * [config.num_kv_heads * config.head_dim]
    expected = {
        "token_embd.weight": weights.embed_VH, "output_norm.weight": weights.norm_H, "output.weight": weights.lm_head_VH
    }  # fmt: skip
    for i, layer in enumerate(weights.layers):
        one = {
            "attn_norm.weight": layer.input_norm_H,
            "attn_output.weight": layer.o_HN,
            "attn_output.bias": layer.o_bias_H,
            "attn_sinks.weight": layer.sinks_Q,
            "post_attention_norm.weight": layer.post_norm_H,
            "ffn_gate_inp.weight": layer.router_EH,
            "ffn_gate_inp.bias": layer.router_bias_E,
            "ffn_gate_exps.bias": layer.gate_up_bias[:, 0::2],
            "ffn_up_exps.bias": layer.gate_up_bias[:, 1::2],
            "ffn_down_exps.bias": layer.down_bias,
        }
        for letter, weight, bias in zip("qkv", layer.qkv_NH.split(rows), layer.qkv_bias_N.split(rows), strict=True):
            one |= {f"attn_{letter}.weight": weight, f"attn_{letter}.bias": bias}
        gate_up, down = (
            our_dequantize(stack, torch.float32) if isinstance(stack, Mxfp4Tensor) else stack
            for stack in (layer.gate_up, layer.down)
        )
        one |= {"ffn_gate_exps.weight": gate_up[:, 0::2], "ffn_up_exps.weight": gate_up[:, 1::2]}
        one |= {"ffn_down_exps.weight": down}
        expected |= {f"blk.{i}.{name}": value for name, value in one.items()}
    return expected


def assert_equal(values, expected):
    assert values.keys() == expected.keys()
    for name, value in expected.items():
        assert np.array_equal(values[name], value.numpy()), name


@pytest.mark.parametrize("weights", WEIGHTS)
def test_every_number_of_the_demo_model_arrives(tmp_path, weights):
    """bf16 and MXFP4 lose nothing in any of the three forms."""
    notes = export_target(DEMO, tmp_path / "model.gguf", weights=weights, name="demo")
    values, types = tensors(tmp_path / "model.gguf")
    assert_equal(values, expected_target(DEMO))
    experts = {types[name] for name in types if re.search(r"_exps\.weight", name)}
    matrices = {types["output.weight"], types["blk.0.attn_q.weight"]}
    assert (experts, matrices) == {
        "stored": ({Type.MXFP4}, {Type.BF16}),
        "bf16": ({Type.BF16}, {Type.BF16}),
        "f32": ({Type.F32}, {Type.F32}),
    }[weights]
    # llama.cpp takes these in no other type
    assert {types[name] for name in types if "norm" in name or "bias" in name or "_inp" in name} == {Type.F32}
    assert len(notes) == 1 and "YaRN" in notes[0]


def test_packed_experts_are_the_checkpoints_bytes_in_another_order(tmp_path):
    export_target(DEMO, tmp_path / "model.gguf", name="demo")
    stored = load_file(DEMO / "model.safetensors")
    prefix = "model.layers.3.mlp.experts.down_proj_"
    packed = next(t for t in GGUFReader(tmp_path / "model.gguf").tensors if t.name == "blk.3.ffn_down_exps.weight")
    blocks = np.array(packed.data).reshape(*stored[prefix + "scales"].shape, 17)
    assert np.array_equal(blocks[..., 0], stored[prefix + "scales"])
    theirs = stored[prefix + "blocks"].numpy()
    for element in range(32):
        ours = blocks[..., 1 + element % 16] >> 4 * (element // 16) & 0xF
        assert np.array_equal(ours, theirs[..., element // 2] >> 4 * (element % 2) & 0xF), element


@pytest.mark.parametrize(
    ("changes", "style"),
    [
        ({}, "original"),
        ({"expert_format": "dense"}, "hf"),
        ({"tie_embeddings": True, "layer_is_sliding": (True,) * 3 + (False,)}, "hf"),
        ({"rope": RopeConfig(theta=9000.0, kind="linear", factor=2.0)}, "hf"),
    ],
    ids=["original", "dense", "tied", "linear"],
)
def test_every_form_of_checkpoint(tmp_path, changes, style):
    config = replace(TINY, **changes)
    folder = make_random(config, tmp_path / "model", style=style)
    for weights in WEIGHTS:
        export_target(folder, tmp_path / "model.gguf", weights=weights, name="tiny")
        values, types = tensors(tmp_path / "model.gguf")
        assert_equal(values, expected_target(folder))
        packed = weights == "stored" and config.expert_format == "mxfp4"
        assert (types["blk.0.ffn_up_exps.weight"] == Type.MXFP4) == packed
    found = keys(tmp_path / "model.gguf")
    pattern = [int(sliding) for sliding in config.layer_is_sliding]
    alternates = pattern == [1, 0, 1, 0]
    assert found.get("gpt-oss.attention.sliding_window_pattern") == (None if alternates else pattern)
    assert found.get("gpt-oss.rope.scaling.type") == (
        "yarn" if style == "original" or not changes.get("rope") else "linear"
    )


def test_keys_of_the_demo_model(tmp_path):
    export_target(DEMO, tmp_path / "model.gguf", name="demo")
    found = {name.removeprefix("gpt-oss."): value for name, value in keys(tmp_path / "model.gguf").items()}
    wanted = {
        "general.architecture": "gpt-oss", "general.file_type": 38, "block_count": 8, "context_length": 4096,
        "embedding_length": 256, "attention.head_count": 8, "attention.head_count_kv": 2, "attention.key_length": 64,
        "attention.sliding_window": 128, "expert_count": 16, "expert_used_count": 4, "expert_feed_forward_length": 128,
        "rope.freq_base": 150000.0, "rope.scaling.type": "yarn", "rope.scaling.factor": 32.0,
        "rope.scaling.original_context_length": 4096, "rope.scaling.yarn_beta_fast": 32.0,
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-4o", "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.bos_token_id": 4080, "tokenizer.ggml.eos_token_id": 4084,
        "tokenizer.ggml.padding_token_id": 4081,
        "tokenizer.chat_template": (DEMO / "chat_template.jinja").read_text(),
    }  # fmt: skip
    assert {name: found[name] for name in wanted} == wanted
    raw = json.loads((DEMO / "tokenizer.json").read_text())
    assert found["tokenizer.ggml.merges"] == [" ".join(merge) for merge in raw["model"]["merges"]]
    tokens, kinds = found["tokenizer.ggml.tokens"], found["tokenizer.ggml.token_type"]
    assert all(tokens[i] == text and kinds[i] == 1 for text, i in raw["model"]["vocab"].items())
    assert all(tokens[t["id"]] == t["content"] and kinds[t["id"]] == 3 for t in raw["added_tokens"])
    assert not any(re.search(r"\d\d", token) for token in raw["model"]["vocab"]), "digits would be split otherwise"


def head_values(folder, target_folder):
    """{GGUF name: value} of a head; pairs (i, i + D/2) of query and key rows as neighbours, as llama.cpp turns them."""
    config, weights = load_target(target_folder, device=CPU, dtype=torch.float32)
    loaded = load_head(folder, config, weights, device=CPU, dtype=torch.float32)
    head, own = loaded.config, loaded.weights
    rows = [head.num_heads * head.head_dim] + 2 * [head.num_kv_heads * head.head_dim]
    half = torch.arange(head.head_dim // 2)
    order = torch.stack((half, half + head.head_dim // 2), dim=1).flatten()
    q, k, v = own.qkv_NH.split(rows)
    q, k = (matrix.unflatten(0, (-1, head.head_dim))[:, order].flatten(0, 1) for matrix in (q, k))
    gate, up = own.gate_up_IH.chunk(2)
    values = {
        "fc.weight": own.fc_HC, "enc.output_norm.weight": own.fc_input_norm_C,
        "blk.0.attn_norm.weight": own.input_norm_H,
        "blk.0.attn_norm_2.weight": own.hidden_norm_H, "blk.0.attn_q.weight": q, "blk.0.attn_k.weight": k,
        "blk.0.attn_v.weight": v, "blk.0.attn_output.weight": own.o_HN, "blk.0.ffn_norm.weight": own.post_norm_H,
        "blk.0.ffn_gate.weight": gate, "blk.0.ffn_up.weight": up, "blk.0.ffn_down.weight": own.down_HI,
        "output_norm.weight": own.norm_H, "d2t": own.target_ids_V,
        "token_embd.weight": None if own.embed_VH is weights.embed_VH else own.embed_VH,
        "output.weight": None if own.lm_head_VH is weights.lm_head_VH else own.lm_head_VH,
    }  # fmt: skip
    return head, {name: value for name, value in values.items() if value is not None}


def test_head_of_the_demo_model(tmp_path):
    export_head(DEMO / OWN_HEAD, tmp_path / "head.gguf", target_folder=DEMO, name="demo")
    head, expected = head_values(DEMO / OWN_HEAD, DEMO)
    values, types = tensors(tmp_path / "head.gguf")
    assert_equal(values, expected)
    assert types["d2t"] == Type.I64 and types["fc.weight"] == Type.BF16 and "token_embd.weight" not in types
    found = keys(tmp_path / "head.gguf")
    assert found["general.architecture"] == "eagle3" and found["eagle3.target_layers"] == [2, 4, 5] == list(head.taps)
    assert found["eagle3.norm_before_fc"] is False and found["tokenizer.ggml.pre"] == "gpt-4o"


@pytest.mark.parametrize(
    ("kind", "own", "wanted"),
    [
        ("full-vocab", {"own_lm_head": False}, {"target_layers": [1, 2, 2]}),
        ("norm-before-fc", {"own_embedding": True}, {"target_layers": [2, 3, 4], "norm_before_fc": True}),
        ("speculators", {}, {"norm_before_residual": True, "norm_before_fc": True}),
    ],
)
def test_published_kinds_of_head(tmp_path, kind, own, wanted):
    folder = make_random(TINY, tmp_path / "model", head=kind, **own)
    export_head(folder / OWN_HEAD, tmp_path / "head.gguf", target_folder=folder, weights="f32", name=kind)
    head, expected = head_values(folder / OWN_HEAD, folder)
    if head.rope.kind == "llama3":
        config = transformers.LlamaConfig(
            head_dim=head.head_dim,
            rope_parameters={
                "rope_type": "llama3", "rope_theta": head.rope.theta, "factor": head.rope.factor,
                "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
            },
        )  # fmt: skip
        theirs, _ = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS["llama3"](config, CPU)
        plain = head.rope.theta ** -(torch.arange(0, head.head_dim, 2) / head.head_dim)
        factors = tensors(tmp_path / "head.gguf")[0]["rope_freqs.weight"]
        assert np.allclose(factors, plain / theirs, rtol=1e-5) and factors[-1] == 8 and factors[0] == 1
        expected["rope_freqs.weight"] = torch.from_numpy(factors)
    assert_equal(tensors(tmp_path / "head.gguf")[0], expected)
    found = keys(tmp_path / "head.gguf")
    assert {name: found[f"eagle3.{name}"] for name in wanted} == wanted


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("final-norm", "does not combine exactly 3 hidden states"),
        ("fc-norm", r"fc_norm \(a norm for each hidden state\); norm_output"),
    ],
)
def test_heads_that_llama_cpp_cannot_express(tmp_path, kind, message):
    folder = make_random(TINY, tmp_path / "model", head=kind)
    with pytest.raises(UserError, match=f"llama.cpp cannot express.*{message}"):
        export_head(folder / OWN_HEAD, tmp_path / "head.gguf", target_folder=folder, name=kind)
    assert not list(tmp_path.glob("head*"))


def test_models_that_llama_cpp_cannot_express(tmp_path):
    folder = make_random(replace(TINY, swiglu_limit=5.0), tmp_path / "limit")
    with pytest.raises(UserError, match="swiglu_limit 5 "):
        export_target(folder, tmp_path / "model.gguf", name="limit")
    folder = make_random(replace(TINY, rope=RopeConfig(theta=1e4, kind="llama3", factor=8.0)), tmp_path / "rope")
    with pytest.raises(UserError, match="llama3 rope scaling"):
        export_target(folder, tmp_path / "model.gguf", name="rope")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw["pre_tokenizer"]["pretokenizers"][0]["pattern"].update(Regex=r"\d"), "no name for"),
        (lambda raw: raw["model"].update(type="Unigram"), "no plain byte-level BPE"),
        (lambda raw: raw.update(normalizer={"type": "NFC"}), "no plain byte-level BPE"),
        (lambda raw: raw["model"]["vocab"].update(far=512), "token id 512, but the model's vocabulary ends at 512"),
        (None, "has no tokenizer.json"),
    ],
)
def test_tokenizers_that_gguf_cannot_express(tmp_path, change, message):
    folder = make_random(TINY, tmp_path / "model")
    path = folder / "tokenizer.json"
    raw = json.loads(path.read_text())
    path.unlink()
    if change is not None:
        change(raw)
        path.write_text(json.dumps(raw))
    with pytest.raises(UserError, match=message):
        export_target(folder, tmp_path / "model.gguf", name="tiny")


def test_vocabulary_is_padded_and_knows_the_published_rule(tmp_path):
    folder = make_random(TINY, tmp_path / "model")
    write_tokenizer(folder, rule="o200k")
    export_target(folder, tmp_path / "model.gguf", name="tiny")
    found = keys(tmp_path / "model.gguf")
    assert found["tokenizer.ggml.pre"] == "gpt-4o" and len(found["tokenizer.ggml.tokens"]) == 512
    assert found["tokenizer.ggml.tokens"][400] == "[PAD400]" and found["tokenizer.ggml.token_type"][400] == 5
    assert found["tokenizer.ggml.merges"] == [f"{LETTERS[0]} {LETTERS[1]}"]


def test_a_template_in_the_tokenizers_settings(tmp_path):
    folder = make_random(TINY, tmp_path / "model")
    notes = export_target(folder, tmp_path / "model.gguf", name="tiny")
    assert any("no chat template" in note for note in notes)
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    assert not any("template" in note for note in export_target(folder, tmp_path / "model.gguf", name="tiny"))
    assert keys(tmp_path / "model.gguf")["tokenizer.chat_template"] == "{{ messages }}"


@pytest.mark.parametrize("effort", [None, "low"])
def test_the_demo_models_template_is_our_harmony(effort):
    import datetime

    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(DEMO / "tokenizer.json"))
    texts = [("system", "Answer politely."), ("user", "Hello!"), ("assistant", "Hi."), ("user", "Who are you?")]
    ids = tokenizer.apply_chat_template(
        [{"role": role, "content": text} for role, text in texts],
        chat_template=(DEMO / "chat_template.jinja").read_text(),
        add_generation_prompt=True,
        return_dict=False,
        **({} if effort is None else {"reasoning_effort": effort}),
    )
    messages = [
        system_message(date=datetime.date.today().isoformat(), effort=effort or "medium"),
        developer_message("Answer politely."),
        Message(role="user", content="Hello!"),
        Message(role="assistant", content="Hi.", channel="final"),
        Message(role="user", content="Who are you?"),
    ]
    assert ids == render_conversation(Tokenizer.load(DEMO), messages)


def test_the_command(tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["export", "gguf", "demo", "--out", str(out), "--weights", "bf16", "--json"]) == 0
    *_, last = capsys.readouterr().out.splitlines()
    assert json.loads(last)["files"] == [str(out / "head.gguf"), str(out / "model.gguf")]
    before = (out / "model.gguf").read_bytes()
    assert main(["export", "gguf", "demo", "--out", str(out), "--weights", "bf16", "--draft", "none"]) == 0
    assert (out / "model.gguf").read_bytes() == before, "the same again, in place of the first"
    assert main(["export", "gguf", "demo", "--out", str(tmp_path / "head"), "--head-only"]) == 0
    assert [path.name for path in (tmp_path / "head").iterdir()] == ["head.gguf"]


def test_what_the_command_refuses(tmp_path, capsys, monkeypatch):
    (tmp_path / "file").write_text("")
    assert main(["export", "gguf", "demo", "--out", str(tmp_path / "file" / "out")]) == 1
    assert "cannot be written (Not a directory)" in capsys.readouterr().err
    folder = make_random(TINY, tmp_path / "model")
    assert main(["export", "gguf", str(folder), "--out", str(tmp_path / "out"), "--head-only"]) == 1
    assert "has no head of its own; name one with --draft" in capsys.readouterr().err
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000})())
    assert main(["export", "gguf", "demo", "--out", str(tmp_path / "out")]) == 1
    assert "but the disk has 0.0 GB free" in capsys.readouterr().err
    assert not any((tmp_path / "out").iterdir())
