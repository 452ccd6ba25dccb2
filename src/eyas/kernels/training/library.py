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

__all__ = ["FLASH_KEYS", "LIBRARIES", "Library"]

# Of a backward pass of flash attention, which holds the gradients of keys and values for every query head at first.
FLASH_KEYS = 32768


class Library(NamedTuple):
    """`forward(q_NGQD, k_SGD, v_SGD)` returns output, log-sum-exp (fp32 [N, G, Q]) and what `backward` takes last.

    `backward(d_out, q, k, v, out, lse, rest)` returns the gradients of q, k and v.
    """

    forward: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Any]]
    backward: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Any], tuple[Tensor, Tensor, Tensor]]


def _flash_forward(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Any]:
    out, lse, *rest, _ = torch.ops.aten._flash_attention_forward(
        q.flatten(1, 2)[None], k[None], v[None], None, None, len(q), len(k), 0.0, False, False
    )
    return out[0].view_as(q), lse[0].T.reshape(q.shape[:3]), rest


def _flash_backward(
    d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    rows = (d_out.flatten(1, 2)[None], q.flatten(1, 2)[None])
    of_rows = (out.flatten(1, 2)[None], lse.flatten(1).T.contiguous()[None])
    d_q = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
    d_keys, d_values = [], []
    for some_k, some_v in zip(k.split(FLASH_KEYS), v.split(FLASH_KEYS), strict=True):
        some_q, d_k, d_v = torch.ops.aten._flash_attention_backward(
            *rows, some_k[None], some_v[None], *of_rows, None, None, len(q), len(some_k), 0.0, False, *rest
        )
        d_q += some_q.view(q.shape)
        d_keys.append(d_k[0])
        d_values.append(d_v[0])
    return d_q.to(q.dtype), torch.cat(d_keys), torch.cat(d_values)


def _by_head(x: Tensor) -> Tensor:
    """Return [1, heads, rows, D] of [rows, ..., D], as a view."""
    return x.view(len(x), -1, x.shape[-1]).transpose(0, 1)[None]


def _cudnn_forward(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Any]:
    out, lse, *rest, _ = torch.ops.aten._scaled_dot_product_cudnn_attention(
        _by_head(q), _by_head(k), _by_head(v), None, True, 0.0, False, False
    )
    by_row = out[0].transpose(0, 1).reshape(q.shape)
    return by_row, lse.reshape(-1, len(q)).T.reshape(q.shape[:3]), (lse.shape, *rest)


def _cudnn_backward(
    d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    shape, cum_q, cum_k, max_q, max_k, seed, offset = rest  # [1, heads, N, 1], in some versions of torch [1, heads, N]
    # cuDNN takes its strides for those of the forward pass: with others it fails, or reads beyond the end (9.19).
    by_head = lse.flatten(1).T.contiguous().view(shape)
    d_q, d_k, d_v = torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
        _by_head(d_out), _by_head(q), _by_head(k), _by_head(v), _by_head(out),
        by_head, seed, offset, None, cum_q, cum_k, max_q, max_k, 0.0, False,
    )  # fmt: skip
    d_q, d_k, d_v = (x[0].transpose(0, 1) for x in (d_q, d_k, d_v))
    return d_q.reshape(q.shape), d_k, d_v


LIBRARIES = {"flash": Library(_flash_forward, _flash_backward), "cudnn": Library(_cudnn_forward, _cudnn_backward)}
