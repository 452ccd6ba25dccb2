"""The tensors of a target and of a head, as the forward pass wants them. Filled by `model/checkpoints/loader.py`.

Shape letters: V vocabulary, Vd draft vocabulary, H hidden, Ht hidden of the target, I intermediate, E experts,
Q query heads, G key/value heads, D head dimension. All matrices are [out, in]. Matrices have the compute dtype of the
device (bf16 on a GPU, fp32 on a CPU), norm weights, biases and sinks are fp32, MXFP4 experts stay packed. A `Matrix`
is plain, or in the form that kernels read (`model/checkpoints/device_layout.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from torch import Tensor

from eyas.kernels.reference.layers.ops import Matrix

__all__ = ["Eagle3Weights", "Head", "LayerWeights", "TargetWeights", "num_bytes", "tensors_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerWeights:
    """A block of the target. Gate and up rows of `gate_up` alternate: gate 0, up 0, gate 1, up 1, ..."""

    input_norm_H: Tensor
    qkv_NH: Matrix  # N = (Q + 2 G) D: query rows, then key rows, then value rows
    qkv_bias_N: Tensor
    sinks_Q: Tensor
    o_HN: Matrix  # N = Q D
    o_bias_H: Tensor
    post_norm_H: Tensor
    router_EH: Matrix
    router_bias_E: Tensor
    gate_up: Matrix  # [E, 2 I, H], MXFP4 or dense
    gate_up_bias: Tensor  # [E, 2 I]
    down: Matrix  # [E, H, I]
    down_bias: Tensor  # [E, H]


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetWeights:
    embed_VH: Tensor
    layers: tuple[LayerWeights, ...]
    norm_H: Tensor
    lm_head_VH: Matrix


@dataclass(frozen=True, kw_only=True, slots=True)
class Eagle3Weights:
    """An EAGLE-3 head. `embed_VH` and `lm_head_VH` may be the target's own tensors.

    `target_ids_V` maps a draft id to its target id (absolute, the file's d2t plus the draft id), None for the identity.
    """

    embed_VH: Tensor
    fc_HC: Matrix | None  # C = len(taps) Ht; None where the input is the final hidden state itself
    fc_input_norm_C: Tensor | None  # norm_before_fc
    fc_norms_H: tuple[Tensor, ...]  # fc_norm: one [Ht] weight a tap
    hidden_norm_H: Tensor
    input_norm_H: Tensor  # of the embedding half
    qkv_NH: Matrix  # [(Q + 2 G) D, 2 H]
    o_HN: Matrix
    post_norm_H: Tensor
    gate_up_IH: Matrix  # [2 I, H]: all gate rows, then all up rows
    down_HI: Matrix
    norm_H: Tensor
    lm_head_VH: Matrix  # [Vd, H]
    target_ids_V: Tensor | None  # int64 [Vd]


@dataclass(frozen=True, slots=True)
class Head:
    """A draft head: its config.json and its tensors, both in the form of its own kind."""

    config: Any  # an `Eagle3Config`, or what another kind of drafter reads
    weights: Any


def num_bytes(weights: Any) -> int:
    """Count the bytes of all tensors below `weights`."""
    return sum(tensor.nbytes for tensor in tensors_of(weights))


def tensors_of(weights: Any) -> Iterator[Tensor]:
    """Yield every tensor below a weights dataclass, packed ones included."""
    if isinstance(weights, Tensor):
        yield weights
    elif isinstance(weights, tuple):
        for item in weights:
            yield from tensors_of(item)
    elif is_dataclass(weights):
        for field in fields(weights):
            yield from tensors_of(getattr(weights, field.name))
