"""How near decoding comes to the limit of the memory: bytes that a round must read, over the time that it took."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eyas.bench.arms import Arm
from eyas.bench.stats import Spread

if TYPE_CHECKING:
    from eyas.engine.load import LoadedModel

__all__ = ["limit_lines", "read_limit"]


def _round_bytes(model: LoadedModel, experts: float) -> float:
    """Weights that a pass of the target reads once: all but the embedding, and `experts` distinct experts a layer.

    Keys and values come on top; with short contexts they are below 1 % of it.
    """
    from eyas.model.weights import tensors_of

    def num_bytes(weights: Any) -> int:
        return sum(tensor.nbytes for tensor in tensors_of(weights))

    weights = model.weights
    stacks = sum(
        num_bytes(part)
        for layer in weights.layers
        for part in (layer.gate_up, layer.gate_up_bias, layer.down, layer.down_bias)
    )
    return num_bytes(weights) - weights.embed_VH.nbytes - stacks * (1 - experts / model.config.num_experts)


def read_limit(model: LoadedModel) -> float | None:
    """Bytes per second of a streaming read, measured now; None on a CPU."""
    device = model.weights.embed_VH.device
    if device.type != "cuda":
        return None
    from eyas.kernels.triton.stream import read_bandwidth

    return read_bandwidth(device)


def limit_lines(arm: Arm, model: LoadedModel, batch: int, limit: float | None) -> list[str]:
    """Of rounds without drafts."""
    if limit is None or arm.tiles == "plain":
        return []
    needed, seconds = _round_bytes(model, arm.experts), batch / Spread(tuple(arm.decode)).median
    return [
        "",
        f"limit: {needed / 1e9:.2f} GB a round at {limit / 1e12:.2f} TB/s is {1e3 * needed / limit:.3f} ms; "
        f"without drafts a round takes {1e3 * seconds:.3f} ms, {100 * needed / limit / seconds:.0f} % of the limit",
    ]
