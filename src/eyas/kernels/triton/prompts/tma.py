"""Operands of dense products that Hopper's tensor memory accelerator (TMA) copies, and the launch that takes them.

One program a multiprocessor computes tile after tile. While a tile ends, the first steps of the next one are copied.
Descriptors are parameters of a launch: a CUDA graph keeps them, and what they point to lives as long as its pool.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from eyas.kernels.layouts.dense import BlockedMatrix
from eyas.kernels.layouts.device import device_limits

__all__ = ["matrix_descriptor", "num_programs", "rows_descriptor", "takes_tma"]

MIN_ROWS = 2048  # the least of a pass that goes this way (`tools/prompt_launches.py`)


def takes_tma(num_rows: int, device: torch.device) -> bool:
    """Say whether the dense products of a pass take this way."""
    return num_rows >= MIN_ROWS and device_limits(device).has_wgmma


def num_programs(num_tiles: int, device: torch.device) -> int:
    """One a multiprocessor, at most: a program has all its shared memory and most of its registers."""
    return min(num_tiles, device_limits(device).num_sms)


def rows_descriptor(x_TK: Tensor, num_rows: int, step: int) -> TensorDescriptor:
    """Describe tiles of `num_rows` rows and `step` columns."""
    return TensorDescriptor(x_TK, list(x_TK.shape), list(x_TK.stride()), [num_rows, step])


def matrix_descriptor(
    weight: BlockedMatrix, num_features: int, step: int, *, num_blocks: int = 1, num_parts: int = 1
) -> TensorDescriptor:
    """Describe tiles of `num_features` rows of a matrix and `step` columns, for `products.streamed_product`.

    The matrix is cut into blocks, those into parts; a tile has rows of one block, equally many of each part. Its
    coordinates are the block, 0, the first row within a part, and the column.
    """
    K = weight.num_columns
    part_rows = weight.num_rows // (num_blocks * num_parts)
    return TensorDescriptor(
        _unpacked(weight),
        [num_blocks, num_parts, part_rows, K],
        [num_parts * part_rows * K, part_rows * K, K, 1],
        [1, num_parts, num_features // num_parts, step],
    )


@triton.jit
def _unpack_kernel(blocked_ptr, plain_ptr, num_blocks, BLOCKS: tl.constexpr):
    tile, block = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCKS + tl.arange(0, BLOCKS)
    inside = (block < num_blocks)[:, None, None]
    row, column = tl.arange(0, 16), tl.arange(0, 32)
    inner = row[None, :, None] * 32 + column[None, None, :]
    values = tl.load(blocked_ptr + (tile * num_blocks + block[:, None, None]) * 512 + inner, mask=inside)
    place = (tile * 16 + row[None, :, None]) * (num_blocks * 32) + block[:, None, None] * 32 + column[None, None, :]
    tl.store(plain_ptr + place, values, mask=inside)


def _unpacked(weight: BlockedMatrix) -> Tensor:
    """Copy the rows, in the order of the tiles: [N, K]. At 120b's shapes it takes 4 % of QKV's time for 8,192 rows."""
    num_tiles, num_blocks = weight.data.shape[:2]
    plain = torch.empty(weight.num_rows, weight.num_columns, dtype=weight.data.dtype, device=weight.data.device)
    _unpack_kernel[(num_tiles, triton.cdiv(num_blocks, 16))](weight.data, plain, num_blocks, BLOCKS=16, num_warps=4)
    return plain
