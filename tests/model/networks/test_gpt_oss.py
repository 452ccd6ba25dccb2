"""The target against transformers' GptOss, in fp32, on random checkpoints of several shapes."""

import dataclasses

import pytest
import torch
import transformers
from tests.model.support.forward import logits_of, row_batch

from eyas.base.types import Request, SamplingParams
from eyas.engine.startup.build import EngineOptions, build_engine
from eyas.kernels.reference.layers.plain_ops import PlainOps
from eyas.kernels.reference.layers.router import route
from eyas.model.checkpoints.loader import load_target
from eyas.model.making.make import make_target
from eyas.model.making.presets import PRESETS

CPU = torch.device("cpu")
TINY = PRESETS["tiny"]
SHAPES = {
    "tiny": TINY,
    "full_first": dataclasses.replace(TINY, num_layers=3, layer_is_sliding=(False, True, True), sliding_window=24),
    "one_kv_head": dataclasses.replace(TINY, num_heads=8, num_kv_heads=1, head_dim=16, num_experts=5),
    "window_128": dataclasses.replace(TINY, num_layers=4, layer_is_sliding=(True, False) * 2, sliding_window=128),
    "wide_experts": dataclasses.replace(TINY, hidden_size=96, intermediate_size=160, experts_per_token=2),
}


def relative_error(ours, theirs):
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


def prompts(config, num_seqs=2, length=200):
    return torch.randint(config.vocab_size, (num_seqs, length), generator=torch.Generator().manual_seed(0))


def greedy_of(config, weights, prompt, num_tokens):
    engine = build_engine(config, weights, EngineOptions(context=256, concurrency=1, kv_bytes=1 << 28)).core
    tokens = []
    params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
    engine.add(
        Request(request_id="r", prompt_ids=tuple(prompt.tolist()), params=params), lambda e: tokens.extend(e.token_ids)
    )
    while not engine.is_idle:
        engine.step()
    return tokens


def compare(folder, oracle):
    config, weights = load_target(folder, device=CPU, dtype=torch.float32)
    tokens = prompts(config)
    assert tokens.shape[1] > config.sliding_window
    with torch.inference_mode():
        theirs = oracle(tokens).logits
        ours = logits_of(config, weights, tokens)
        assert relative_error(ours, theirs) <= 1e-4
        continued = oracle.generate(
            tokens[:1], attention_mask=torch.ones_like(tokens[:1]), max_new_tokens=20, do_sample=False, eos_token_id=-1
        )[0, tokens.shape[1] :]
    assert greedy_of(config, weights, tokens[0], 20) == continued.tolist()


@pytest.mark.parametrize("shape", SHAPES)
def test_mxfp4_packed_by_us(shape, tmp_path):
    folder = make_target(SHAPES[shape], tmp_path / "model", seed=1)
    oracle = transformers.AutoModelForCausalLM.from_pretrained(
        folder,
        quantization_config=transformers.Mxfp4Config(dequantize=True),
        attn_implementation="eager",
    )
    compare(folder, oracle.float())  # some versions leave the experts in bf16 whatever dtype says


@pytest.mark.parametrize("num_kv_heads", [2, 4])
def test_bf16_saved_by_transformers(num_kv_heads, tmp_path):
    torch.manual_seed(3)
    saved = transformers.GptOssForCausalLM(
        transformers.GptOssConfig(
            vocab_size=300,
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=num_kv_heads,
            head_dim=32,
            num_local_experts=6,
            num_experts_per_tok=4,
            sliding_window=20,
            max_position_embeddings=512,
            initializer_range=0.3,
        )
    ).to(torch.bfloat16)
    saved.save_pretrained(tmp_path)
    compare(
        tmp_path,
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, attn_implementation="eager"),
    )


def test_the_oracle_notices_a_wrong_window(tmp_path):
    """The bar of 1e-4 has teeth: a window off by one is far above it."""
    folder = make_target(TINY, tmp_path / "model", seed=1)
    config, weights = load_target(folder, device=CPU, dtype=torch.float32)
    tokens = prompts(config)
    right = logits_of(config, weights, tokens)
    wrong = logits_of(dataclasses.replace(config, sliding_window=config.sliding_window + 1), weights, tokens)
    assert relative_error(wrong, right) > 1e-3


def test_experts_that_no_row_picked_are_not_dequantised(tmp_path):

    from eyas.model.networks.gpt_oss import GptOss

    config, weights = load_target(make_target(TINY, tmp_path / "model"), device=CPU, dtype=torch.float32)
    model = GptOss(config, weights, max_positions=64, expert_cache_bytes=1 << 30)
    batch = row_batch(torch.tensor([[7]]), ops=PlainOps(dense=8, experts=1))
    output = model.forward(batch, model.new_cache(2, 2, 16))
    routed = [route(logits, batch.live_SR[0], config.experts_per_token)[0] for logits in output.choices]
    touched = {(layer, e) for layer, ids in enumerate(routed) for e in ids.flatten().tolist()}
    one_expert = 4 * 3 * config.hidden_size * config.intermediate_size
    assert len(touched) == config.num_layers * config.experts_per_token
    assert model.expert_cache.used_bytes == len(touched) * one_expert
