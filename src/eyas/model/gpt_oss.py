"""The gpt-oss target over the fused operations of `eyas.kernels`: embeddings in, residual stream and taps out.

Knows pages and rows, no requests and no sampling. Formulas: openai/gpt-oss, gpt_oss/torch/model.py.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from eyas.kernels.attend import attend
from eyas.kernels.head import head
from eyas.kernels.linear import rms_norm
from eyas.kernels.moe import moe_down, moe_up
from eyas.kernels.o_norm_router import o_norm_router
from eyas.kernels.qkv_rope_write import qkv_rope_write
from eyas.model.batch import LayerCache, RowBatch, Tiles, write_slots
from eyas.model.config import FINAL_NORM_TAP, GptOssConfig
from eyas.model.experts import DequantCache, ExpertStack
from eyas.model.rope import rope_table
from eyas.model.weights import TargetWeights

__all__ = ["GptOss", "TargetOutput"]


class TargetOutput(NamedTuple):
    """`hidden_TH` is the un-normed output of the last layer; `taps_TC` the tapped hidden states side by side."""

    hidden_TH: Tensor
    taps_TC: Tensor | None
    expert_ids_LTK: Tensor  # routing of every layer, -1 on dead rows


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
        """`max_positions` sizes the rotary tables; `expert_cache_bytes` bounds the dequantised experts kept."""
        self.config = config
        self.weights = weights
        self.taps = taps
        self.dtype = weights.lm_head_VH.dtype
        self.device = weights.lm_head_VH.device
        self.expert_cache = DequantCache(expert_cache_bytes)
        self._rope = rope_table(config.rope, config.head_dim, max_positions, self.device)
        self._experts = [
            (
                ExpertStack(layer.gate_up, self.dtype, self.expert_cache),
                ExpertStack(layer.down, self.dtype, self.expert_cache),
            )
            for layer in weights.layers
        ]

    def new_cache(self, num_full_pages: int, num_sliding_pages: int, page_size: int) -> list[LayerCache]:
        """Zeroed keys and values of all layers; the page counts include page 0."""
        caches = []
        for sliding in self.config.layer_is_sliding:
            pages = num_sliding_pages if sliding else num_full_pages
            shape = (pages, page_size, self.config.num_kv_heads, self.config.head_dim)
            k, v = (torch.zeros(shape, dtype=self.dtype, device=self.device) for _ in range(2))
            caches.append(LayerCache(k, v))
        return caches

    def forward(self, batch: RowBatch, caches: list[LayerCache]) -> TargetOutput:
        """Run all layers over the T = S R rows and write their keys and values."""
        config = self.config
        num_seqs, num_rows = batch.tokens_SR.shape
        page_size = caches[0].k.shape[1]
        positions_T, live_T = batch.positions_SR.flatten(), batch.live_SR.flatten()
        cos, sin = self._rope.cos[positions_T], self._rope.sin[positions_T]
        full_slots = write_slots(batch.tables.full, batch.positions_SR, batch.live_SR, page_size)
        sliding_slots = write_slots(batch.tables.sliding, batch.positions_SR, batch.live_SR, page_size)
        tile = batch.tiles.dense

        residual = self.weights.embed_VH[batch.tokens_SR.flatten()]
        boundaries: dict[int, Tensor] = {}
        routing = []
        for index, (layer, cache) in enumerate(zip(self.weights.layers, caches, strict=True)):
            boundaries[index] = residual
            sliding = config.layer_is_sliding[index]
            q = qkv_rope_write(
                residual,
                norm_C=layer.input_norm_H,
                eps=config.rms_norm_eps,
                qkv_NC=layer.qkv_NH,
                bias_N=layer.qkv_bias_N,
                cos_TD=cos,
                sin_TD=sin,
                k_cache_PBGD=cache.k,
                v_cache_PBGD=cache.v,
                slots_T=sliding_slots if sliding else full_slots,
                tile=tile,
            )
            attn = attend(
                q.unflatten(0, (num_seqs, num_rows)),
                k_cache_PBGD=cache.k,
                v_cache_PBGD=cache.v,
                table_SP=batch.tables.sliding if sliding else batch.tables.full,
                positions_SR=batch.positions_SR,
                sinks_Q=layer.sinks_Q,
                window=config.sliding_window if sliding else None,
                max_length=batch.max_length,
                tile=tile,
            )
            residual, normed, ids, weights = o_norm_router(
                attn.flatten(0, 1).flatten(1),
                residual,
                live_T,
                o_HN=layer.o_HN,
                o_bias_H=layer.o_bias_H,
                norm_H=layer.post_norm_H,
                eps=config.rms_norm_eps,
                router_EH=layer.router_EH,
                router_bias_E=layer.router_bias_E,
                top_k=config.experts_per_token,
                tile=tile,
            )
            gate_up, down = self._experts[index]
            act = moe_up(
                normed,
                ids,
                gate_up=gate_up,
                bias_EN=layer.gate_up_bias,
                limit=config.swiglu_limit,
                tile=batch.tiles.experts,
            )
            residual = moe_down(
                act, ids, weights, residual, down=down, bias_EH=layer.down_bias, tile=batch.tiles.experts
            )
            routing.append(ids)
        boundaries[config.num_layers] = residual
        return TargetOutput(residual, self._collect(boundaries), torch.stack(routing))

    def _collect(self, boundaries: dict[int, Tensor]) -> Tensor | None:
        if not self.taps:
            return None
        last = boundaries[self.config.num_layers]
        if FINAL_NORM_TAP in self.taps:
            boundaries[FINAL_NORM_TAP] = rms_norm(last, self.weights.norm_H, self.config.rms_norm_eps)
        return torch.cat([boundaries[tap] for tap in self.taps], dim=-1)

    def logits(self, hidden_TH: Tensor, tiles: Tiles) -> Tensor:
        """fp32 [T, V] of un-normed final hidden states."""
        return head(
            hidden_TH,
            norm_H=self.weights.norm_H,
            eps=self.config.rms_norm_eps,
            lm_head_VH=self.weights.lm_head_VH,
            tile=tiles.dense,
        )
