"""Attention of a head in training: all rows up to its own at depth 0, later depths of its own row alone.

    softmax([q_j . k_0[0..r] | q_j . k_1[r] | ... | q_j . k_j[r]])

Two softmaxes, one over the keys of depth 0 by blocks and one over the row's own keys, are merged by their log-sum-exp.
The backward pass is closed: with P = exp(S - lse) of the *merged* log-sum-exp and delta = out . d_out of the *merged*
output, dS = P (d_out V^T - delta) holds for every key, wherever it lies. Gradients of depth 0's keys and values are
summed over all rows and depths in fp32 or wider, in place, and leave by no edge of the graph.

Sources: Dao, "FlashAttention-2", 2023; the merge as in sgl-project/SpecForge's `fa` attention and TorchSpec.

Shape letters: T tokens of a batch, R rows of a pass, B rows of a block, S keys of a block, G key-value heads, Q query
heads for each of them, D head dimension, J the row's own keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from eyas.train.heads.numerics import wide

__all__ = ["Prefix", "RowBlock", "attend", "joined_blocks", "joined_sizes", "row_blocks"]

QUERIES, KEYS = 256, 2048  # most rows and keys of a block
# The same of documents that share one, with 64 heads: on a GPU, launching a block costs more than hidden scores do.
JOINED_QUERIES, JOINED_KEYS = 512, 1024
FEW_HEADS = 16  # up to here both are doubled, for as many scores


class RowBlock(NamedTuple):
    """Rows start:stop of a pass, whose keys of depth 0 are first:last of the batch.

    They are of one document, or of several whole ones, `is_joined`, of which each row sees its own only.
    """

    start: int
    stop: int
    first: int
    last: int
    is_joined: bool = False


class Prefix(NamedTuple):
    """Keys and values of depth 0 for a whole batch [T, G, D], and the sums of their gradients."""

    keys_TGD: Tensor
    values_TGD: Tensor
    key_grads_TGD: Tensor
    value_grads_TGD: Tensor


def row_blocks(rows_R: Sequence[int], starts: Sequence[int], size: int = QUERIES) -> list[RowBlock]:
    """Cut ascending rows of a batch into blocks of at most `size` rows, each within one document."""
    blocks: list[RowBlock] = []
    document = 0
    begin = 0
    for at, row in enumerate(rows_R):
        new = row >= starts[document + 1]
        if at > begin and (new or at - begin == size):
            blocks.append(RowBlock(begin, at, starts[document], rows_R[at - 1] + 1))
            begin = at
        while row >= starts[document + 1]:
            document += 1
    if len(rows_R) > begin:
        blocks.append(RowBlock(begin, len(rows_R), starts[document], rows_R[-1] + 1))
    return blocks


def joined_sizes(num_heads: int) -> tuple[int, int]:
    """Return the most rows and keys of a joined block on a GPU."""
    factor = 2 if num_heads <= FEW_HEADS else 1
    return factor * JOINED_QUERIES, factor * JOINED_KEYS


def joined_blocks(blocks: Sequence[RowBlock], max_rows: int, max_keys: int) -> list[RowBlock]:
    """Join neighbouring blocks while they have no more rows and keys together; others stay as they are.

    The first keys of a block have to be seen by all of its rows, or it must not have more keys than `attend` takes at a
    time: so `max_keys` is at most its `keys_of_block`.
    """
    joined: list[RowBlock] = []
    for block in blocks:
        before = joined[-1] if joined else block
        if before is not block and block.stop - before.start <= max_rows and block.last - before.first <= max_keys:
            joined[-1] = RowBlock(before.start, block.stop, before.first, block.last, is_joined=True)
        else:
            joined.append(block)
    return joined


def attend(
    q_RGQD: Tensor,
    prefix: Prefix,
    rows_R: Tensor,
    blocks: Sequence[RowBlock],
    own: Sequence[tuple[Tensor, Tensor]],
    *,
    starts_R: Tensor | None = None,
    keys_of_block: int = KEYS,
) -> Tensor:
    """Return attention [R, G, Q, D] over `prefix` and each row's `own` keys and values, pairs of [R, G, D].

    Joined blocks need `starts_R`, the first row of each row's document. Gradients flow to q and to `own`; those of the
    prefix are added to its sums.
    """
    flat = [x for pair in own for x in pair]
    rows = _Rows(rows_R, starts_R)
    out: Tensor = _Attention.apply(q_RGQD, prefix, rows, blocks, keys_of_block, *flat)  # type: ignore[no-untyped-call]
    return out


class _Rows(NamedTuple):
    """Places of rows in the batch, and the first rows of their documents."""

    at: Tensor
    starts: Tensor | None

    def of(self, block: RowBlock) -> _Rows:
        """Return the rows of a block; the starts only where they tell something."""
        rows = slice(block.start, block.stop)
        if not block.is_joined:
            return _Rows(self.at[rows], None)
        assert self.starts is not None
        return _Rows(self.at[rows], self.starts[rows])


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q_RGQD: Tensor, prefix: Prefix, places: _Rows, blocks: Sequence[RowBlock], size: int, *own: Tensor
    ) -> Tensor:
        q = wide(q_RGQD) / sqrt(q_RGQD.shape[-1])
        out_RGQD = torch.empty_like(q)
        lse_RGQ = torch.empty_like(q[..., 0])
        for block in blocks:
            rows = slice(block.start, block.stop)
            out_RGQD[rows], lse_RGQ[rows] = _over_prefix(q[rows], prefix, places.of(block), block, size)
        if own:
            scores_RJGQ = _dots(q, own[::2])
            own_lse_RGQ = scores_RJGQ.logsumexp(1)
            merged_RGQ = torch.logaddexp(lse_RGQ, own_lse_RGQ)
            out_RGQD *= (lse_RGQ - merged_RGQ).exp()[..., None]
            _add_weighted(out_RGQD, (scores_RJGQ - merged_RGQ[:, None]).exp(), own[1::2])
            lse_RGQ = merged_RGQ
        out = out_RGQD.to(q_RGQD.dtype)
        ctx.save_for_backward(q_RGQD, out, lse_RGQ, *own)
        ctx.prefix, ctx.places, ctx.blocks, ctx.size = prefix, places, blocks, size
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q_RGQD, out_RGQD, lse_RGQ, *own = ctx.saved_tensors
        scale = 1 / sqrt(q_RGQD.shape[-1])
        q, d_out = wide(q_RGQD) * scale, wide(grads[0])
        delta_RGQ = (d_out * wide(out_RGQD)).sum(-1)
        d_q = torch.zeros_like(q)
        for block in ctx.blocks:
            rows = slice(block.start, block.stop)
            d_q[rows] = _prefix_backward(
                q[rows], d_out[rows], delta_RGQ[rows], lse_RGQ[rows], ctx.prefix, ctx.places.of(block), block, ctx.size
            )
        d_own: list[Tensor] = []
        if own:
            p_RJGQ = (_dots(q, own[::2]) - lse_RGQ[:, None]).exp()
            d_scores_RJGQ = p_RJGQ * (_dots(d_out, own[1::2]) - delta_RGQ[:, None])
            _add_weighted(d_q, d_scores_RJGQ, own[::2])
            for j in range(len(own) // 2):
                d_own.append(_sum_weighted(d_scores_RJGQ[:, j], q).to(own[0].dtype))
                d_own.append(_sum_weighted(p_RJGQ[:, j], d_out).to(own[0].dtype))
        return ((d_q * scale).to(q_RGQD.dtype), None, None, None, None, *d_own)


def _dots(x_RGQD: Tensor, keys: Sequence[Tensor]) -> Tensor:
    """Return the products of each row with its own keys, [R, J, G, Q] of J times [R, G, D]."""
    return torch.stack([(x_RGQD * wide(key_RGD)[:, :, None]).sum(-1) for key_RGD in keys], dim=1)


def _add_weighted(to_RGQD: Tensor, weights_RJGQ: Tensor, values: Sequence[Tensor]) -> None:
    for j, value_RGD in enumerate(values):
        to_RGQD.addcmul_(weights_RJGQ[:, j, :, :, None], wide(value_RGD)[:, :, None])


def _sum_weighted(weights_RGQ: Tensor, x_RGQD: Tensor) -> Tensor:
    total: Tensor = (weights_RGQ[..., None] * x_RGQD).sum(2)
    return total


def _by_head(x_BGQD: Tensor) -> Tensor:
    """Return [G, B Q, D]."""
    return x_BGQD.transpose(0, 1).flatten(1, 2)


def _by_row(x: Tensor, num_rows: int) -> Tensor:
    """Return [B, G, Q, ...] of [G, B Q, ...]."""
    return x.view(len(x), num_rows, -1, *x.shape[2:]).transpose(0, 1)


def _scores(q: Tensor, keys_SGD: Tensor, rows_B: _Rows, first: int) -> Tensor:
    """Return scores [G, B Q, S], -inf at keys behind the query's row or of other documents. q [G, B Q, D] is scaled."""
    scores = q @ keys_SGD.permute(1, 2, 0)
    at_S = torch.arange(first, first + len(keys_SGD), device=q.device)
    hidden_BS = at_S > rows_B.at[:, None]
    if rows_B.starts is not None:
        hidden_BS |= at_S < rows_B.starts[:, None]
    scores.unflatten(1, (len(rows_B.at), -1)).masked_fill_(hidden_BS[:, None], -torch.inf)
    return scores


