"""Sizes of the demo target, and of a miniature for testing the whole pipeline in a minute. head.yaml has the head's."""

from __future__ import annotations

from dataclasses import replace

from eyas.model.config import GptOssConfig, RopeConfig

__all__ = ["SMOKE_TARGET", "TARGET"]

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
SMOKE_TARGET = replace(
    TARGET, hidden_size=64, intermediate_size=32, num_experts=4, experts_per_token=2, num_heads=2, num_kv_heads=1
)
