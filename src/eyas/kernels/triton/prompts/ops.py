"""The operations of prompt rows in Triton: consecutive rows of sequences, in chunks that start at multiples of 64.

Implements `kernels.reference.layers.ops.Ops` for bf16. Dense matrices are `BlockedMatrix`, experts `PackedExperts`.
What one operation leaves to the next is held back until its launch has all that it fuses.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from eyas.kernels.layouts.dense import BlockedMatrix
from eyas.kernels.layouts.mxfp4 import PackedExperts
from eyas.kernels.reference.layers.norm import Normed
from eyas.kernels.reference.layers.ops import LayerCache, RopeTable, Rows
from eyas.kernels.triton.prompts import experts, flash, gemm, norm, qkv, route

__all__ = ["ExpertProducts", "FullAttention", "PromptOps", "RoutedRows", "TritonProducts", "Unprojected", "Unrouted"]


class Unprojected(NamedTuple):
    """Rows whose queries, keys and values `attend` computes."""

    x: Normed | Tensor
    weight: BlockedMatrix


class Unrouted(NamedTuple):
    """Rows whose experts `moe_up` picks."""

    weight: BlockedMatrix
    bias_E: Tensor


class ExpertProducts(Protocol):
    """Both products of the experts, of rows that were routed. `up` returns what `down` takes."""

    def up(
        self, x_TH: Tensor, routing: route.Routing, gate_up: PackedExperts, bias_EN: Tensor, *, limit: float
    ) -> Any: ...

    def down(self, act: Any, routing: route.Routing, matrix: PackedExperts, bias_EH: Tensor) -> Tensor:
        """Return outputs [T * k, H] of the live pairs, not yet weighted."""
        ...


class TritonProducts:
    def up(
        self, x_TH: Tensor, routing: route.Routing, gate_up: PackedExperts, bias_EN: Tensor, *, limit: float
    ) -> tuple[Tensor, route.Groups]:
        tile_rows = experts.expert_tile_rows(routing.ids_TK.numel(), gate_up.num_experts)
        groups = route.group(x_TH, routing, tile_rows)
        return experts.experts_up(routing, groups, gate_up, bias_EN, limit=limit), groups

    def down(
        self, act: tuple[Tensor, route.Groups], routing: route.Routing, matrix: PackedExperts, bias_EH: Tensor
    ) -> Tensor:
        act_PI, groups = act
        return experts.experts_down(act_PI, routing, groups, matrix, bias_EH)


class FullAttention(Protocol):
    """Attention without a window, after which it is `flash.flash_attend`'s turn where it returned None."""

    def __call__(self, q_TQD: Tensor, rows: Rows, cache: LayerCache, *, sinks_Q: Tensor | None) -> Tensor | None: ...


class RoutedRows(NamedTuple):
    """Rows behind `ExpertProducts.up`, and where they belong."""

    act: Any
    routing: route.Routing


