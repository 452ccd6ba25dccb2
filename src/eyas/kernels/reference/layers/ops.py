"""The operations that the networks are written over. Implementations: plain PyTorch, and kernels for rows of one role.

A set of operations belongs to a role: generated rows, or rows of prompts. Within it a row's bits depend on the row
alone, never on the number of rows. Matrices have the form into which the set packs them.

Shape letters: T rows, H hidden, N features out, K features in, S sequences, R rows a sequence (T = S R), Q query heads,
G key/value heads, D head dimension, E experts, I intermediate, V vocabulary, P positions or parts.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from eyas.kernels.reference.layers.norm import Normed

__all__ = ["Choice", "LayerCache", "Matrix", "Ops", "Product", "Qkv", "RopeTable", "Rows"]

Matrix = Any  # a [N, K] matrix, or a stack of them, in the form of the set of operations
# What one operation leaves to the next, in the set's own form.
Qkv = Any  # queries, keys and values still to be finished
Choice = Any  # the router's word on experts
Activations = Any  # of the chosen experts, by rank


class Product(NamedTuple):
    """An unfinished matrix product: the slices are to be added in order, then scaled by the rows' norm if any.

    `square_sums_TP` is that of the `Normed` rows, None for rows that were normed whole.
    """

    slices_STN: Tensor  # fp32 or the compute dtype
    square_sums_TP: Tensor | None
    width: int  # of the rows, over which the squares are averaged


class RopeTable(NamedTuple):
    """Cosines and sines fp32 [positions, D / 2], the attention factor multiplied into both."""

    cos: Tensor
    sin: Tensor


class LayerCache(NamedTuple):
    """Keys and values of one layer, [pages, G, page size, D] each: those of a head in a page lie side by side.

    Page 0 takes what plain and prompt operations write for dead rows; the decode kernel writes nothing for them.
    With scales both are e4m3 in bytes; of a page and head, those of its keys stand before those of its values
    (`kernels.layouts.fp8_cache`).
    """

    k: Tensor
    v: Tensor
    scales_PG2B: Tensor | None = None  # bytes [pages, G, 2, page size]

    @classmethod
    def zeros(
        cls, shape: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device, *, in_fp8: bool = False
    ) -> LayerCache:
        """Allocate for [pages, G, page size, D]."""
        k, v = (torch.zeros(shape, dtype=torch.uint8 if in_fp8 else dtype, device=device) for _ in range(2))
        num_pages, num_kv, page_size, _ = shape
        scales = torch.zeros(num_pages, num_kv, 2, page_size, dtype=torch.uint8, device=device) if in_fp8 else None
        return cls(k, v, scales)

    @property
    def page_size(self) -> int:
        return self.k.shape[2]

    @property
    def in_fp8(self) -> bool:
        return self.scales_PG2B is not None

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All that a page has, by page."""
        return (self.k, self.v) if self.scales_PG2B is None else (self.k, self.v, self.scales_PG2B)


class Rows(NamedTuple):
    """Places of the rows: R consecutive positions of each of S sequences, and the pages of one group.

    Positions of dead rows may be negative: before the start of a sequence that is shorter than R. Where the lengths
    differ much, `max_lengths` bounds each sequence's own, so that plain operations do not attend to all S longest.
    """

    positions_SR: Tensor  # int64
    live_SR: Tensor  # bool
    table_SP: Tensor  # int64
    max_length: int  # above every position, known to the host
    max_lengths: tuple[int, ...] | None = None
    plan: Any = None  # of `Ops.plan`


class Ops(Protocol):
    def plan(self, rows: Rows, /, *, num_heads: int, num_kv_heads: int, in_fp8: bool = False) -> Rows:
        """Prepare the rows of a pass for `attend` and `write` in its layers without a window, with their heads.

        `in_fp8` says that the caches of those layers are in 8 bits.

        Once a pass, before its `embed` or `pair`: kernels count on an operation between this and `attend`.
        """

    def embed(self, tokens_T: Tensor, embed_VH: Tensor, norm_H: Tensor) -> tuple[Tensor, Normed]:
        """The residual stream fp32 [T, H] of `tokens_T`, and its norm for the first product."""

    def pair(
        self,
        tokens_T: Tensor,
        embed_VH: Tensor,
        embed_norm_H: Tensor,
        hidden_TH: Tensor,
        hidden_norm_H: Tensor,
        eps: float,
    ) -> tuple[Tensor, Tensor]:
        """A draft head's input [T, 2 H], normed embeddings, then normed hidden states; and the latter alone."""

    def project(self, x: Normed | Tensor, weight_NK: Matrix) -> Qkv:
        """Queries, keys and values of rows, for `attend` to finish. A plain tensor is normed already."""

    def attend(
        self,
        qkv: Qkv,
        rows: Rows,
        cache: LayerCache,
        rope: RopeTable,
        /,
        *,
        eps: float,
        bias_N: Tensor | None,
        sinks_Q: Tensor | None,
        window: int | None,
        first_key: int = 0,
    ) -> Tensor:
        """Rotate, write keys and values, attend: [T, Q D]. See `rope_write.py` and `attend.py`."""

    def attend_block(
        self,
        qkv: Qkv,
        rows: Rows,
        cache: LayerCache,
        rope: RopeTable,
        /,
        *,
        eps: float,
        bias_N: Tensor | None,
        is_causal: bool = False,
    ) -> Tensor:
        """Rotate and attend as [T, Q D], leaving no keys: rows see one another. See `attend_block.py`."""

    def write(
        self, qkv: Qkv, rows: Rows, cache: LayerCache, rope: RopeTable, /, *, eps: float, bias_N: Tensor | None
    ) -> None:
        """The rows' keys and values alone, as `attend` writes them."""

    def add(
        self, x_TK: Tensor, weight_HK: Matrix, bias_H: Tensor | None, residual_TH: Tensor, norm_H: Tensor
    ) -> tuple[Tensor, Normed]:
        """Compute residual + W x + b, and the norm that follows."""

    def router(self, normed: Normed, weight_EH: Matrix, bias_E: Tensor, eps: float) -> Choice:
        """Logits fp32 [T, E] of the experts, or what leads to them."""

    def moe_up(
        self,
        normed: Normed,
        choice: Choice,
        live_T: Tensor,
        gate_up: Matrix,
        bias_EN: Tensor,
        /,
        *,
        top_k: int,
        limit: float,
        eps: float,
    ) -> Activations:
        """Return [T, k, I] of the top k experts of each live row, by rank."""

    def moe_down(
        self,
        act: Activations,
        choice: Choice,
        live_T: Tensor,
        down: Matrix,
        bias_EH: Tensor,
        residual_TH: Tensor,
        norm_H: Tensor,
        /,
    ) -> tuple[Tensor, Normed]:
        """residual + the experts' outputs weighted by a softmax over the top k, added by rank; and the next norm."""

    def logits(self, normed: Normed, lm_head_VH: Matrix, eps: float, out: Tensor | None = None) -> Tensor:
        """Return the logits, fp32 [T, V], in `out` where it is given."""

    def linear(self, x_TK: Tensor, weight_NK: Matrix) -> Tensor:
        """Compute W x in the compute dtype."""

    def gated(self, normed: Normed, gate_up_IH: Matrix, eps: float) -> Tensor:
        """Compute silu(gate) * up: [T, I] of a matrix with all gate rows before all up rows."""
