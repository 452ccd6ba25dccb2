"""The bytes of models and heads in the tables, against transformers' own networks, published totals and the files.

Networks are built on the meta device from the public shapes, so nothing is allocated.
"""

import json
from fnmatch import fnmatch
from math import prod

import pytest
import torch
import transformers

from eyas.base.bundled import DEMO, OWN_HEAD
from eyas.recipes.knowledge.tables import DATA, knowledge, read
from eyas.recipes.records import Model

BF16, NVFP4, MXFP4 = 2, 9 / 16, 17 / 32  # bytes of a weight; blocks of 16 and 32 share one byte of scale
GPT_OSS = {"hidden_size": 2880, "intermediate_size": 2880, "vocab_size": 201088, "num_experts_per_tok": 4}
QWEN = {"vocab_size": 151936, "head_dim": 128, "tie_word_embeddings": False}
QWEN_MOE = {**QWEN, "num_key_value_heads": 4, "num_experts": 128, "num_experts_per_tok": 8}
LLAMA = {"vocab_size": 128256, "num_key_value_heads": 8, "max_position_embeddings": 131072}
CONFIGS = {
    "gpt-oss-120b": lambda: transformers.GptOssConfig(num_hidden_layers=36, num_local_experts=128, **GPT_OSS),
    "gpt-oss-20b": lambda: transformers.GptOssConfig(num_hidden_layers=24, num_local_experts=32, **GPT_OSS),
    "qwen3-235b-a22b-fp4": lambda: transformers.Qwen3MoeConfig(
        num_hidden_layers=94, hidden_size=4096, moe_intermediate_size=1536, num_attention_heads=64, **QWEN_MOE
    ),
    "qwen3-coder-30b-a3b": lambda: transformers.Qwen3MoeConfig(
        num_hidden_layers=48, hidden_size=2048, moe_intermediate_size=768, num_attention_heads=32, **QWEN_MOE
    ),
    "qwen3-32b": lambda: transformers.Qwen3Config(
        num_hidden_layers=64, hidden_size=5120, intermediate_size=25600, num_attention_heads=64,
        num_key_value_heads=8, **QWEN,
    ),
    "llama-3.3-70b-fp4": lambda: transformers.LlamaConfig(
        num_hidden_layers=80, hidden_size=8192, intermediate_size=28672, num_attention_heads=64, **LLAMA
    ),
    "llama-3.1-8b-fp4": lambda: transformers.LlamaConfig(
        num_hidden_layers=32, hidden_size=4096, intermediate_size=14336, num_attention_heads=32, **LLAMA
    ),
    "demo": lambda: transformers.GptOssConfig(**json.loads((DEMO / "config.json").read_text())),
}  # fmt: skip
PUBLISHED_TOTALS = {  # metadata.total_size of model.safetensors.index.json
    "gpt-oss-120b": 65_248_815_744,
    "gpt-oss-20b": 13_761_264_768,
    "qwen3-coder-30b-a3b": 61_064_245_248,
    "qwen3-32b": 65_524_246_528,
}
IN_BF16 = ("*norm*", "*embed*", "lm_head*", "*.router.*", "*.mlp.gate.*", "*bias*", "*sinks")  # whatever the format


def parameters(config):
    """name -> number of parameters, of transformers' network."""
    with torch.device("meta"):
        network = transformers.AutoModelForCausalLM.from_config(config)
    return {name: parameter.numel() for name, parameter in network.named_parameters()}


def bytes_of(name, numel, model):
    if any(fnmatch(name, pattern) for pattern in IN_BF16):
        return BF16 * numel
    if model.weight_format == "mxfp4":  # of gpt-oss, whose attention stays in bf16
        return numel * (MXFP4 if ".experts." in name else BF16)
    return numel * {"nvfp4": NVFP4, "bf16": BF16}[model.weight_format]


def file_tensors(path):
    """name -> (shape, bytes) of a safetensors file, from its header."""
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    header.pop("__metadata__", None)
    return {
        name: (entry["shape"], entry["data_offsets"][1] - entry["data_offsets"][0]) for name, entry in header.items()
    }


@pytest.mark.parametrize("name", CONFIGS)
def test_bytes_of_models(name):
    model, config = knowledge().models[name], CONFIGS[name]()
    numels = parameters(config)
    sizes = {parameter: bytes_of(parameter, numel, model) for parameter, numel in numels.items()}
    experts = sum(size for parameter, size in sizes.items() if ".experts." in parameter)
    embedding = sizes["model.embed_tokens.weight"]
    assert model.head_bytes == sizes["lm_head.weight"]
    assert model.expert_bytes * model.num_experts * model.num_expert_layers == experts
    assert model.dense_bytes == sum(sizes.values()) - experts - embedding - model.head_bytes
    assert model.total_bytes == sum(sizes.values()) == PUBLISHED_TOTALS.get(name, sum(sizes.values()))

    expert_params = sum(numel for parameter, numel in numels.items() if ".experts." in parameter)
    chosen = expert_params * model.experts_per_token // model.num_experts if model.num_experts else 0
    assert model.active_params == sum(numels.values()) - numels["model.embed_tokens.weight"] - expert_params + chosen


@pytest.mark.parametrize("name", CONFIGS)
def test_shapes_of_models(name):
    model, config = knowledge().models[name], CONFIGS[name]()
    assert (model.num_layers, model.hidden_size, model.vocab_size) == (
        config.num_hidden_layers,
        config.hidden_size,
        config.vocab_size,
    )
    assert (model.num_attention_heads, model.num_kv_heads) == (config.num_attention_heads, config.num_key_value_heads)
    assert model.head_dim == config.head_dim
    types = getattr(config, "layer_types", None) or []
    assert model.num_sliding_layers == types.count("sliding_attention")
    assert model.window == (config.sliding_window if model.num_sliding_layers else 0)


