"""The bytes of models that stand beside others, against transformers' networks of the public shapes."""

import pytest
import torch
import transformers

from eyas.recipes.knowledge.tables import DATA, knowledge, read
from eyas.recipes.records import Model

# config.json of the repositories, as far as transformers' defaults differ
QWEN_VL = {
    "text_config": {
        "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36, "num_attention_heads": 16,
        "num_key_value_heads": 2, "vocab_size": 151936, "max_position_embeddings": 128000, "tie_word_embeddings": True,
    },
    "vision_config": {
        "depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "out_hidden_size": 2048,
        "hidden_act": "silu",
    },
    "tie_word_embeddings": True,
}  # fmt: skip
GEMMA = {
    "text_config": {
        "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "num_attention_heads": 8,
        "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262208, "sliding_window": 1024,
    },
    "vision_config": {
        "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16,
        "image_size": 896, "patch_size": 14, "vision_use_head": False,
    },
    "mm_tokens_per_image": 256,
}  # fmt: skip
QWEN_EMBEDDING = {
    "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151669,
}  # fmt: skip
NOMIC = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
    "vocab_size": 30528, "type_vocab_size": 2,
}  # fmt: skip
NETWORKS = {
    "qwen2.5-vl-3b": lambda: transformers.AutoModelForImageTextToText.from_config(
        transformers.Qwen2_5_VLConfig(**QWEN_VL)
    ),
    "gemma-3-4b": lambda: transformers.AutoModelForImageTextToText.from_config(transformers.Gemma3Config(**GEMMA)),
    "qwen3-embedding-0.6b": lambda: transformers.AutoModel.from_config(transformers.Qwen3Config(**QWEN_EMBEDDING)),
    "nomic-embed-text-v1.5": lambda: transformers.AutoModel.from_config(
        transformers.NomicBertConfig(**NOMIC), add_pooling_layer=False
    ),
}
WIDTH = {"bf16": 2, "fp32": 4}  # bytes of a weight


@pytest.mark.parametrize("name", NETWORKS)
def test_bytes_of_sidecars(name):
    model = knowledge().models[name]
    with torch.device("meta"):
        network = NETWORKS[name]()
    numels = {name: parameter.numel() for name, parameter in network.named_parameters()}  # a tied one once
    seen = sum(numel for name, numel in numels.items() if "visual" in name or "vision" in name or "multi_modal" in name)
    words = ("embed_tokens", "word_embeddings", "token_type_embeddings")
    embedding = sum(numel for name, numel in numels.items() if any(word in name for word in words))
    width = WIDTH[model.weight_format]
    assert model.total_bytes == width * sum(numels.values())
    assert model.dense_bytes == width * (sum(numels.values()) - seen - embedding)
    assert model.head_bytes in (0, width * embedding)
    assert model.active_params * width == model.dense_bytes + model.head_bytes
    projector = model.projector_bytes.get("llama.cpp", 0)
    assert bool(projector) == bool(seen) and projector <= 1.02 * width * seen
    kept = model.repo_bytes["llama.cpp"] * 8 / (sum(numels.values()) - seen)
    assert 4.5 < kept < (5.2 if seen else 16.1)  # bits a weight: Q4_K_M; Q8_0 or F16


@pytest.mark.parametrize("name", NETWORKS)
def test_shapes_of_sidecars(name):
    model = knowledge().models[name]
    with torch.device("meta"):
        config = NETWORKS[name]().config
    config = config.get_text_config()
    assert (model.num_layers, model.hidden_size, model.vocab_size) == (
        config.num_hidden_layers,
        config.hidden_size,
        config.vocab_size,
    )
    heads = config.num_attention_heads
    assert (model.num_attention_heads, model.num_kv_heads) == (heads, getattr(config, "num_key_value_heads", heads))
    assert model.head_dim == (getattr(config, "head_dim", None) or config.hidden_size // heads)
    types = getattr(config, "layer_types", None) or []
    assert model.num_sliding_layers == types.count("sliding_attention")
    assert model.window == (config.sliding_window if model.num_sliding_layers else 0)


def test_every_sidecar_is_checked_and_can_be_served():
    sidecars, known = read(DATA / "sidecars.yaml", Model), knowledge()
    assert set(NETWORKS) == set(sidecars)
    for model in sidecars.values():
        assert model.roles[0] in ("vision", "embeddings")
        assert (model.pooling is not None) == ("embeddings" in model.roles)
        assert len(model.files["llama.cpp"]) == (2 if "vision" in model.roles else 1)
        for engine in ("llama.cpp", "ollama"):
            assert model.name in known.engines[engine].models
            assert model.repos[engine] and model.repo_bytes[engine]
