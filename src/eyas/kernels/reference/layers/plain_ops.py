"""Operations in plain PyTorch, over the twins of the kernels: for CPUs, and as the reference for kernels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from eyas.kernels.reference.layers.attend import attend_ref
from eyas.kernels.reference.layers.attend_block import attend_block_ref
from eyas.kernels.reference.layers.linear import linear
from eyas.kernels.reference.layers.moe import moe_down_ref, moe_up_ref
from eyas.kernels.reference.layers.norm import Normed, inverse_rms, prepare_norm, rms_norm
from eyas.kernels.reference.layers.ops import LayerCache, Matrix, Product, RopeTable, Rows
from eyas.kernels.reference.layers.rope_write import finish, rope_write_ref, rotate, write_places
from eyas.kernels.reference.layers.router import route

__all__ = ["PlainOps"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PlainOps:
    """Plain operations; dense layers and experts take rows in tiles of these sizes; None: `F.linear`, not invariant.

    Implements `kernels.reference.layers.ops.Ops`. Matrices are tensors [N, K]; experts are indexed by number
    (`kernels.reference.layers.moe`).
    """

    dense: int | None
    experts: int | None

    def plan(self, rows: Rows, *, num_heads: int, num_kv_heads: int, in_fp8: bool = False) -> Rows:
        return rows

    def embed(self, tokens_T: Tensor, embed_VH: Tensor, norm_H: Tensor) -> tuple[Tensor, Normed]:
        rows = embed_VH[tokens_T]
        residual = rows.float()
        return residual, prepare_norm(residual, norm_H, rows.dtype)

    def pair(
        self,
        tokens_T: Tensor,
        embed_VH: Tensor,
        embed_norm_H: Tensor,
        hidden_TH: Tensor,
        hidden_norm_H: Tensor,
        eps: float,
    ) -> tuple[Tensor, Tensor]:
        embedded = rms_norm(embed_VH[tokens_T], embed_norm_H, eps)
        normed = rms_norm(hidden_TH, hidden_norm_H, eps).to(embedded.dtype)
        return torch.cat((embedded, normed), dim=-1), normed

    def project(self, x: Normed | Tensor, weight_NK: Matrix) -> Product:
        rows = x.rows_TH if isinstance(x, Normed) else x
        sums = x.square_sums_TP if isinstance(x, Normed) else None
        return Product(linear(rows, weight_NK, None, tile=self.dense).unsqueeze(0), sums, rows.shape[1])

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
        q_SRQD = _write(qkv, rows, cache, rope, bias_N, eps).unflatten(0, rows.positions_SR.shape)

        def attended(seqs: slice, max_length: int) -> Tensor:
            return attend_ref(
                q_SRQD[seqs],
                k_cache_PGBD=cache.k,
                v_cache_PGBD=cache.v,
                table_SP=rows.table_SP[seqs],
                positions_SR=rows.positions_SR[seqs],
                sinks_Q=sinks_Q,
                window=window,
                max_length=max_length,
                tile=self.dense,
                first_key=first_key,
                scales_PG2B=cache.scales_PG2B,
            )

        if rows.max_lengths is None:
            out = attended(slice(None), rows.max_length)
        else:
            out = torch.cat([attended(slice(s, s + 1), length) for s, length in enumerate(rows.max_lengths)])
        return out.flatten(0, 1).flatten(1)

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
        (_, num_kv, _, dim), shape = cache.k.shape, rows.positions_SR.shape
        positions_T = rows.positions_SR.flatten().clamp(min=0)
        qk, v = finish(qkv, bias_N, eps).unflatten(-1, (-1, dim)).tensor_split((-num_kv,), dim=1)
        q, k = rotate(qk, rope.cos[positions_T], rope.sin[positions_T]).tensor_split((-num_kv,), dim=1)
        q, k, v = (part.to(v.dtype).unflatten(0, shape) for part in (q, k, v))
        return attend_block_ref(q, k, v, rows, cache, is_causal=is_causal).flatten(0, 1).flatten(1)

    def write(
        self, qkv: Product, rows: Rows, cache: LayerCache, rope: RopeTable, *, eps: float, bias_N: Tensor | None
    ) -> None:
        _write(qkv, rows, cache, rope, bias_N, eps)

    def add(
        self, x_TK: Tensor, weight_HK: Matrix, bias_H: Tensor | None, residual_TH: Tensor, norm_H: Tensor
    ) -> tuple[Tensor, Normed]:
        residual = residual_TH.float() + linear(x_TK, weight_HK, bias_H, tile=self.dense)
        return residual, prepare_norm(residual, norm_H, x_TK.dtype)

    def router(self, normed: Normed, weight_EH: Matrix, bias_E: Tensor, eps: float) -> Tensor:
        return linear(normed.rows_TH, weight_EH, None, tile=self.dense) * inverse_rms(normed, eps) + bias_E

    def moe_up(
        self,
        normed: Normed,
        logits_TE: Tensor,
        live_T: Tensor,
        gate_up: Matrix,
        bias_EN: Tensor,
        *,
        top_k: int,
        limit: float,
        eps: float,
    ) -> Tensor:
        ids, _ = route(logits_TE, live_T, top_k)
        scale = inverse_rms(normed, eps)
        return moe_up_ref(normed.rows_TH, scale, ids, gate_up=gate_up, bias_EN=bias_EN, limit=limit, tile=self.experts)

    def moe_down(
        self,
        act_TKI: Tensor,
        logits_TE: Tensor,
        live_T: Tensor,
        down: Matrix,
        bias_EH: Tensor,
        residual_TH: Tensor,
        norm_H: Tensor,
    ) -> tuple[Tensor, Normed]:
        ids, weights = route(logits_TE, live_T, act_TKI.shape[1])
        residual = moe_down_ref(act_TKI, ids, weights, residual_TH, down=down, bias_EH=bias_EH, tile=self.experts)
        return residual, prepare_norm(residual, norm_H, act_TKI.dtype)

    def logits(self, normed: Normed, lm_head_VH: Matrix, eps: float, out: Tensor | None = None) -> Tensor:
        product = linear(normed.rows_TH, lm_head_VH, None, tile=self.dense).float()
        return torch.mul(product, inverse_rms(normed, eps), out=out)

    def linear(self, x_TK: Tensor, weight_NK: Matrix) -> Tensor:
        return linear(x_TK, weight_NK, None, tile=self.dense)

    def gated(self, normed: Normed, gate_up_IH: Matrix, eps: float) -> Tensor:
        both = linear(normed.rows_TH, gate_up_IH, None, tile=self.dense) * inverse_rms(normed, eps)
        gate, up = both.chunk(2, dim=-1)
        return (F.silu(gate) * up).to(normed.rows_TH.dtype)


def _write(qkv: Product, rows: Rows, cache: LayerCache, rope: RopeTable, bias_N: Tensor | None, eps: float) -> Tensor:
    """Write keys and values to their pages; return the rotated queries [T, Q, D]."""
    positions_T = rows.positions_SR.flatten().clamp(min=0)
    pages_T, offsets_T = write_places(rows, cache.page_size)
    return rope_write_ref(
        finish(qkv, bias_N, eps),
        cos_TD=rope.cos[positions_T],
        sin_TD=rope.sin[positions_T],
        k_cache_PGBD=cache.k,
        v_cache_PGBD=cache.v,
        pages_T=pages_T,
        offsets_T=offsets_T,
        scales_PG2B=cache.scales_PG2B,
    )
