"""The EAGLE-3 draft head (Li et al., 2025; SafeAILab/EAGLE, eagle/model/cnets.py) in all published variants.

The hidden state a_t of the target is paired with the embedding of token x_{t+1}; the pair predicts x_{t+2}. Here the
pair stands at position t + 1, the position of its token: rotary attention sees differences only. Fed back, the head's
own output takes the place of a_t.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from eyas.kernels.reference.layers.norm import Normed, rms_norm
from eyas.kernels.reference.layers.ops import LayerCache, Ops, Qkv, Rows
from eyas.model.batch import RowBatch
from eyas.model.config import Eagle3Config
from eyas.model.networks.rope import rope_table
from eyas.model.weights import Eagle3Weights, Head

__all__ = ["Eagle3Head", "HeadOutput"]


class HeadOutput(NamedTuple):
    """The head's own hidden states [T, H], un-normed, and their norm for `logits`."""

    hidden_TH: Tensor
    normed: Normed


class Eagle3Head:
    def __init__(self, head: Head, *, max_positions: int) -> None:
        self.config: Eagle3Config = head.config
        self.weights: Eagle3Weights = head.weights
        self.dtype = self.weights.embed_VH.dtype
        self._rope = rope_table(self.config.rope, self.config.head_dim, max_positions, self.weights.embed_VH.device)

    def fuse(self, taps_TC: Tensor, ops: Ops) -> Tensor:
        """Fuse the target's tapped states [T, C] into one hidden state [T, H]; the head's own output skips this."""
        weights, eps = self.weights, self.config.rms_norm_eps
        if weights.fc_HC is None:
            return taps_TC.to(self.dtype)
        if weights.fc_norms_H:
            parts = taps_TC.chunk(len(weights.fc_norms_H), dim=-1)
            normed = [rms_norm(part, norm, eps) for part, norm in zip(parts, weights.fc_norms_H, strict=True)]
            taps_TC = torch.cat(normed, dim=-1)
        if weights.fc_input_norm_C is not None:
            taps_TC = rms_norm(taps_TC, weights.fc_input_norm_C, eps)
        return ops.linear(taps_TC.to(self.dtype), weights.fc_HC)

    def forward(
        self, batch: RowBatch, hidden_TH: Tensor, cache: LayerCache, *, wanted: slice = slice(None)
    ) -> HeadOutput:
        """Run the head on pairs of `hidden_TH` and the batch's tokens; writes their keys and values.

        The output is that of the `wanted` rows: of the others nothing but keys and values is ever used.
        """
        weights, ops, eps = self.weights, batch.ops, self.config.rms_norm_eps
        rows = self._rows(batch)
        qkv, normed_TH = self._qkv(batch, hidden_TH)
        attn = ops.attend(
            qkv,
            rows,
            cache,
            self._rope,
            eps=eps,
            bias_N=None,
            sinks_Q=None,
            window=None,
            first_key=1,  # the first pair stands at position 1
        )
        residual = (normed_TH if self.config.norm_before_residual else hidden_TH)[wanted]
        residual, normed = ops.add(attn[wanted], weights.o_HN, None, residual, weights.post_norm_H)
        act = ops.gated(normed, weights.gate_up_IH, eps)
        return HeadOutput(*ops.add(act, weights.down_HI, None, residual, weights.norm_H))

    def write(self, batch: RowBatch, hidden_TH: Tensor, cache: LayerCache) -> None:
        """Write the keys and values of `forward` alone: all that a prompt leaves in a head of one layer."""
        rows = self._rows(batch)
        qkv, _ = self._qkv(batch, hidden_TH)
        batch.ops.write(qkv, rows, cache, self._rope, eps=self.config.rms_norm_eps, bias_N=None)

    def _rows(self, batch: RowBatch) -> Rows:
        config, rows = self.config, batch.rows(batch.tables.full)
        return batch.ops.plan(rows, num_heads=config.num_heads, num_kv_heads=config.num_kv_heads)

    def _qkv(self, batch: RowBatch, hidden_TH: Tensor) -> tuple[Qkv, Tensor]:
        """The rows' queries, keys and values, and their normed hidden states."""
        weights = self.weights
        pairs, normed_TH = batch.ops.pair(
            batch.tokens_SR.flatten(),
            weights.embed_VH,
            weights.input_norm_H,
            hidden_TH,
            weights.hidden_norm_H,
            self.config.rms_norm_eps,
        )
        return batch.ops.project(pairs, weights.qkv_NH), normed_TH

    def recur(self, hidden_TH: Tensor) -> Tensor:
        """Return the next head pass's input in place of a_t: the output, or its norm if the head has `norm_output`."""
        if self.config.norm_output:
            return rms_norm(hidden_TH, self.weights.norm_H, self.config.rms_norm_eps)
        return hidden_TH

    def logits(self, normed: Normed, ops: Ops) -> Tensor:
        """Compute fp32 [T, Vd] over the draft vocabulary, of `HeadOutput.normed` or some of its rows."""
        return ops.logits(normed, self.weights.lm_head_VH, self.config.rms_norm_eps)
