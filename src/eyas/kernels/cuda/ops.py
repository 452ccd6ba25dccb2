"""The operations of generated rows as CUDA kernels: short launches that follow each other by programmatic dependence.

Implements `kernels.reference.layers.ops.Ops` for bf16. Dense matrices are `BlockedMatrix`, experts `PackedExperts`. One
object serves one stream: it holds what the blocks of a launch share.
"""

from __future__ import annotations

import torch
from torch import Tensor

from eyas.kernels.cuda import norm
from eyas.kernels.cuda.attention import attend, attend_plan
from eyas.kernels.cuda.dense import linear
from eyas.kernels.cuda.moe import moe
from eyas.kernels.layouts.dense import BlockedMatrix
from eyas.kernels.layouts.mxfp4 import PackedExperts
from eyas.kernels.reference.layers.norm import Normed
from eyas.kernels.reference.layers.ops import LayerCache, Product, RopeTable, Rows

__all__ = ["DecodeOps"]


class DecodeOps:
    def __init__(
        self,
        device: torch.device,
        *,
        max_rows: int,
        hidden_size: int,
        intermediate_size: int,
        top_k: int,
    ) -> None:
        """Allocate. `max_rows` bounds the rows of a launch that go to experts."""
        self._attend = attend.attend_workspace(device)
        self._linear = linear.Workspace(device)
        self._moe = moe.Workspace(min(moe.MAX_ROWS, max_rows), top_k, hidden_size, intermediate_size, device)

    def plan(self, rows: Rows, *, num_heads: int, num_kv_heads: int, in_fp8: bool = False) -> Rows:
        limits = self._attend.limits
        return rows._replace(plan=attend_plan.plan(rows, num_heads, num_kv_heads, limits, in_fp8=in_fp8))

    def embed(self, tokens_T: Tensor, embed_VH: Tensor, norm_H: Tensor) -> tuple[Tensor, Normed]:
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

    def project(self, x: Normed | Tensor, weight_NK: BlockedMatrix) -> Product:
        sums = x.square_sums_TP if isinstance(x, Normed) else None
        return Product(linear.project(x, weight_NK), sums, weight_NK.num_columns)

    def attend(
        self,
        qkv: Product,
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
        return attend.attend(
            qkv,
            rows,
            cache,
            rope,
            eps=eps,
            bias_N=bias_N,
            sinks_Q=sinks_Q,
            window=window,
            first_key=first_key,
            workspace=self._attend,
        )

    def attend_block(
        self,
        qkv: Product,
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
        self, qkv: Product, rows: Rows, cache: LayerCache, rope: RopeTable, *, eps: float, bias_N: Tensor | None
    ) -> None:
        # The kernel does both. Only a head that keeps up while others draft asks for less, seldom.
        self.attend(qkv, rows, cache, rope, eps=eps, bias_N=bias_N, sinks_Q=None, window=None)

    def add(
        self, x_TK: Tensor, weight_HK: BlockedMatrix, bias_H: Tensor | None, residual_TH: Tensor, norm_H: Tensor
    ) -> tuple[Tensor, Normed]:
        return linear.add(x_TK, weight_HK, bias_H, residual_TH.float().contiguous(), norm_H, self._linear)

    def router(self, normed: Normed, weight_EH: BlockedMatrix, bias_E: Tensor, eps: float) -> Tensor:
        return linear.router(normed, weight_EH, bias_E, eps)

    def moe_up(
        self,
        normed: Normed,
        logits_TE: Tensor,
        live_T: Tensor,
        gate_up: PackedExperts,
        bias_EN: Tensor,
        *,
        top_k: int,
        limit: float,
        eps: float,
    ) -> moe.Activations:
        return moe.moe_up(normed, gate_up, bias_EN, top_k=top_k, limit=limit, eps=eps)

    def moe_down(
        self,
        activations: moe.Activations,
        logits_TE: Tensor,
        live_T: Tensor,
        down: PackedExperts,
        bias_EH: Tensor,
        residual_TH: Tensor,
        norm_H: Tensor,
    ) -> tuple[Tensor, Normed]:
        return moe.moe_down(activations, logits_TE, live_T, down, bias_EH, residual_TH, norm_H, self._moe)

    def logits(self, normed: Normed, lm_head_VH: BlockedMatrix, eps: float, out: Tensor | None = None) -> Tensor:
        return linear.logits(normed, lm_head_VH, eps, out=out)

    def linear(self, x_TK: Tensor, weight_NK: BlockedMatrix) -> Tensor:
        return linear.linear(x_TK, weight_NK, self._linear)

    def gated(self, normed: Normed, gate_up_IH: BlockedMatrix, eps: float) -> Tensor:
        return linear.gated(normed, gate_up_IH, eps)
