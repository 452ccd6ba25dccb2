"""Dense products of decode rows over `BlockedMatrix`, with what follows them fused in.

Each output is a sum of slices of K whose borders and order depend on the matrix alone, computed by one instruction
family, so a row's bits do not depend on other rows. `linear.cu` serves up to 16 rows (and matrices of a few
tiles, or in 8 bits), from a copy in 12 bits where there is one, `linear_tiles.cu` or `linear_wgmma.cu` more.

Shape letters: T rows, K inputs, N features, H hidden, S shares of K, P parts of a row's square sum.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from eyas.kernels.cuda.compiler import load
from eyas.kernels.cuda.dense import linear_wgmma
from eyas.kernels.cuda.launch import Plan, cluster_wave
from eyas.kernels.layouts import bits12
from eyas.kernels.layouts.dense import BLOCK_COLUMNS, TILE_ROWS, BlockedMatrix
from eyas.kernels.layouts.device import Limits, device_limits
from eyas.kernels.reference.layers.norm import Normed

__all__ = ["MAX_OWN_INPUTS", "Workspace", "add", "gated", "linear", "logits", "num_shares", "project", "router"]

SLICES = 16  # of a share: the warps of a block
MAX_BLOCKS = 9  # of 32 inputs in a slice: their rows stay in registers
MAX_OWN_INPUTS = BLOCK_COLUMNS * SLICES * MAX_BLOCKS  # of a share; `logits`, `router` and `gated` have one alone
MAX_TICKETS = 1 << 19  # 16,384 rows (512 sequences of 32) in sixteens, MAX_OWN_INPUTS features in sixteens: 294,912
CHUNK = 3  # blocks of a bulk copy; in 8 bits one copy has all of a slice
RING_BYTES = 150 << 10  # of the matrix under way in a block: more was not faster
FEW_ROWS = 16
FEW_TILES = 16  # a matrix so small that its blocks do not fill the GPU: rows are dealt to blocks instead
MANY_TILES = 1024  # from here on blocks do not divide K
MAX_PARTS = 8  # blocks of a cluster
MUCH_SHARED = 160 << 10  # bytes, for 128 rows in a block
BLOCK_BYTES = {"BF16": 1024, "BITS12": bits12.TILE_BYTES, "FP8": 512, "INT8": 528}
TILES_OF_BLOCK = 2, 4, 6, 8, 12, 16
MAX_STAGES = 8


class Workspace:
    """Counters with which blocks that share a sum find the last of them; they return to 0. One per chain of kernels."""

    def __init__(self, device: torch.device | str) -> None:
        self.tickets = torch.zeros(MAX_TICKETS, dtype=torch.int32, device=device)


def num_shares(num_inputs: int) -> int:
    """Return S, the number of separate sums of an output with this many inputs."""
    return -(-num_inputs // MAX_OWN_INPUTS)


def num_groups(num_tiles: int, shares: int) -> int:
    """Groups of a share's slices whose sums are added: they and the shares are the parts of K that blocks divide."""
    return 1 if num_tiles >= MANY_TILES or shares > 2 else 4 // shares


def project(x: Normed | Tensor, weight: BlockedMatrix) -> Tensor:
    """Compute fp32 [S or 1, T, N]: slices to be added in order by the next operation, which divides by the norm too."""
    rows = _rows_of(x)
    slices = num_shares(weight.num_columns) if _are_few(rows.shape[0], weight) else 1
    out = rows.new_empty(slices, rows.shape[0], weight.num_rows, dtype=torch.float32)
    _launch(rows, weight, out=out, partials=out)
    return out


