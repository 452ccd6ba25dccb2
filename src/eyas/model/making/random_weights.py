"""Weights of a given shape, drawn at random on the device: for speed, never for text.

They are in the form that kernels read, or plain where there are no kernels (`is_packed`).

The embedding is drawn large, so that each token keeps a direction of its own through the layers and routing stays close
to uniform; with a small one all rows of a sequence collapse to the same few experts. Benchmarks with such
weights print the distinct experts that were read.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from eyas.kernels.layouts.dense import BLOCK_COLUMNS, TILE_ROWS, BlockedMatrix
from eyas.kernels.layouts.mxfp4 import empty_experts, scale_words
from eyas.kernels.reference.layers.ops import Matrix
from eyas.model.config import Eagle3Config, GptOssConfig
from eyas.model.making.presets import default_head
from eyas.model.mxfp4 import BLOCK, Mxfp4Tensor
from eyas.model.weights import Eagle3Weights, Head, LayerWeights, TargetWeights

__all__ = ["RANDOM_HEADS", "random_head", "random_target"]

EMBEDDING_STD, MATRIX_STD, ROUTER_STD = 30.0, 0.02, 0.05
SCALES = (108, 115)  # E8M0 bytes from..to


class _Source:
    def __init__(self, device: torch.device, seed: int, *, is_packed: bool) -> None:
        self._device = device
        self._generator = torch.Generator(device).manual_seed(seed)
        self._is_packed = is_packed

    def normal(self, *shape: int, std: float) -> Tensor:
        dtype = torch.float32 if self._device.type == "cpu" and not self._is_packed else torch.bfloat16
        return torch.empty(shape, dtype=dtype, device=self._device).normal_(0.0, std, generator=self._generator)

    def matrix(self, rows: int, columns: int, std: float = MATRIX_STD, *, gated: bool = False) -> Matrix:
        if not self._is_packed:
            return self.normal(rows, columns, std=std)
        shape = (rows // TILE_ROWS, columns // BLOCK_COLUMNS, TILE_ROWS, BLOCK_COLUMNS)
        return BlockedMatrix(self.normal(*shape, std=std), gated)

    def experts(self, count: int, rows: int, columns: int) -> Matrix:
        """Draw experts. Every code is as likely as any other; a padded second block of 32 columns must stay zero."""
        if not self._is_packed:
            blocks = torch.empty(count, rows, columns // BLOCK, BLOCK // 2, dtype=torch.uint8, device=self._device)
            scales = torch.randint(*SCALES, blocks.shape[:-1], generator=self._generator, device=self._device)
            return Mxfp4Tensor(blocks.random_(0, 256, generator=self._generator), scales.to(torch.uint8))
        packed = empty_experts(count, rows, columns, self._device)
        packed.words.random_(-(1 << 31), 1 << 31, generator=self._generator)
        if columns % (2 * BLOCK_COLUMNS):
            packed.words[:, :, -1, :, 2:] = 0
        scales = torch.randint(*SCALES, (2, 2, *packed.scales.shape), generator=self._generator, device=self._device)
        packed.scales.copy_(scale_words(scales))
        return packed

    def ones(self, size: int) -> Tensor:
        return torch.ones(size, device=self._device)

    def zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, device=self._device)


def random_target(
    config: GptOssConfig, device: torch.device, *, seed: int = 0, is_packed: bool = True
) -> TargetWeights:
    source = _Source(device, seed, is_packed=is_packed)
    hidden, experts = config.hidden_size, config.num_experts
    queries = config.num_heads * config.head_dim
    qkv = queries + 2 * config.num_kv_heads * config.head_dim
    layers = [
        LayerWeights(
            input_norm_H=source.ones(hidden),
            qkv_NH=source.matrix(qkv, hidden),
            qkv_bias_N=source.zeros(qkv),
            sinks_Q=source.zeros(config.num_heads),
            o_HN=source.matrix(hidden, queries),
            o_bias_H=source.zeros(hidden),
            post_norm_H=source.ones(hidden),
            router_EH=source.matrix(experts, hidden, ROUTER_STD),
            router_bias_E=source.zeros(experts),
            gate_up=source.experts(experts, 2 * config.intermediate_size, hidden),
            gate_up_bias=source.zeros(experts, 2 * config.intermediate_size),
            down=source.experts(experts, hidden, config.intermediate_size),
            down_bias=source.zeros(experts, hidden),
        )
        for _ in range(config.num_layers)
    ]
    return TargetWeights(
        embed_VH=source.normal(config.vocab_size, hidden, std=EMBEDDING_STD),
        layers=tuple(layers),
        norm_H=source.ones(hidden),
        lm_head_VH=source.matrix(config.vocab_size, hidden),
    )


def random_head(config: Eagle3Config, target: TargetWeights, device: torch.device, *, seed: int = 1) -> Head:
    """Draw a head that shares the target's embedding; its draft vocabulary is a random choice of the target's."""
    source = _Source(device, seed, is_packed=isinstance(target.lm_head_VH, BlockedMatrix))
    hidden = config.hidden_size
    queries = config.num_heads * config.head_dim
    ids = None
    if config.draft_vocab_size < config.vocab_size:
        generator = torch.Generator().manual_seed(seed)
        chosen = torch.randperm(config.vocab_size, generator=generator)[: config.draft_vocab_size]
        ids = chosen.sort().values.to(device)
    weights = Eagle3Weights(
        embed_VH=target.embed_VH,
        fc_HC=source.matrix(hidden, len(config.taps) * config.target_hidden_size) if config.has_fc else None,
        fc_input_norm_C=None,
        fc_norms_H=(),
        hidden_norm_H=source.ones(hidden),
        input_norm_H=source.ones(hidden),
        qkv_NH=source.matrix(queries + 2 * config.num_kv_heads * config.head_dim, 2 * hidden),
        o_HN=source.matrix(hidden, queries),
        post_norm_H=source.ones(hidden),
        gate_up_IH=source.matrix(2 * config.intermediate_size, hidden, gated=True),
        down_HI=source.matrix(hidden, config.intermediate_size),
        norm_H=source.ones(hidden),
        lm_head_VH=source.matrix(config.draft_vocab_size, hidden),
        target_ids_V=ids,
    )
    return Head(config, weights)


def _random_eagle3(config: GptOssConfig, target: TargetWeights, device: torch.device, draft_vocab: int | None) -> Head:
    """Draw a head of the usual shape, with `draft_vocab` tokens if given."""
    shape = default_head(config)
    if draft_vocab is not None:
        shape = default_head(config, draft_vocab_size=draft_vocab)
    return random_head(shape, target, device)


# By kind: draws a head for a target on a device; a number is the size of its draft vocabulary.
RANDOM_HEADS: dict[str, Callable[[GptOssConfig, TargetWeights, torch.device, int | None], Head]] = {
    "eagle3": _random_eagle3
}
