"""Launches of dense products of more than 16 rows by Hopper's matrix instruction of a warpgroup."""

from __future__ import annotations

import functools

from eyas.kernels.cuda.launch import Plan, cluster_wave
from eyas.kernels.layouts.dense import TILE_ROWS
from eyas.kernels.layouts.device import Limits

__all__ = ["plan"]

MAX_TILES = 12  # of a block: three warpgroups, whose sums of 128 rows take all registers
OTHER_WARPS = 4  # which bring weights and rows and make these ready
MAX_STAGES = 8  # of a ring


@functools.cache
def plan(
    num_rows: int,
    num_tiles: int,
    num_blocks: int,
    slice_blocks: int,
    shares: int,
    groups: int,
    gated: bool,
    limits: Limits,
) -> Plan:
    """Return the launch of linear_wgmma.cu; `slice_blocks` is the most blocks of 32 inputs that a slice has."""
    parts = shares * groups
    columns = 32 if num_rows <= 32 else 64 if num_rows <= 64 else 128
    chunks = -(-num_rows // columns)
    wave = cluster_wave(limits.num_sms, parts)

    def cost(tiles: int) -> int:
        """Return tiles of weights that the busiest multiprocessor reads, and rows in the same unit."""
        return -(-(-(-num_tiles // tiles) * chunks) // wave) * (tiles + columns // TILE_ROWS)

    tiles = min(range(1, min(MAX_TILES, num_tiles) + 1), key=lambda tiles: (cost(tiles), tiles))
    stage_blocks = min(slice_blocks, 4 if slice_blocks % 4 == 0 else 3)
    part_stages = 16 // groups * -(-slice_blocks // stage_blocks)
    depth, row_stages, shared_bytes = _rings(
        columns, tiles, stage_blocks, part_stages, parts, limits.shared_bytes - 1024
    )
    num_groups = -(-num_tiles // tiles)
    return Plan(
        "linear_wgmma",
        {
            "COLUMNS": columns,
            "ROW_TILES": tiles,
            "STAGE_BLOCKS": stage_blocks,
            "DEPTH": depth,
            "ROW_STAGES": row_stages,
            "NUM_BLOCKS": num_blocks,
            "SHARES": shares,
            "GROUPS": groups,
            "GATED": int(gated),
        },
        (chunks * (num_groups if parts > 1 else min(num_groups, max(1, limits.num_sms // chunks))), 1, parts),
        32 * (-(-tiles // 4) * 4 + OTHER_WARPS),
        shared_bytes,
    )


def _rings(
    columns: int, tiles: int, stage_blocks: int, part_stages: int, parts: int, room: int
) -> tuple[int, int, int]:
    """Return stages of the weights and of the rows, as far ahead as fits, and shared bytes, a multiple of 1,024."""

    def shared_bytes(depth: int, stages: int) -> int:
        ring = stage_blocks * (stages * columns * 64 + tiles * depth * 1024)
        sums = tiles * columns * 64 if parts > 1 else 0
        return -(-(max(ring, sums) + 4 * columns + 8 * (3 * stages + (tiles + 1) * depth)) // 1024) * 1024

    most = min(MAX_STAGES, part_stages)  # a ring is not longer than a part: sums take its place
    fitting = [
        (depth, stages)
        for depth in range(2, most + 1)
        for stages in range(3, most + 1)
        if shared_bytes(depth, stages) <= room
    ]
    # One stage of the weights is read while others come; of the rows another is ready.
    depth, stages = max(fitting, key=lambda sizes: (min(sizes[0] - 1, sizes[1] - 2), sizes))
    return depth, stages, shared_bytes(depth, stages)
