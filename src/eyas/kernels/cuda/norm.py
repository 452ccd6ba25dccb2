"""Norms that no matrix product precedes: of embeddings and of given rows. Norm weights are fp32.

Shape letters: T rows, H hidden, V vocabulary, P = H / 16 parts of a row's square sum.
"""

from __future__ import annotations

import torch
from torch import Tensor

from eyas.kernels.cuda.compiler import load
from eyas.kernels.reference.layers.norm import Normed

__all__ = ["embed", "pair", "prepare_norm"]

PART = 16  # features
THREADS = 256
PAIR_THREADS = 512


def embed(tokens_T: Tensor, embed_VH: Tensor, norm_H: Tensor) -> tuple[Tensor, Normed]:
    """The residual stream fp32 [T, H] of int64 tokens, and its norm in the split form."""
    residual = embed_VH.new_empty(tokens_T.shape[0], embed_VH.shape[1], dtype=torch.float32)
    return residual, _prepare(residual, norm_H, tokens_T, embed_VH)


def prepare_norm(residual_TH: Tensor, norm_H: Tensor) -> Normed:
    """The split form of the norm of fp32 rows."""
    return _prepare(residual_TH, norm_H, None, None)


def pair(
    tokens_T: Tensor,
    embed_VH: Tensor,
    embed_norm_H: Tensor,
    hidden_TH: Tensor,
    hidden_norm_H: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """A draft head's input bf16 [T, 2 H], normed embeddings, then normed hidden states; and the latter in fp32."""
    rows, width = hidden_TH.shape
    out = embed_VH.new_empty(rows, 2 * width)
    alone = embed_VH.new_empty(rows, width, dtype=torch.float32)
    hidden = [hidden_TH if hidden_TH.dtype == dtype else None for dtype in (torch.float32, torch.bfloat16)]
    assert hidden_TH.is_contiguous() and any(tensor is not None for tensor in hidden)
    load("norm").kernel("pair_norms").launch(
        (2, rows), PAIR_THREADS, tokens_T, embed_VH, embed_norm_H, *hidden, hidden_norm_H, out, alone, width, eps
    )
    return out, alone


def _prepare(residual_TH: Tensor, norm_H: Tensor, tokens_T: Tensor | None, embed_VH: Tensor | None) -> Normed:
    rows, width = residual_TH.shape
    assert residual_TH.is_contiguous() and width % PART == 0
    normed = Normed(
        residual_TH.new_empty(rows, width, dtype=torch.bfloat16), residual_TH.new_empty(rows, width // PART)
    )
    load("norm").kernel("prepare_norm").launch(
        (-(-width // THREADS), rows),
        THREADS,
        tokens_T,
        embed_VH,
        residual_TH,
        norm_H,
        residual_TH,
        *normed,
        width,
    )
    return normed
