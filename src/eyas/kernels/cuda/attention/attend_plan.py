"""Cuts launches of `attend`: sizes that follow from shapes, and the units of a pass, planned on the device.

In layers without a window a launch depends on the sequences' lengths, which are on the device alone. `plan` looks at
them once a pass, in one small kernel (attend_plan.cu), and leaves a list in memory that all layers of the pass read.
In layers with a window each sequence is a unit, so there is nothing to plan.

When the list is safe to read: `attend` reads it, as positions and tables, before it waits for the kernel ahead of it.
The planning kernel P waits for all that is older before it reads or writes, so no launch of an earlier pass still reads
memory that P's list reuses. P lets its successor start early, so what follows P directly may run beside it: in a pass
that is `embed` or `pair`, E. E triggers its own successor only after its wait, and its wait ends when P has ended and
its writes are visible. Every kernel behind E therefore starts, even before its own wait, after P's end. So `plan` comes
before `embed` or `pair`, and at least one kernel that triggers after its wait must stand between it and `attend`.
The list is read from L2 (`load_l2_16_if`), so no line of an older list in a multiprocessor's L1 can stand in for it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from eyas.kernels.cuda.compiler import load
from eyas.kernels.layouts.device import Limits
from eyas.kernels.reference.layers.ops import Rows

__all__ = [
    "DIM",
    "GROUPS",
    "MAX_ROWS",
    "MAX_SEQS",
    "PAGE",
    "STATE_WORDS",
    "Launch",
    "Plan",
    "Ring",
    "launch_of",
    "most_pieces",
    "plan",
    "ring_of",
]

DIM = 64
GROUPS = (4, 8)  # query heads of a key/value head
PAGE = 16
CHAIN = 2  # steps of a warp in a leaf
STEP = 32  # keys
MAX_SEQS = 512  # attend_plan.cu has it too
MAX_ROWS = 32
TILES = 2  # of 16 pairs of row and query head, most in a block
MAX_DEPTH = 5  # of keys, or values, in 16 bits; in 8 bits twice as many
SHARED_DEPTH, SHARED_FP8_DEPTH = 2, 3  # where two blocks share a multiprocessor
FP8_EARLY = 2  # keys and values of a step; more would arrive before the rows that all of them wait for
STATIC_SHARED_BYTES = 1280  # what the kernel declares, and the system's own
STATE_WORDS = DIM + 4  # of a row and query head: output, peak, sum, padding
UNIT_WORDS = 4
MOST_PIECES = 8  # of cut sequences for each block, and one; attend_plan.cu says why


class Config(NamedTuple):
    warps: int
    tiles: int  # a block, most
    resident: int  # blocks a multiprocessor


class Ring(NamedTuple):
    depth: int  # copies of 32 keys, or values, that a warp has under way
    early: int  # of them asked for before the rows are finished
    shared: int  # bytes of a block, all that it has


class Launch(NamedTuple):
    """A launch as far as shapes say it."""

    num_heads: int
    num_kv: int
    config: Config
    grid: int
    small_pairs: int  # of row block and key/value head, where a block has one tile
    large_pairs: int  # where it has `config.tiles`


class Plan(NamedTuple):
    """Launch of the layers without a window in a pass, and its units."""

    launch: Launch
    units: Tensor  # int32 [1 + units, 4], as attend_plan.cu says


def _shared_bytes(warps: int, depth: int, tiles: int, num_rows: int, *, in_fp8: bool = False) -> int:
    states, entry, factors = 16 * STATE_WORDS * 4, DIM + 1 if in_fp8 else 2 * DIM, 4 if in_fp8 else 0
    of_warp, of_tile = depth * STEP * entry + states + factors * STEP, 16 * (DIM * 2 + factors)
    return warps * of_warp + tiles * of_tile + num_rows * 2 * entry


def _config(num_rows: int, group: int, shared_limit: int, *, crowded: bool, in_fp8: bool) -> Config:
    """Choose the launch. The number of warps, on which bits depend, follows from the device alone; the rest is speed.

    `crowded`: there are more sequences and heads than multiprocessors, so blocks follow each other on one. In 8 bits a
    warp has half the bytes and twice the work, and then as many warps as possible matter more than bytes under way.
    """
    limit = shared_limit - STATIC_SHARED_BYTES
    warps = 8 if _shared_bytes(8, 2, TILES, MAX_ROWS) <= limit else 4
    tiles = 1 if in_fp8 else min(TILES, -(-num_rows * group // 16))
    of_two = 2 * _shared_bytes(warps, SHARED_DEPTH, tiles, num_rows, in_fp8=in_fp8)
    is_shared = (crowded or in_fp8) and tiles == 1 and of_two <= limit - STATIC_SHARED_BYTES
    return Config(warps, tiles, 2 if is_shared else 1)


def ring_of(config: Config, num_rows: int, shared_limit: int, *, in_fp8: bool) -> Ring:
    """Return the copies under way. No bits depend on it."""
    if config.resident > 1:
        depth = SHARED_FP8_DEPTH if in_fp8 else SHARED_DEPTH
    else:
        depth = 2 * MAX_DEPTH if in_fp8 else MAX_DEPTH
    while True:
        shared = _shared_bytes(config.warps, depth, config.tiles, num_rows, in_fp8=in_fp8)
        if config.resident * (shared + STATIC_SHARED_BYTES) <= shared_limit:
            return Ring(depth, min(depth, FP8_EARLY) if in_fp8 else depth, shared)
        depth -= 1


def launch_of(
    rows: Rows, num_heads: int, num_kv: int, limits: Limits, *, has_window: bool, in_fp8: bool = False
) -> Launch:
    """Return the launch for these rows. Raises ValueError on numbers that the kernel does not have.

    `rows.max_length` bounds the grid and nothing else.
    """
    num_seqs, num_rows = rows.positions_SR.shape
    group = num_heads // num_kv
    if group not in GROUPS or num_heads != group * num_kv:
        raise ValueError(f"attend needs 4 or 8 query heads per key head, not {num_heads} / {num_kv}")
    if num_seqs > MAX_SEQS or num_rows > MAX_ROWS:
        raise ValueError(f"attend takes {MAX_SEQS} sequences of {MAX_ROWS} rows, not {num_seqs} of {num_rows}")
    row_blocks = -(-num_rows * group // 16)
    crowded = num_seqs * num_kv * row_blocks > limits.num_sms
    config = _config(num_rows, group, limits.shared_bytes, crowded=crowded, in_fp8=in_fp8)
    leaves = 1 if has_window else -(-rows.max_length // (CHAIN * STEP * config.warps))
    most_blocks = num_seqs * row_blocks * num_kv * leaves
    grid = max(1, min(most_blocks, config.resident * limits.num_sms))
    large_pairs = -(-num_rows // (16 * config.tiles // group)) * num_kv
    return Launch(num_heads, num_kv, config, grid, row_blocks * num_kv, large_pairs)


def most_pieces(grid: int) -> int:
    """Bound the pieces of cut sequences in a launch of this many blocks."""
    return MOST_PIECES * grid + 1


def plan(rows: Rows, num_heads: int, num_kv: int, limits: Limits, *, in_fp8: bool = False) -> Plan:
    """Cut the launches of a pass over these rows in its layers without a window.

    At least one kernel that triggers its successor after its own wait must stand between this and `attend`.
    Raises ValueError on numbers that the kernel does not have.
    """
    launch = launch_of(rows, num_heads, num_kv, limits, has_window=False, in_fp8=in_fp8)
    num_seqs, num_rows = rows.positions_SR.shape
    assert rows.positions_SR.is_contiguous() and rows.live_SR.is_contiguous()
    # Any block reads the unit of its first piece, whether there is one or not.
    num_units = num_seqs + most_pieces(launch.grid) // num_kv
    units = torch.empty(2 + num_units, UNIT_WORDS, dtype=torch.int32, device=rows.positions_SR.device)
    load("attention/attend_plan").kernel("attend_plan").launch(
        1,
        -(-num_seqs // 32) * 32,
        units,
        rows.positions_SR,
        rows.live_SR,
        num_seqs,
        num_rows,
        CHAIN * STEP * launch.config.warps,
        launch.grid,
        launch.small_pairs,
        launch.large_pairs,
        launch.config.tiles,
    )
    return Plan(launch, units)
