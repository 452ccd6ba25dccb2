"""Achieved share of the memory-bandwidth bound: bytes that a round must read, over the time that it took."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
    passes = arm.counts.num_drafts / arm.counts.num_rounds
    return RoundLimit(
        _target_bytes(model, arm.experts), batch * _kv_bytes(model, context), _head_bytes(model, passes), bandwidth
    )


def _num_bytes(weights: Any) -> int:
    from eyas.bench.engine.parts import tensors_of

    return sum(tensor.nbytes for tensor in tensors_of(weights))


def _target_bytes(model: LoadedModel, experts: float) -> float:
    """Count the bytes of the target's weights: all but the embedding, with `experts` distinct experts a layer."""
    weights = model.weights
    stacks = sum(
        _num_bytes(part)
        for layer in weights.layers
        for part in (layer.gate_up, layer.gate_up_bias, layer.down, layer.down_bias)
    )
    return _num_bytes(weights) - weights.embed_VH.nbytes - stacks * (1 - experts / model.config.num_experts)


def _kv_bytes(model: LoadedModel, context: float) -> float:
    """Count the KV bytes of one sequence in the dtype of the weights; a sliding layer reads its window only."""
    config: GptOssConfig = model.config
    token = 2 * config.num_kv_heads * config.head_dim * model.weights.embed_VH.dtype.itemsize
    return token * sum(
        min(context, config.sliding_window) if is_sliding else context for is_sliding in config.layer_is_sliding
    )


def _head_bytes(model: LoadedModel, passes: float) -> float:
    """Count the bytes of `passes` head passes, of which the first fuses the target's states."""
    if model.head is None or not passes:
        return 0.0
    head = model.head.weights
    once = sum(_num_bytes(part) for part in (head.fc_HC, head.fc_norms_H, head.fc_input_norm_C) if part is not None)
    gathered = head.embed_VH.nbytes + _num_bytes(head.target_ids_V if head.target_ids_V is not None else ())
    return float(once + passes * (_num_bytes(head) - once - gathered))
