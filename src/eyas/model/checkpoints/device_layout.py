"""Weights in the form that GPU kernels read, one tensor at a time: dense matrices in blocks, MXFP4 experts repacked.

Vectors, embeddings (which are gathered) and what is small stay as they are. A model whose shapes have no such form
keeps all of its weights plain, and is computed by the plain operations.

Attention's matrices, 38 % of the bytes that a token of gpt-oss-120b reads, may have a copy in 12 bits beside them for
the kernels of few rows. All others read the matrix itself: unpacking would make a prompt pass of 128 rows 4 % slower.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from torch import Tensor

from eyas.base.errors import UserError
from eyas.kernels.cuda.attention import attend, attend_plan
from eyas.kernels.cuda.dense import linear
from eyas.kernels.cuda.moe import moe
from eyas.kernels.layouts.dense import BLOCK_COLUMNS, TILE_ROWS, BlockedMatrix
from eyas.kernels.layouts.mxfp4 import PackedExperts, pack_experts
from eyas.kernels.reference.layers.ops import Matrix
from eyas.model.config import GptOssConfig
from eyas.model.mxfp4 import Mxfp4Tensor
from eyas.model.weights import LayerWeights, TargetWeights

__all__ = [
    "add_copies",
    "dense_layout",
    "has_dense_layout",
    "has_device_layout",
    "is_packed",
    "num_copies",
    "pack_layer",
    "pack_lm_head",
    "remove_copies",
    "unread_bytes",
]


class Shape(Protocol):
    """The sizes of attention and of the gated matrices after it."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def num_heads(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...


def has_dense_layout(shape: Shape, *, outputs: Sequence[int]) -> bool:
    """Whether the kernels can compute attention and matrices of a shape; `outputs` are the rows of other matrices."""
    if shape.head_dim != attend_plan.DIM or shape.num_heads // shape.num_kv_heads not in attend_plan.GROUPS:
        return False
    if shape.hidden_size > linear.MAX_OWN_INPUTS:
        return False
    inputs = [shape.hidden_size, shape.intermediate_size, shape.num_heads * shape.head_dim]
    rows = [shape.hidden_size, 2 * shape.intermediate_size, *outputs]
    return all(size % BLOCK_COLUMNS == 0 for size in inputs) and all(size % TILE_ROWS == 0 for size in rows)


def has_device_layout(config: GptOssConfig) -> bool:
    """Whether the kernels can compute a target of these shapes."""
    if config.expert_format != "mxfp4" or not _has_experts(config):
        return False
    if any(config.layer_is_sliding) and config.sliding_window > attend.MAX_WINDOW:
        return False
    return has_dense_layout(config, outputs=[config.num_experts, config.vocab_size])


def _has_experts(config: GptOssConfig) -> bool:
    are_few = config.num_experts <= moe.MAX_EXPERTS and config.experts_per_token <= moe.MAX_TOP_K
    return are_few and max(config.hidden_size, config.intermediate_size) <= moe.MAX_COLUMNS


def is_packed(weights: TargetWeights) -> bool:
    return isinstance(weights.lm_head_VH, BlockedMatrix)


def pack_layer(layer: LayerWeights) -> LayerWeights:
    """Pack a layer. Raises UserError for scales without a packed form, which no known gpt-oss checkpoint has."""
    try:
        gate_up, down = _experts(layer.gate_up), _experts(layer.down)
    except ValueError as error:
        raise UserError(f"the experts cannot be packed for the GPU: {error}; --device cpu takes them") from error
    return replace(
        layer,
        qkv_NH=dense_layout(layer.qkv_NH),
        o_HN=dense_layout(layer.o_HN),
        router_EH=dense_layout(layer.router_EH),
        gate_up=gate_up,
        down=down,
    )


def pack_lm_head(target: TargetWeights) -> TargetWeights:
    """Pack the lm_head of a target whose layers are packed."""
    return replace(target, lm_head_VH=dense_layout(target.lm_head_VH))


def dense_layout(matrix: Matrix) -> BlockedMatrix:
    """Pack a plain matrix."""
    assert isinstance(matrix, Tensor)
    return BlockedMatrix.pack(matrix)


def add_copies(target: TargetWeights) -> TargetWeights:
    """Add copies in 12 bits to a packed target, to the matrices that they suit."""
    return _with_attention(target, BlockedMatrix.with_12_bits)


def remove_copies(target: TargetWeights) -> TargetWeights:
    return _with_attention(target, lambda matrix: replace(matrix, tiles12=None))


def num_copies(target: TargetWeights) -> int:
    return sum(matrix.tiles12 is not None for matrix in _attention(target))


def unread_bytes(target: TargetWeights, num_rows: int) -> int:
    """Return the bytes that a pass of `num_rows` does not read: of a matrix and its copy, one or the other."""
    few = num_rows <= linear.FEW_ROWS
    doubled = ((matrix.data, matrix.tiles12) for matrix in _attention(target))
    return sum(data.nbytes if few else copy.nbytes for data, copy in doubled if copy is not None)


def _attention(target: TargetWeights) -> Iterator[BlockedMatrix]:
    for layer in target.layers:
        yield from (matrix for matrix in (layer.qkv_NH, layer.o_HN) if isinstance(matrix, BlockedMatrix))


def _with_attention(target: TargetWeights, change: Callable[[BlockedMatrix], BlockedMatrix]) -> TargetWeights:
    layers = (replace(layer, qkv_NH=change(layer.qkv_NH), o_HN=change(layer.o_HN)) for layer in target.layers)
    return replace(target, layers=tuple(layers))


def _experts(stack: Matrix) -> PackedExperts:
    assert isinstance(stack, Mxfp4Tensor)
    return pack_experts(stack.blocks, stack.scales)
