"""Sizes, in bytes and from shapes alone, of what a target needs besides its weights to read a prompt."""

from __future__ import annotations

import torch

from eyas.model.config import GptOssConfig

__all__ = ["chunk_bytes", "expert_bytes", "layer_page_bytes"]


def chunk_bytes(
    target: GptOssConfig, num_rows: int, dtype: torch.dtype, *, tap_width: int = 0, reader_row_bytes: int = 0
) -> int:
    """Return the bytes in use while `num_rows` of a prompt are computed: matrix inputs in `dtype`, residuals in fp32.

    `tap_width` elements of a row are tapped; what reads them afterwards needs `reader_row_bytes` for each row. The peak
    is at the end of a layer's experts or of the reader's gated matrices; the allocator's blocks do not fit it exactly,
    so half as much again is counted. Measured on an H200 for 8,192 rows of gpt-oss-120b with its head: tensors of
    1.16 GB, blocks of 2.1 GB at worst.
    """
    size, attended = dtype.itemsize, target.num_heads * target.head_dim
    hidden, inner = target.hidden_size, target.experts_per_token * (target.intermediate_size + target.hidden_size)
    of_target = (8 + 3 * size) * hidden + size * (inner + attended)
    of_target += 4 * tap_width
    return num_rows * max(of_target, reader_row_bytes) * 3 // 2


def layer_page_bytes(target: GptOssConfig, page_size: int, dtype: torch.dtype, *, in_fp8: bool = False) -> int:
    """Return the bytes of one page of keys and values of one layer; in 8 bits each of a token and head has a scale."""
    of_head = target.head_dim + 1 if in_fp8 else target.head_dim * dtype.itemsize
    return 2 * page_size * target.num_kv_heads * of_head


def expert_bytes(target: GptOssConfig, dtype: torch.dtype) -> int:
    """Return the bytes of all experts, dequantised to `dtype`."""
    one = 3 * target.hidden_size * target.intermediate_size * dtype.itemsize
    return target.num_layers * target.num_experts * one
