"""Attention of a head's rows by kernels: the same as `attention.py`, whose plain operations are their twin.

Keys that every row of a pass sees form a rectangle, which a library's attention may do fastest. Our kernels go on from
its output and log-sum-exp: documents that begin in the pass, the keys up to each row's own, the keys of later depths.
The backward passes of both take the output and log-sum-exp of the whole softmax.

Shape letters: R rows of a pass, G key-value heads, Q query heads for each of them, D head dimension.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from eyas.kernels.training.attention import Begun, RowList, attention_backward, attention_forward
from eyas.kernels.training.library import Library
from eyas.train.heads.attention import Prefix

__all__ = ["PassRows", "attend_by_kernels", "pass_rows"]

MIN_ROWS, MIN_KEYS = 512, 2048  # of a rectangle that is worth a launch of its own
GRAIN = 1024  # keys: a library that plans by shape then plans few of them


class PassRows(NamedTuple):
    """Rows of a pass. The first `num_begun` see the rectangle of keys first:split, and no row sees them otherwise."""

    rows: RowList
    first: int
    split: int
    stop: int  # behind the last key that some row sees
    num_begun: int


def pass_rows(rows_R: Tensor, places: Sequence[int], starts: Sequence[int], *, has_library: bool) -> PassRows:
    """Describe ascending rows of a batch; `places` are those of `rows_R` on the host, `starts` its documents'."""
    number = bisect_right(starts, places[0]) - 1
    first, stop = starts[number], starts[number + 1]
    num_begun = bisect_left(places, stop)
    edges = torch.tensor(starts, device=rows_R.device)
    low_R = edges[torch.searchsorted(edges, rows_R, right=True) - 1]
    split = first + (places[0] + 1 - first) // GRAIN * GRAIN
    if not has_library or num_begun < MIN_ROWS or split - first < MIN_KEYS:
        split, num_begun = first, 0
    return PassRows(RowList(rows_R, low_R.clamp(min=split)), first, split, places[-1] + 1, num_begun)


def attend_by_kernels(
    q_RGQD: Tensor, prefix: Prefix, rows: PassRows, own: Sequence[tuple[Tensor, Tensor]], library: Library | None
) -> Tensor:
    """Return attention [R, G, Q, D] over `prefix` and each row's `own` keys and values, pairs of [R, G, D].

    Gradients flow to q and to `own`; those of the prefix are added to its sums.
    """
    flat = [x for pair in own for x in pair]
    out: Tensor = _KernelAttention.apply(q_RGQD, prefix, rows, library, *flat)  # type: ignore[no-untyped-call]
    return out


class _KernelAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q_RGQD: Tensor, prefix: Prefix, places: PassRows, library: Library | None, *own: Tensor
    ) -> Tensor:
        q = q_RGQD.contiguous()
        begun, ctx.rest = None, None
        if places.num_begun and library is not None:
            keys = slice(places.first, places.split)
            some = q[: places.num_begun]
            begun_out, begun_lse, ctx.rest = library.forward(some, prefix.keys_TGD[keys], prefix.values_TGD[keys])
            begun = Begun(begun_out.contiguous(), begun_lse.contiguous())
        out, lse = attention_forward(q, prefix.keys_TGD, prefix.values_TGD, places.rows, *_stacked(q, own), begun)
        ctx.save_for_backward(q, out, lse, *own)
        ctx.prefix, ctx.places, ctx.library = prefix, places, library
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, out, lse, *own = ctx.saved_tensors
        d_out = grads[0].contiguous()
        prefix: Prefix = ctx.prefix
        places: PassRows = ctx.places
        begun = None
        if places.num_begun:
            keys, some = slice(places.first, places.split), slice(places.num_begun)
            begun, d_keys, d_values = ctx.library.backward(
                d_out[some], q[some], prefix.keys_TGD[keys], prefix.values_TGD[keys], out[some], lse[some], ctx.rest
            )
            begun = begun.contiguous()
            prefix.key_grads_TGD[keys] += d_keys
            prefix.value_grads_TGD[keys] += d_values
        own_keys, own_values = _stacked(q, own)
        found = attention_backward(
            d_out, q, out, lse, *prefix, places.rows, own_keys, own_values,
            first_key=places.split, last_key=places.stop, begun_NGQD=begun,
        )  # fmt: skip
        pairs = zip(found.own_keys_JRGD.unbind(), found.own_values_JRGD.unbind(), strict=True)
        return found.q_RGQD, None, None, None, *(x for pair in pairs for x in pair)


def _stacked(q_RGQD: Tensor, own: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return own keys and own values, each [J, R, G, D]."""
    if own:
        return torch.stack(list(own[::2])), torch.stack(list(own[1::2]))
    none = q_RGQD.new_empty(0, len(q_RGQD), q_RGQD.shape[1], q_RGQD.shape[3])
    return none, none