class PromptOps:
    def __init__(self, products: ExpertProducts | None = None, full_attention: FullAttention | None = None) -> None:
        """Take what replaces Triton's kernels. An engine has one kind for all passes, as their bits differ."""
        self._products = products or TritonProducts()
        self._full_attention = full_attention
        self._tally: route.Tally | None = None  # zeros, between the experts of two layers of a pass

    def plan(self, rows: Rows, *, num_heads: int, num_kv_heads: int, in_fp8: bool = False) -> Rows:
        return rows

    def embed(self, tokens_T: Tensor, embed_VH: Tensor, norm_H: Tensor) -> tuple[Tensor, Normed]:
        self._tally = None  # a pass that is captured as a graph has its own
        return norm.embed(tokens_T, embed_VH, norm_H)

    def pair(
        self,
        tokens_T: Tensor,
        embed_VH: Tensor,
        embed_norm_H: Tensor,
        hidden_TH: Tensor,
        hidden_norm_H: Tensor,
        eps: float,
    ) -> tuple[Tensor, Tensor]:
        return norm.pair(tokens_T, embed_VH, embed_norm_H, hidden_TH, hidden_norm_H, eps)

    def project(self, x: Normed | Tensor, weight_NK: BlockedMatrix) -> Unprojected:
        return Unprojected(x, weight_NK)

    def attend(
        self,
        qkv_rows: Unprojected,
        rows: Rows,
        cache: LayerCache,
        rope: RopeTable,
        *,
        eps: float,
        bias_N: Tensor | None,
        sinks_Q: Tensor | None,
        window: int | None,
        first_key: int = 0,
    ) -> Tensor:
        q = qkv.qkv_rope_write(qkv_rows.x, qkv_rows.weight, bias_N, rows, cache, rope, eps=eps)
        if self._full_attention is not None and window is None and first_key == 0:
            out = self._full_attention(q, rows, cache, sinks_Q=sinks_Q)
            if out is not None:
                return out
        return flash.flash_attend(q, rows, cache, sinks_Q=sinks_Q, window=window, first_key=first_key)

    def attend_block(
        self,
        qkv: Unprojected,
        rows: Rows,
        cache: LayerCache,
        rope: RopeTable,
        *,
        eps: float,
        bias_N: Tensor | None,
        is_causal: bool = False,
    ) -> Tensor:
        raise NotImplementedError("these kernels have no attention of rows that see one another and leave no keys")

    def write(
        self,
        qkv_rows: Unprojected,
        rows: Rows,
        cache: LayerCache,
        rope: RopeTable,
        *,
        eps: float,
        bias_N: Tensor | None,
    ) -> None:
        qkv.qkv_rope_write(qkv_rows.x, qkv_rows.weight, bias_N, rows, cache, rope, eps=eps)

    def add(
        self, x_TK: Tensor, weight_HK: BlockedMatrix, bias_H: Tensor | None, residual_TH: Tensor, norm_H: Tensor
    ) -> tuple[Tensor, Normed]:
        return gemm.add(x_TK, weight_HK, bias_H, residual_TH, norm_H)

    def router(self, normed: Normed, weight_EH: BlockedMatrix, bias_E: Tensor, eps: float) -> Unrouted:
        return Unrouted(weight_EH, bias_E)

    def moe_up(
        self,
        normed: Normed,
        unrouted: Unrouted,
        live_T: Tensor,
        gate_up: PackedExperts,
        bias_EN: Tensor,
        *,
        top_k: int,
        limit: float,
        eps: float,
    ) -> RoutedRows:
        tally, self._tally = self._tally, None
        routing = route.route_rows(normed, live_T, unrouted.weight, unrouted.bias_E, top_k=top_k, eps=eps, tally=tally)
        return RoutedRows(self._products.up(normed.rows_TH, routing, gate_up, bias_EN, limit=limit), routing)

    def moe_down(
        self,
        rows: RoutedRows,
        unrouted: Unrouted,
        live_T: Tensor,
        down: PackedExperts,
        bias_EH: Tensor,
        residual_TH: Tensor,
        norm_H: Tensor,
    ) -> tuple[Tensor, Normed]:
        outputs = self._products.down(rows.act, rows.routing, down, bias_EH)
        self._tally = rows.routing.tally
        return experts.combine(outputs, rows.routing, residual_TH, norm_H)

    def logits(self, normed: Normed, lm_head_VH: BlockedMatrix, eps: float, out: Tensor | None = None) -> Tensor:
        product = gemm.linear(normed, lm_head_VH, eps=eps, dtype=torch.float32)
        return product if out is None else out.copy_(product)

    def linear(self, x_TK: Tensor, weight_NK: BlockedMatrix) -> Tensor:
        return gemm.linear(x_TK, weight_NK)

    def gated(self, normed: Normed, gate_up_IH: BlockedMatrix, eps: float) -> Tensor:
        return gemm.gated(normed, gate_up_IH, eps=eps)
