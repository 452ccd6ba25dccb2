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
    num_rows = arm.core.runner.stages.rows(batch) * (1 if arm.drafts == "auto" else arm.drafts + 1)
    return RoundLimit(_target_bytes(model, arm, num_rows), batch * _kv_bytes(model, context), head_bytes, bandwidth)


def _target_bytes(model: LoadedModel, arm: Arm, num_rows: int) -> float:
    """Count the bytes of the target's weights that `num_rows` rows read: all but the embedding and idle experts.

    Of an lm_head with a screen that is its copy in 8 bits.
    """
    from eyas.bench.engine.parts import num_bytes, remove_copies, unread_bytes

    weights = remove_copies(model.weights) if arm.tiles == "bf16" else model.weights
    stacks = sum(
        num_bytes((layer.gate_up, layer.gate_up_bias, layer.down, layer.down_bias)) for layer in weights.layers
    )
    idle = weights.embed_VH.nbytes + unread_bytes(weights, num_rows)
    screen = arm.core.runner.screen
    if screen is not None and num_rows <= screen.max_rows:  # what it leaves of the lm_head depends on the logits
        idle += num_bytes((weights.lm_head_VH,)) - screen.nbytes
    return num_bytes(weights) - idle - stacks * (1 - arm.experts / model.config.num_experts)


def _kv_bytes(model: LoadedModel, context: float) -> float:
    """Count the KV bytes of one sequence; a sliding layer reads its window only."""
    from eyas.bench.engine.parts import layer_page_bytes

    config: GptOssConfig = model.config
    in_fp8 = model.options.kv_dtype == "fp8"
    return layer_page_bytes(config, 1, model.weights.embed_VH.dtype, in_fp8=in_fp8) * sum(
        min(context, config.sliding_window) if is_sliding else context for is_sliding in config.layer_is_sliding
    )