def add(
    x_TK: Tensor,
    weight: BlockedMatrix,
    bias_H: Tensor | None,
    residual_TH: Tensor,
    norm_H: Tensor,
    workspace: Workspace,
) -> tuple[Tensor, Normed]:
    """residual + W x + b in fp32, and the norm that follows in its split form. Bias, residual and norm are fp32."""
    shape = x_TK.shape[0], weight.num_rows
    out = x_TK.new_empty(shape, dtype=torch.float32)
    normed = Normed(x_TK.new_empty(shape), out.new_empty(shape[0], weight.num_rows // TILE_ROWS))
    _launch(x_TK, weight, bias=bias_H, residual=residual_TH, norm=norm_H, out=out, normed=normed, workspace=workspace)
    return out, normed


def router(normed: Normed, weight: BlockedMatrix, bias_E: Tensor, eps: float) -> Tensor:
    """Logits fp32 [T, E]."""
    return logits(normed, weight, eps, bias_E)


def logits(
    normed: Normed,
    weight: BlockedMatrix,
    eps: float,
    bias_N: Tensor | None = None,
    out: Tensor | None = None,
    wanted: Tensor | None = None,
) -> Tensor:
    """norm(x) W^T + b as fp32 [T, N], in `out` where it is given.

    With int32 `wanted` and up to 16 rows, only what it says, which is read on the device: its first number of tiles of
    16 features, named by those that follow, or all N / 16 in order; of the rough copy of a matrix all, or nothing where
    one of its two numbers is not 0. The two numbers must be older than the chain of launches.
    """
    if out is None:
        out = normed.rows_TH.new_empty(normed.rows_TH.shape[0], weight.num_rows, dtype=torch.float32)
    _launch(normed.rows_TH, weight, square_sums=normed.square_sums_TP, eps=eps, bias=bias_N, out=out, wanted=wanted)
    return out


def linear(
    x_TK: Tensor,
    weight: BlockedMatrix,
    workspace: Workspace,
    *,
    bias_N: Tensor | None = None,
    residual_TN: Tensor | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> Tensor:
    """Compute x W^T + b + residual, [T, N] in fp32 or bf16."""
    out = x_TK.new_empty(x_TK.shape[0], weight.num_rows, dtype=dtype)
    _launch(x_TK, weight, bias=bias_N, residual=residual_TN, out=out, workspace=workspace)
    return out


def gated(normed: Normed, gate_up: BlockedMatrix, eps: float) -> Tensor:
    """silu(gate) * up as bf16 [T, I]; the matrix was packed with `gated`."""
    out = normed.rows_TH.new_empty(normed.rows_TH.shape[0], gate_up.num_rows // 2)
    _launch(normed.rows_TH, gate_up, square_sums=normed.square_sums_TP, eps=eps, out=out)
    return out


def _rows_of(x: Normed | Tensor) -> Tensor:
    return x.rows_TH if isinstance(x, Normed) else x


def _are_few(num_rows: int, weight: BlockedMatrix) -> bool:
    """Whether linear.cu serves this number of rows."""
    few_tiles = weight.num_rows <= FEW_TILES * TILE_ROWS
    other = weight.factors_N is not None or num_shares(weight.num_columns) > MAX_PARTS
    return num_rows <= FEW_ROWS or few_tiles or other


def _kind(weight: BlockedMatrix) -> str:
    """Return the define of linear.cu for how it reads a matrix."""
    if weight.tiles12 is not None:
        return "BITS12"
    return {torch.bfloat16: "BF16", torch.float8_e4m3fn: "FP8", torch.int8: "INT8"}[weight.data.dtype]


def _launch(
    rows: Tensor,
    weight: BlockedMatrix,
    *,
    square_sums: Tensor | None = None,
    eps: float = 0.0,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    norm: Tensor | None = None,
    out: Tensor,
    normed: Normed | None = None,
    partials: Tensor | None = None,
    workspace: Workspace | None = None,
    wanted: Tensor | None = None,
) -> None:
    num_rows, num_features, num_inputs = rows.shape[0], weight.num_rows, weight.num_columns
    assert rows.shape[1] == num_inputs and rows.stride(1) == 1 and rows.stride(0) % 8 == 0
    assert all(tensor is None or tensor.dtype == torch.float32 for tensor in (square_sums, bias, residual, norm))
    assert all(tensor is None or tensor.is_contiguous() for tensor in (square_sums, bias, residual, norm, out))
    shares, num_tiles, num_blocks = num_shares(num_inputs), num_features // TILE_ROWS, num_inputs // BLOCK_COLUMNS
    limits, kind, matrix = device_limits(rows.device), _kind(weight), weight.data
    assert wanted is None or (num_rows <= FEW_ROWS and shares == 1)
    assert wanted is not None or kind != "INT8"
    is_listed = wanted is not None and kind != "INT8"
    of_few_rows: tuple[Tensor | None, ...] = ()
    if _are_few(num_rows, weight):
        plan = _few_rows(num_rows, num_tiles, num_blocks, shares, weight.gated, kind, is_listed, limits)
        if weight.tiles12 is not None:
            matrix = weight.tiles12
        tickets = None
        if shares > 1 and partials is None:
            assert workspace is not None
            tickets = workspace.tickets
            if num_tiles * plan.grid[1] > len(tickets):
                raise ValueError(f"{num_rows} rows of {num_features} features: more sums than there are tickets")
            partials = rows.new_empty(shares, num_rows, num_features, dtype=torch.float32)
        of_few_rows = partials, tickets, weight.factors_N, weight.data, wanted
    elif limits.has_wgmma:
        slice_blocks, groups = -(-num_blocks // (shares * SLICES)), num_groups(num_tiles, shares)
        plan = linear_wgmma.plan(num_rows, num_tiles, num_blocks, slice_blocks, shares, groups, weight.gated, limits)
    else:
        plan = _more_rows(num_rows, num_tiles, num_blocks, shares, weight.gated, limits)
    load(f"dense/{plan.kernel}", plan.defines).kernel(plan.kernel).launch(
        plan.grid,
        plan.threads,
        rows,
        rows.stride(0),
        matrix,
        num_rows,
        num_features // TILE_ROWS,
        square_sums,
        0 if square_sums is None else square_sums.shape[1],
        eps,
        bias,
        residual,
        norm,
        out if out.dtype == torch.float32 else None,
        out if out.dtype == torch.bfloat16 else None,
        None if normed is None else normed.rows_TH,
        None if normed is None else normed.square_sums_TP,
        *of_few_rows,
        shared=plan.shared_bytes,
    )


@functools.cache
def _few_rows(
    num_rows: int,
    num_tiles: int,
    num_blocks: int,
    shares: int,
    gated: bool,
    kind: str,
    is_listed: bool,
    limits: Limits,
) -> Plan:
    column_tiles = 1 if num_rows <= 8 else 2
    blocks = -(-num_blocks // (shares * SLICES))
    fixed = 2 * SLICES * 512 * column_tiles + 32 * column_tiles  # slices' sums, rows' scales
    room = min(limits.shared_bytes - 1024, RING_BYTES + fixed) - fixed
    block = BLOCK_BYTES[kind]
    chunk = blocks if kind in ("FP8", "INT8") else min(CHUNK, blocks)
    while chunk > 1 and room // (SLICES * (chunk * block + 8)) < 2:
        chunk -= 1
    depth = room // (SLICES * (chunk * block + 8))
    grid = min(num_tiles, limits.num_sms // shares) * shares
    return Plan(
        "linear",
        {
            "COLUMN_TILES": column_tiles,
            "NUM_BLOCKS": num_blocks,
            "SHARES": shares,
            "GROUPS": num_groups(num_tiles, shares),
            "CHUNK": chunk,
            "DEPTH": depth,
            "GATED": int(gated),
            "FP8": int(kind == "FP8"),
            "BITS12": int(kind == "BITS12"),
            "INT8": int(kind == "INT8"),
            "LISTED": int(is_listed),
        },
        (grid, -(-num_rows // (8 * column_tiles))),
        SLICES * 32,
        fixed + SLICES * depth * (chunk * block + 8),
    )


@functools.cache
def _more_rows(num_rows: int, num_tiles: int, num_blocks: int, shares: int, gated: bool, limits: Limits) -> Plan:
    groups = num_groups(num_tiles, shares)
    parts = shares * groups
    column_tiles = 4 if num_rows <= 32 else 8 if num_rows <= 64 or limits.shared_bytes < MUCH_SHARED else 16
    blocks = -(-num_blocks // (shares * SLICES))
    stage_blocks = min(blocks, 4 if blocks % 4 == 0 else 3)
    most = 16 if column_tiles == 4 else 12 if parts > 1 else 128 // column_tiles
    room = limits.shared_bytes - 1024
    fitting = [
        tiles
        for tiles in TILES_OF_BLOCK
        if tiles <= most and sum(_shared_bytes(tiles, column_tiles, stage_blocks, 2, parts)) <= room
    ]
    # One wave of blocks where that is possible.
    wave = cluster_wave(limits.num_sms, parts)
    row_tiles = next((tiles for tiles in fitting if tiles * wave >= num_tiles), fitting[-1])
    stages = 2
    while stages < MAX_STAGES and sum(_shared_bytes(row_tiles, column_tiles, stage_blocks, stages + 1, parts)) <= room:
        stages += 1
    # A warp has 2 x 4 products, and 4 x 4 where shared memory would be the limit.
    warps_m, warps_n = row_tiles // (4 if column_tiles == 16 and row_tiles % 4 == 0 else 2), column_tiles // 4
    tile_groups = -(-num_tiles // row_tiles)
    return Plan(
        "linear_tiles",
        {
            "COLUMN_TILES": column_tiles,
            "ROW_TILES": row_tiles,
            "WARPS_M": warps_m,
            "WARPS_N": warps_n,
            "STAGE_BLOCKS": stage_blocks,
            "STAGES": stages,
            "NUM_BLOCKS": num_blocks,
            "SHARES": shares,
            "GROUPS": groups,
            "GATED": int(gated),
        },
        (tile_groups if parts > 1 else min(tile_groups, wave), -(-num_rows // (8 * column_tiles)), parts),
        32 * warps_m * warps_n,
        sum(_shared_bytes(row_tiles, column_tiles, stage_blocks, stages, parts)),
    )


def _shared_bytes(row_tiles: int, column_tiles: int, stage_blocks: int, stages: int, parts: int) -> tuple[int, int]:
    """Return shared bytes of linear_tiles.cu: ring and sums; rows' scales, barriers and stages."""
    ring = stages * stage_blocks * (row_tiles * 1024 + column_tiles * 512)
    sums = row_tiles * column_tiles * 512
    return max(ring, sums) if parts > 1 else ring + sums, 32 * column_tiles + 1024
