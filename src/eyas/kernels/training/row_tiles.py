"""Tiles of listed rows, and the blocks of keys that they see: what forward and backward kernels of attention share."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["LOG2_E", "key_ranges", "listed_rows"]

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def listed_rows(
    at_ptr, low_ptr, tile, num_rows, kv_head,
    G: tl.constexpr, GROUP: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """First and last row of a tile; of each row-head its row, whether it is inside, `at`, `low`, place of the head."""
    TILE: tl.constexpr = BLOCK_M // GROUP
    m = tl.arange(0, BLOCK_M)
    first = tile * TILE
    last = tl.minimum(first + TILE, num_rows) - 1
    row = first + m // GROUP
    inside = row <= last
    row = tl.minimum(row, last).to(tl.int64)
    at = tl.load(at_ptr + row).to(tl.int32)
    low = tl.load(low_ptr + row).to(tl.int32)
    return first, last, row, inside, at, low, row * (G * GROUP) + kv_head * GROUP + m % GROUP


@triton.jit
def key_ranges(at_ptr, low_ptr, first, last, BLOCK_N: tl.constexpr):
    """Keys of a tile: begin, from where and to where all of its rows see all, where the rest begins, end.

    All rows of the tile see the keys from the last row's first to the first row's last.
    """
    begin = tl.load(low_ptr + first).to(tl.int32) // BLOCK_N * BLOCK_N
    end = tl.load(at_ptr + last).to(tl.int32) + 1
    open_from = tl.minimum(tl.cdiv(tl.load(low_ptr + last).to(tl.int32), BLOCK_N) * BLOCK_N, end)
    open_to = (tl.load(at_ptr + first).to(tl.int32) + 1) // BLOCK_N * BLOCK_N
    rest = tl.cdiv(tl.maximum(open_from, open_to), BLOCK_N) * BLOCK_N  # `end` itself may have cut `open_from`
    return begin, open_from, open_to, rest, end
