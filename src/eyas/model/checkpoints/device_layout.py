"""Weights in the form that GPU kernels read, one tensor at a time: dense matrices in blocks, MXFP4 experts repacked.

Vectors, embeddings (which are gathered) and what is small stay as they are. A model whose shapes have no such form
keeps all of its weights plain, and is computed by the plain operations.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from eyas.base.errors import UserError
from eyas.kernels.cuda import attend, linear, moe
from eyas.kernels.layouts.dense import BLOCK_COLUMNS, TILE_ROWS, BlockedMatrix
from eyas.kernels.layouts.mxfp4 import PackedExperts, pack_experts
from eyas.kernels.reference.ops import Matrix
from eyas.model.config import Eagle3Config, GptOssConfig
from eyas.model.mxfp4 import Mxfp4Tensor
from eyas.model.weights import Eagle3Weights, Head, LayerWeights, TargetWeights

__all__ = ["has_device_layout", "is_packed", "pack_ends", "pack_layer"]


def has_device_layout(config: GptOssConfig | Eagle3Config) -> bool:
    """Whether the kernels can compute these shapes."""
    if config.head_dim != attend.DIM or config.num_heads // config.num_kv_heads not in attend.GROUPS:
        return False
    if config.hidden_size > linear.MAX_OWN_INPUTS:
        return False
    inputs = [config.hidden_size, config.intermediate_size, config.num_heads * config.head_dim]
    outputs = [config.hidden_size, 2 * config.intermediate_size]
    if isinstance(config, GptOssConfig):
        outputs += [config.num_experts, config.vocab_size]
        if config.expert_format != "mxfp4" or not _has_experts(config):
            return False
        if any(config.layer_is_sliding) and config.sliding_window > attend.MAX_WINDOW:
            return False
    else:
        outputs += [config.draft_vocab_size]
    return all(size % BLOCK_COLUMNS == 0 for size in inputs) and all(size % TILE_ROWS == 0 for size in outputs)


def _has_experts(config: GptOssConfig) -> bool:
    are_few = config.num_experts <= moe.MAX_EXPERTS and config.experts_per_token <= moe.MAX_TOP_K
    return are_few and max(config.hidden_size, config.intermediate_size) <= moe.MAX_COLUMNS


def is_packed(weights: TargetWeights | Eagle3Weights) -> bool:
    return isinstance(weights.lm_head_VH, BlockedMatrix)


def pack_layer(layer: LayerWeights) -> LayerWeights:
    """Pack a layer. Raises UserError for scales without a packed form, which no known gpt-oss checkpoint has."""
    try:
        gate_up, down = _experts(layer.gate_up), _experts(layer.down)
    except ValueError as error:
        raise UserError(f"the experts cannot be packed for the GPU: {error}; --device cpu takes them") from error
    return replace(
        layer,
        qkv_NH=_dense(layer.qkv_NH),
        o_HN=_dense(layer.o_HN),
        router_EH=_dense(layer.router_EH),
        gate_up=gate_up,
        down=down,
    )


def pack_ends(target: TargetWeights, head: Head | None) -> tuple[TargetWeights, Head | None]:
    """Pack the lm_head of a target whose layers are packed, and all of its head, which may share that matrix."""
    lm_head = _dense(target.lm_head_VH)
    packed = None
    if head is not None:
        matrix = head.weights.lm_head_VH
        own = lm_head if matrix is target.lm_head_VH else _dense(matrix)
        packed = replace(head, weights=_pack_head(head.weights, own))
    return replace(target, lm_head_VH=lm_head), packed


def _pack_head(weights: Eagle3Weights, lm_head: BlockedMatrix) -> Eagle3Weights:
    return replace(
        weights,
        fc_HC=None if weights.fc_HC is None else _dense(weights.fc_HC),
        qkv_NH=_dense(weights.qkv_NH),
        o_HN=_dense(weights.o_HN),
        gate_up_IH=BlockedMatrix.pack(weights.gate_up_IH, gated=True),
        down_HI=_dense(weights.down_HI),
        lm_head_VH=lm_head,
    )


def _dense(matrix: Matrix) -> BlockedMatrix:
    assert isinstance(matrix, Tensor)
    return BlockedMatrix.pack(matrix)


def _experts(stack: Matrix) -> PackedExperts:
    assert isinstance(stack, Mxfp4Tensor)
    return pack_experts(stack.blocks, stack.scales)
