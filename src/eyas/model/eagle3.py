"""The EAGLE-3 draft head (Li et al., 2025; SafeAILab/EAGLE, eagle/model/cnets.py) in all published variants.

The hidden state a_t of the target is paired with the embedding of token x_{t+1}; the pair predicts x_{t+2}. Here the
pair stands at position t + 1, the position of its token: rotary attention sees differences only. Fed back, the head's
own output takes the place of a_t.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from eyas.kernels.attend import attend
from eyas.kernels.head import head
from eyas.kernels.linear import linear, rms_norm
from eyas.kernels.qkv_rope_write import qkv_rope_write
from eyas.model.batch import LayerCache, RowBatch, Tiles, write_slots
from eyas.model.config import HeadConfig
from eyas.model.rope import rope_table
from eyas.model.weights import HeadWeights

__all__ = ["Eagle3Head"]


class Eagle3Head:
    def __init__(self, config: HeadConfig, weights: HeadWeights, *, max_positions: int) -> None:
        self.config = config
        self.weights = weights
        self.dtype = weights.qkv_NH.dtype
        self.device = weights.qkv_NH.device
        self._rope = rope_table(config.rope, config.head_dim, max_positions, self.device)

    def new_cache(self, num_pages: int, page_size: int) -> LayerCache:
        """Zeroed keys and values; the head shares page ids with the target's full layers."""
        shape = (num_pages, page_size, self.config.num_kv_heads, self.config.head_dim)
        k, v = (torch.zeros(shape, dtype=self.dtype, device=self.device) for _ in range(2))
        return LayerCache(k, v)

    def fuse(self, taps_TC: Tensor, tiles: Tiles) -> Tensor:
        """The target's tapped states [T, C] as one hidden state [T, H]; the head's own output skips this."""
        weights, eps = self.weights, self.config.rms_norm_eps
        if weights.fc_HC is None:
            return taps_TC.to(self.dtype)
        if weights.fc_norms_H:
            parts = taps_TC.chunk(len(weights.fc_norms_H), dim=-1)
            normed = [rms_norm(part, norm, eps) for part, norm in zip(parts, weights.fc_norms_H, strict=True)]
            taps_TC = torch.cat(normed, dim=-1)
        if weights.fc_input_norm_C is not None:
            taps_TC = rms_norm(taps_TC, weights.fc_input_norm_C, eps)
        return linear(taps_TC.to(self.dtype), weights.fc_HC, None, tile=tiles.dense)

    def forward(self, batch: RowBatch, hidden_TH: Tensor, cache: LayerCache) -> Tensor:
        """[T, H], un-normed, for pairs of `hidden_TH` and the batch's tokens; writes their keys and values."""
        config, weights, eps = self.config, self.weights, self.config.rms_norm_eps
        num_seqs, num_rows = batch.tokens_SR.shape
        tile = batch.tiles.dense
        positions_T = batch.positions_SR.flatten()
        embedded = rms_norm(weights.embed_VH[batch.tokens_SR.flatten()].to(self.dtype), weights.input_norm_H, eps)
        normed = rms_norm(hidden_TH, weights.hidden_norm_H, eps)
        q = qkv_rope_write(
            torch.cat((embedded, normed), dim=-1),
            norm_C=None,
            eps=eps,
            qkv_NC=weights.qkv_NH,
            bias_N=None,
            cos_TD=self._rope.cos[positions_T],
            sin_TD=self._rope.sin[positions_T],
            k_cache_PBGD=cache.k,
            v_cache_PBGD=cache.v,
            slots_T=write_slots(batch.tables.full, batch.positions_SR, batch.live_SR, cache.k.shape[1]),
            tile=tile,
        )
        attn = attend(
            q.unflatten(0, (num_seqs, num_rows)),
            k_cache_PBGD=cache.k,
            v_cache_PBGD=cache.v,
            table_SP=batch.tables.full,
            positions_SR=batch.positions_SR,
            sinks_Q=None,
            window=None,
            max_length=batch.max_length,
            tile=tile,
            first_key=1,  # the first pair stands at position 1
        )
        residual = normed if config.norm_before_residual else hidden_TH
        residual = residual + linear(attn.flatten(0, 1).flatten(1), weights.o_HN, None, tile=tile)
        gate, up = linear(rms_norm(residual, weights.post_norm_H, eps), weights.gate_up_IH, None, tile=tile).chunk(
            2, dim=-1
        )
        return residual + linear(F.silu(gate) * up, weights.down_HI, None, tile=tile)

    def recur(self, hidden_TH: Tensor) -> Tensor:
        """What the next step takes for a_t: the output itself, or its norm where the head says `norm_output`."""
        if self.config.norm_output:
            return rms_norm(hidden_TH, self.weights.norm_H, self.config.rms_norm_eps)
        return hidden_TH

    def logits(self, hidden_TH: Tensor, tiles: Tiles) -> Tensor:
        """fp32 [T, Vd] over the draft vocabulary."""
        return head(
            hidden_TH,
            norm_H=self.weights.norm_H,
            eps=self.config.rms_norm_eps,
            lm_head_VH=self.weights.lm_head_VH,
            tile=tiles.dense,
        )
