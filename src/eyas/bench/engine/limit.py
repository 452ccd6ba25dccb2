"""Achieved share of the memory-bandwidth bound: bytes that a round must read, over the time that it took."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eyas.bench.engine.arms import RoundLimit

if TYPE_CHECKING:
    from eyas.bench.engine.arms import Arm
    from eyas.bench.engine.parts import GptOssConfig, LoadedModel

__all__ = ["read_limit", "round_limit"]


def read_limit(model: LoadedModel) -> float | None:
    """Measure the bandwidth of a streaming read in bytes per second; None on a CPU."""
    device = model.weights.embed_VH.device
    if device.type != "cuda":
        return None
    from eyas.bench.engine.parts import read_bandwidth

    return read_bandwidth(device)


def round_limit(model: LoadedModel, arm: Arm, *, context: float, batch: int, bandwidth: float) -> RoundLimit:
    """Return the bound of an arm's rounds, with `context` tokens before each new token."""
    from eyas.bench.engine.parts import HEAD_KINDS

    head_bytes = 0.0
    if model.head is not None:
        kind = HEAD_KINDS[model.options.drafter]
        head_bytes = kind.round_bytes(model.head.weights, arm.counts.num_drafts / arm.counts.num_rounds)
    return RoundLimit(_target_bytes(model, arm.experts), batch * _kv_bytes(model, context), head_bytes, bandwidth)


def _target_bytes(model: LoadedModel, experts: float) -> float:
    """Count the bytes of the target's weights: all but the embedding, with `experts` distinct experts a layer."""
    from eyas.bench.engine.parts import num_bytes

    weights = model.weights
    stacks = sum(
        num_bytes((layer.gate_up, layer.gate_up_bias, layer.down, layer.down_bias)) for layer in weights.layers
    )
    return num_bytes(weights) - weights.embed_VH.nbytes - stacks * (1 - experts / model.config.num_experts)


def _kv_bytes(model: LoadedModel, context: float) -> float:
    """Count the KV bytes of one sequence in the dtype of the weights; a sliding layer reads its window only."""
    config: GptOssConfig = model.config
    token = 2 * config.num_kv_heads * config.head_dim * model.weights.embed_VH.dtype.itemsize
    return token * sum(
        min(context, config.sliding_window) if is_sliding else context for is_sliding in config.layer_is_sliding
    )
