"""Sizes of the demo target and its head, and of a miniature of both for testing the whole pipeline in a minute."""

from __future__ import annotations

from dataclasses import replace

from eyas.model.config import Eagle3Config, GptOssConfig, RopeConfig
from eyas.model.taps import default_taps

__all__ = ["HEAD", "SMOKE_HEAD", "SMOKE_TARGET", "TARGET"]

NUM_LAYERS = 8  # the three default taps HS[2], HS[L/2], HS[L-3] coincide in part where L < 8
TARGET = GptOssConfig(
    vocab_size=4096,
    hidden_size=256,
    intermediate_size=128,
    num_layers=NUM_LAYERS,
    num_heads=8,
    num_kv_heads=2,
    head_dim=64,
    num_experts=16,
    experts_per_token=4,
    sliding_window=128,
    layer_is_sliding=tuple(layer % 2 == 0 for layer in range(NUM_LAYERS)),
    rope=RopeConfig(theta=150000.0, kind="yarn", factor=32.0, original_context=4096, truncate=False),
    max_context=4096,
    eos_ids=(4084, 4081, 4094),  # <|return|>, <|endoftext|>, <|call|>
    pad_id=4081,
)
HEAD = Eagle3Config(
    vocab_size=TARGET.vocab_size,
    draft_vocab_size=2048,
    hidden_size=256,
    target_hidden_size=256,
    intermediate_size=1024,
    num_heads=8,
    num_kv_heads=2,
    head_dim=64,
    taps=default_taps(NUM_LAYERS),
    rope=RopeConfig(theta=10000.0),
    max_context=TARGET.max_context,
)
SMOKE_TARGET = replace(
    TARGET, hidden_size=64, intermediate_size=32, num_experts=4, experts_per_token=2, num_heads=2, num_kv_heads=1
)
SMOKE_HEAD = replace(HEAD, hidden_size=64, target_hidden_size=64, intermediate_size=128, num_heads=2, num_kv_heads=1)