def _over_prefix(q_BGQD: Tensor, prefix: Prefix, rows_B: _Rows, block: RowBlock, size: int) -> tuple[Tensor, Tensor]:
    """Return attention of a block over its keys of depth 0 and its log-sum-exp, [B, G, Q, D] and [B, G, Q]."""
    q = _by_head(q_BGQD)
    out = torch.zeros_like(q)
    lse = torch.full_like(q[..., 0], -torch.inf)
    for first in range(block.first, block.last, size):
        keys = slice(first, min(first + size, block.last))
        scores = _scores(q, wide(prefix.keys_TGD[keys]), rows_B, first)
        merged = torch.logaddexp(
            lse, scores.logsumexp(-1)
        )  # finite: every row sees a key here, or saw one in the first block
        p = scores.sub_(merged[..., None]).exp_()
        out = torch.baddbmm(out * (lse - merged).exp()[..., None], p, wide(prefix.values_TGD[keys]).transpose(0, 1))
        lse = merged
    return _by_row(out, len(rows_B.at)), _by_row(lse, len(rows_B.at))


def _prefix_backward(
    q_BGQD: Tensor,
    d_out_BGQD: Tensor,
    delta_BGQ: Tensor,
    lse_BGQ: Tensor,
    prefix: Prefix,
    rows_B: _Rows,
    block: RowBlock,
    size: int,
) -> Tensor:
    """Add a block's part of the prefix's gradients, and return the gradient of its scaled queries."""
    q, d_out = _by_head(q_BGQD), _by_head(d_out_BGQD)
    delta, lse = (x.transpose(0, 1).flatten(1)[..., None] for x in (delta_BGQ, lse_BGQ))
    d_q = torch.zeros_like(q)
    for first in range(block.first, block.last, size):
        keys = slice(first, min(first + size, block.last))
        keys_SGD, values_SGD = wide(prefix.keys_TGD[keys]), wide(prefix.values_TGD[keys])
        p = _scores(q, keys_SGD, rows_B, first).sub_(lse).exp_()
        prefix.value_grads_TGD[keys] += (p.transpose(1, 2) @ d_out).transpose(0, 1)
        d_scores = (d_out @ values_SGD.permute(1, 2, 0)).sub_(delta).mul_(p)
        prefix.key_grads_TGD[keys] += (d_scores.transpose(1, 2) @ q).transpose(0, 1)
        d_q.baddbmm_(d_scores, keys_SGD.transpose(0, 1))
    return _by_row(d_q, len(rows_B.at))
