"""Attention of rows over a rectangle of keys that all of them see, by the libraries that torch carries.

Their backward passes take any output and log-sum-exp, so also those of a longer softmax of which these keys are a part:
they compute out . d_out and exp(S - lse) themselves. Both know grouped heads.

Shape letters: N rows, S keys, G key/value heads, Q query heads for each of them, D head dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["LIBRARIES", "PART_KEYS", "Library"]

PART_KEYS = 32768  # of a backward pass: at first it holds the gradients of keys and values for every query head

Gradients = tuple[Tensor, Tensor, Tensor]  # of q, k and v


class Library(NamedTuple):
    """`forward(q_NGQD, k_SGD, v_SGD)` returns output, log-sum-exp (fp32 [N, G, Q]) and what `backward` takes last.

    `backward(d_out, q, k, v, out, lse, rest)` returns the gradients of q, k and v.
    """

    forward: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Any]]
    backward: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Any], Gradients]


def _by_parts(backward: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Any], Gradients]) -> Any:
    """Return a backward pass that takes some keys after the other, and sums the gradient of q in fp32."""

    def by_parts(d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, rest: Any) -> Gradients:
        d_q = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
        d_keys, d_values = [], []
        for some_k, some_v in zip(k.split(PART_KEYS), v.split(PART_KEYS), strict=True):
            some_q, d_k, d_v = backward(d_out, q, some_k, some_v, out, lse, rest)
            d_q += some_q
            d_keys.append(d_k)
            d_values.append(d_v)
        return d_q.to(q.dtype), torch.cat(d_keys), torch.cat(d_values)

    return by_parts


def _flash_forward(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Any]:
    out, lse, *rest, _ = torch.ops.aten._flash_attention_forward(
        q.flatten(1, 2)[None], k[None], v[None], None, None, len(q), len(k), 0.0, False, False
    )
    return out[0].view_as(q), lse[0].T.reshape(q.shape[:3]), rest


def _flash_backward(d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, rest: Any) -> Gradients:
    by_head = lse.flatten(1).T.contiguous()
    d_q, d_k, d_v = torch.ops.aten._flash_attention_backward(
        d_out.flatten(1, 2)[None], q.flatten(1, 2)[None], k[None], v[None], out.flatten(1, 2)[None], by_head[None],
        None, None, len(q), len(k), 0.0, False, *rest,
    )  # fmt: skip
    return d_q.view(q.shape), d_k[0], d_v[0]


def _by_head(x: Tensor) -> Tensor:
    """Return [1, heads, rows, D] of [rows, ..., D], as a view."""
    return x.view(len(x), -1, x.shape[-1]).transpose(0, 1)[None]


def _cudnn_forward(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Any]:
    out, lse, cum_q, cum_k, max_q, _, *rest, _ = torch.ops.aten._scaled_dot_product_cudnn_attention(
        _by_head(q), _by_head(k), _by_head(v), None, True, 0.0, False, False
    )
    by_row = out[0].transpose(0, 1).reshape(q.shape)
    return by_row, lse.reshape(-1, len(q)).T.reshape(q.shape[:3]), (lse.shape, cum_q, cum_k, max_q, *rest)


def _cudnn_backward(d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, rest: Any) -> Gradients:
    shape, cum_q, cum_k, max_q, seed, offset = rest  # [1, heads, N, 1], in some versions of torch [1, heads, N]
    # cuDNN takes its strides for those of the forward pass: with others it fails, or reads beyond the end (9.19).
    by_head = lse.flatten(1).T.contiguous().view(shape)
    d_q, d_k, d_v = torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
        _by_head(d_out), _by_head(q), _by_head(k), _by_head(v), _by_head(out),
        by_head, seed, offset, None, cum_q, cum_k, max_q, len(k), 0.0, False,
    )  # fmt: skip
    d_q, d_k, d_v = (x[0].transpose(0, 1) for x in (d_q, d_k, d_v))
    return d_q.reshape(q.shape), d_k, d_v


LIBRARIES = {
    "flash": Library(_flash_forward, _by_parts(_flash_backward)),
    "cudnn": Library(_cudnn_forward, _by_parts(_cudnn_backward)),
}
