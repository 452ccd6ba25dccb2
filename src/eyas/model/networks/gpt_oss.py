"""The gpt-oss target over the operations of `eyas.kernels.reference.layers.ops`: embeddings in, residual stream and
taps out.

Knows pages and rows, no requests and no sampling. Formulas: openai/gpt-oss, gpt_oss/torch/model.py.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from eyas.kernels.layouts.mxfp4 import PackedExperts
from eyas.kernels.reference.layers.norm import Normed, rms_norm
from eyas.kernels.reference.layers.ops import Choice, LayerCache, Matrix, Ops
from eyas.model.batch import RowBatch
from eyas.model.config import FINAL_NORM_TAP, GptOssConfig
from eyas.model.networks.experts import DequantCache, ExpertStack
from eyas.model.networks.rope import rope_table
from eyas.model.weights import TargetWeights

__all__ = ["GptOss", "TargetOutput"]


class TargetOutput(NamedTuple):
    """Output of the last layer: its norm for `logits`, and the tapped hidden states side by side."""

    normed: Normed
    taps_TC: Tensor | None
    choices: tuple[Choice, ...]  # the routing of each layer


class GptOss:
    def __init__(
        self,
        config: GptOssConfig,
        weights: TargetWeights,
        *,
        max_positions: int,
        taps: tuple[int, ...] = (),
        expert_cache_bytes: int = 0,
    ) -> None:
        """Prepare the model: `max_positions` sizes rotary tables, `expert_cache_bytes` bounds dequantised experts."""
        self.config = config
        self.weights = weights
        self.taps = taps
        self.dtype = weights.embed_VH.dtype
        self.device = weights.embed_VH.device
        self.expert_cache = DequantCache(expert_cache_bytes)
        self._rope = rope_table(config.rope, config.head_dim, max_positions, self.device)
        self._experts = [(self._stack(layer.gate_up), self._stack(layer.down)) for layer in weights.layers]

    def _stack(self, experts: Matrix) -> Matrix:
        """Experts for the operations: kernels read packed ones as they are, plain ones ask for a matrix at a time."""
        if isinstance(experts, PackedExperts):
            return experts
        return ExpertStack(experts, self.dtype, self.expert_cache)

    def new_cache(
        self, num_full_pages: int, num_sliding_pages: int, page_size: int, *, in_fp8: bool = False
    ) -> list[LayerCache]:
        """Zeroed keys and values of all layers; the page counts include page 0."""
        of_page = self.config.num_kv_heads, page_size, self.config.head_dim
        return [
            LayerCache.zeros(
                (num_sliding_pages if sliding else num_full_pages, *of_page), self.dtype, self.device, in_fp8=in_fp8
            )
            for sliding in self.config.layer_is_sliding
        ]

    def forward(self, batch: RowBatch, caches: list[LayerCache], taps_TC: Tensor | None = None) -> TargetOutput:
        """Run all layers over the T = S R rows and write their keys and values.

        What is tapped is left in `taps_TC`, if it is given.
        """
        config, layers, ops = self.config, self.weights.layers, batch.ops
        eps, top_k = config.rms_norm_eps, config.experts_per_token
        full = ops.plan(
            batch.rows(batch.tables.full),
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            in_fp8=any(cache.in_fp8 for cache in caches),
        )
        rows = {True: batch.rows(batch.tables.sliding), False: full}
        live_T = batch.live_SR.flatten()
        norms = [*(layer.input_norm_H for layer in layers[1:]), self.weights.norm_H]

        residual, normed = ops.embed(batch.tokens_SR.flatten(), self.weights.embed_VH, layers[0].input_norm_H)
        boundaries: dict[int, Tensor] = {}
        routing = []
        for index, (layer, cache, next_norm_H) in enumerate(zip(layers, caches, norms, strict=True)):
            if index in self.taps:  # those of a long prompt are large
                boundaries[index] = residual
            is_sliding = config.layer_is_sliding[index]
            attn = ops.attend(
                ops.project(normed, layer.qkv_NH),
                rows[is_sliding],
                cache,
                self._rope,
                eps=eps,
                bias_N=layer.qkv_bias_N,
                sinks_Q=layer.sinks_Q,
                window=config.sliding_window if is_sliding else None,
            )
            residual, normed = ops.add(attn, layer.o_HN, layer.o_bias_H, residual, layer.post_norm_H)
            chosen = ops.router(normed, layer.router_EH, layer.router_bias_E, eps)
            gate_up, down = self._experts[index]
            act = ops.moe_up(
                normed, chosen, live_T, gate_up, layer.gate_up_bias, top_k=top_k, limit=config.swiglu_limit, eps=eps
            )
            residual, normed = ops.moe_down(act, chosen, live_T, down, layer.down_bias, residual, next_norm_H)
            routing.append(chosen)
        boundaries[config.num_layers] = residual
        return TargetOutput(normed, self._collect(boundaries, taps_TC), tuple(routing))

    def _collect(self, boundaries: dict[int, Tensor], out: Tensor | None) -> Tensor | None:
        if not self.taps:
            return None
        last = boundaries[self.config.num_layers]
        if FINAL_NORM_TAP in self.taps:
            boundaries[FINAL_NORM_TAP] = rms_norm(last, self.weights.norm_H, self.config.rms_norm_eps)
        taps_TC = torch.cat([boundaries[tap] for tap in self.taps], dim=-1)
        return taps_TC.to(self.dtype) if out is None else out.copy_(taps_TC)

    def logits(self, normed: Normed, ops: Ops, out: Tensor | None = None) -> Tensor:
        """Compute fp32 [T, V] of `TargetOutput.normed`, or some of its rows, in `out` where it is given."""
        return ops.logits(normed, self.weights.lm_head_VH, self.config.rms_norm_eps, out)