def test_every_model_is_checked():
    """Those that stand beside others: test_sidecar_shapes.py."""
    assert set(CONFIGS) == set(read(DATA / "models.yaml", Model))


def test_bytes_of_the_demo_are_those_of_its_files():
    tensors = file_tensors(DEMO / "model.safetensors")
    assert knowledge().models["demo"].total_bytes == sum(size for _, size in tensors.values())
    head, tensors = knowledge().heads["demo-head"], file_tensors(DEMO / OWN_HEAD / "model.safetensors")
    assert head.total_bytes == sum(size for _, size in tensors.values())
    assert head.fusion_bytes == tensors["fc.weight"][1]
    maps = tensors["d2t"][1] + tensors["t2d"][1]
    assert head.step_bytes == head.total_bytes - head.fusion_bytes - maps
    assert head.kv_bytes_per_token == 2 * 2 * tensors["midlayer.self_attn.k_proj.weight"][0][0]


@pytest.mark.parametrize(
    ("name", "all_layers", "full_layers"),
    [
        ("gpt-oss-120b", 73_728, 36_864),
        ("gpt-oss-20b", 49_152, 24_576),
        ("qwen3-235b-a22b-fp4", 192_512, 192_512),
        ("llama-3.3-70b-fp4", 327_680, 327_680),
        ("llama-3.1-8b-fp4", 131_072, 131_072),
    ],
)
def test_kv_bytes_per_token(name, all_layers, full_layers):
    model = knowledge().models[name]
    layer = 2 * model.num_kv_heads * model.head_dim * 2
    assert model.num_layers * layer == all_layers
    assert (model.num_layers - model.num_sliding_layers) * layer == full_layers


def gpt_oss_head(ffn=17280, vocabulary=32000, *, taps=3, pre_norm=0, embedding=False, lm_head=True):
    """(total, step, fusion) bytes of an EAGLE-3 head for gpt-oss, from the shapes of its tensors."""
    hidden, heads, kv_heads, width = 2880, 64, 8, 64
    fusion = [(hidden, taps * hidden), (pre_norm,)] if taps > 1 else []
    layer = [(heads * width, 2 * hidden), (kv_heads * width, 2 * hidden), (kv_heads * width, 2 * hidden)]
    layer += [(hidden, heads * width), (ffn, hidden), (ffn, hidden), (hidden, ffn), *[(hidden,)] * 4]
    logits = (vocabulary, hidden)
    stored = [*fusion, *layer, *[logits] * lm_head, *[(201088, hidden)] * embedding]
    maps = 8 * vocabulary + 201088 if vocabulary != 201088 else 0  # d2t int64, t2d bool
    return (
        2 * sum(map(prod, stored)) + maps,
        2 * sum(map(prod, [*layer, logits])),
        2 * sum(map(prod, fusion)),
    )


@pytest.mark.parametrize(
    ("name", "shapes", "published"),
    [
        ("lmsys-120b", {"embedding": True}, 1.77e9),
        ("lmsys-20b", {"embedding": True}, 1.77e9),
        ("nvidia-v1", {"vocabulary": 201088, "lm_head": False}, 411 * 2**20),
        ("nvidia-long-context", {"vocabulary": 201088}, 1.59e9),
        ("nvidia-short-context", {"vocabulary": 201088, "taps": 1}, 1.6e9),
        ("nvidia-throughput", {"vocabulary": 201088, "taps": 1}, 1.6e9),
        ("nvidia-v3", {"ffn": 16384, "vocabulary": 201088, "pre_norm": 8640}, 1.6e9),
        ("specdrift-120b", {"embedding": True, "pre_norm": 8640}, None),
        ("specdrift-20b", {"embedding": True, "pre_norm": 8640}, None),
    ],
)
def test_bytes_of_heads(name, shapes, published):
    head = knowledge().heads[name]
    assert (head.total_bytes, head.step_bytes, head.fusion_bytes) == gpt_oss_head(**shapes)
    if published is not None:  # rounded to 0.1 B parameters at worst
        assert head.total_bytes == pytest.approx(published, rel=0.04)


@pytest.mark.parametrize(("name", "original"), [("ggml-120b", "nvidia-v3"), ("ggml-20b", "redhat-20b")])
def test_bytes_of_converted_heads(name, original):
    head, source = knowledge().heads[name], knowledge().heads[original]
    for field in ("total_bytes", "step_bytes", "fusion_bytes"):
        assert getattr(head, field) == getattr(source, field) / 2 * 34 / 32
    assert head.taps == source.taps


def test_a_drafting_pass_reads_what_the_arithmetic_of_break_even_uses():
    heads = knowledge().heads
    assert heads["lmsys-120b"].step_bytes == pytest.approx(0.565e9, rel=0.002)
    assert heads["nvidia-v3"].step_bytes == pytest.approx(1.524e9, rel=0.002)


def test_a_draft_model_reads_all_but_its_embedding():
    model, head = knowledge().models["llama-3.1-8b-fp4"], knowledge().heads["llama-3.1-8b-fp4"]
    assert head.total_bytes == model.total_bytes
    assert head.step_bytes == model.dense_bytes + model.head_bytes
    assert head.kv_bytes_per_token == 2 * model.num_layers * model.num_kv_heads * model.head_dim * 2
