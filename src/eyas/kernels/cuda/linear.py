"""Dense products of decode rows over `BlockedMatrix`, with what follows them fused in.

Each output is a sum of slices of K whose borders and order depend on the matrix alone, computed by one instruction
family, so a row's bits do not depend on the rows beside it. `linear.cu` serves up to 16 rows (and matrices of a few
tiles, or in 8 bits), `linear_tiles.cu` more.

Shape letters: T rows, K inputs, N features, H hidden, S shares of K, P parts of a row's square sum.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from eyas.kernels.cuda.compiler import load
from eyas.kernels.layout import BLOCK_COLUMNS, TILE_ROWS, BlockedMatrix
from eyas.kernels.norm import Normed

__all__ = ["Workspace", "add", "gated", "linear", "logits", "num_shares", "project", "router"]

SLICES = 16  # of a share: the warps of a block
MAX_BLOCKS = 9  # of 32 inputs in a slice: their rows stay in registers
MAX_TICKETS = 1 << 14
CHUNK = 3  # blocks of a bulk copy; in 8 bits one copy has all of a slice
RING_BYTES = 150 << 10  # of the matrix under way in a block: more was not faster
FEW_ROWS = 16
FEW_TILES = 16  # a matrix so small that its blocks do not fill the GPU: rows are dealt to blocks instead
MANY_TILES = 8  # for each multiprocessor: below, 32 rows are faster as two times 16, the second time from L2
WARPS_OF_TILES = 8


class Limits(NamedTuple):
    """Of a device: multiprocessors, and bytes of shared memory that one block may have."""

    num_sms: int
    shared_bytes: int


class Workspace:
    """Counters with which blocks that share a sum find the last of them; they return to 0. One per chain of kernels."""

    def __init__(self, device: torch.device | str) -> None:
        self.tickets = torch.zeros(MAX_TICKETS, dtype=torch.int32, device=device)


@functools.cache
def _limits(device: torch.device) -> Limits:
    properties = torch.cuda.get_device_properties(device)
    return Limits(properties.multi_processor_count, properties.shared_memory_per_block_optin)


def num_shares(num_inputs: int) -> int:
    """S: how many sums of its own an output of so many inputs has."""
    return -(-num_inputs // (BLOCK_COLUMNS * SLICES * MAX_BLOCKS))


def project(x: Normed | Tensor, weight: BlockedMatrix) -> Tensor:
    """fp32 [S, T, N]: slices to be added in order; a norm's division is left to whoever adds them."""
    rows = _rows_of(x)
    out = rows.new_empty(num_shares(weight.num_columns), rows.shape[0], weight.num_rows, dtype=torch.float32)
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


def logits(normed: Normed, weight: BlockedMatrix, eps: float, bias_N: Tensor | None = None) -> Tensor:
    """norm(x) W^T + b as fp32 [T, N]."""
    out = normed.rows_TH.new_empty(normed.rows_TH.shape[0], weight.num_rows, dtype=torch.float32)
    _launch(normed.rows_TH, weight, square_sums=normed.square_sums_TP, eps=eps, bias=bias_N, out=out)
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
    """x W^T + b + residual, [T, N] in fp32 or bf16."""
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
) -> None:
    num_rows, num_features, num_inputs = rows.shape[0], weight.num_rows, weight.num_columns
    shares = num_shares(num_inputs)
    assert rows.shape[1] == num_inputs and rows.stride(1) == 1 and rows.stride(0) % 8 == 0
    assert all(tensor is None or tensor.dtype == torch.float32 for tensor in (square_sums, bias, residual, norm))
    assert all(tensor is None or tensor.is_contiguous() for tensor in (square_sums, bias, residual, norm, out))
    tickets = None
    if shares > 1 and partials is None:
        assert workspace is not None
        tickets = workspace.tickets
        partials = rows.new_empty(shares, num_rows, num_features, dtype=torch.float32)
    limits = _limits(rows.device)
    num_tiles, num_blocks = num_features // TILE_ROWS, num_inputs // BLOCK_COLUMNS
    many_tiles = num_tiles >= MANY_TILES * limits.num_sms
    in_fp8 = weight.factors_N is not None
    few = num_rows <= FEW_ROWS or num_tiles <= FEW_TILES or (num_rows <= 2 * FEW_ROWS and not many_tiles)
    if few or in_fp8:
        plan = _few_rows(num_rows, num_tiles, num_blocks, shares, weight.gated, in_fp8, limits)
    else:
        plan = _more_rows(num_rows, num_tiles, num_blocks, shares, weight.gated, limits)
    load(plan.source, plan.defines).kernel(plan.source).launch(
        plan.grid,
        plan.threads,
        rows,
        rows.stride(0),
        weight.data,
        num_rows,
        num_tiles,
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
        partials,
        tickets,
        *([weight.factors_N] if plan.source == "linear" else []),
        shared=plan.shared_bytes,
    )


class Plan(NamedTuple):
    source: str
    defines: dict[str, int]
    grid: tuple[int, ...]
    threads: int
    shared_bytes: int


@functools.cache
def _few_rows(
    num_rows: int, num_tiles: int, num_blocks: int, shares: int, gated: bool, fp8: bool, limits: Limits
) -> Plan:
    column_tiles = 1 if num_rows <= 8 else 2
    blocks = -(-num_blocks // (shares * SLICES))
    fixed = 2 * SLICES * 512 * column_tiles + 32 * column_tiles  # slices' sums, rows' scales
    room = min(limits.shared_bytes - 1024, RING_BYTES + fixed) - fixed
    block = 512 if fp8 else 1024  # bytes
    chunk = blocks if fp8 else min(CHUNK, blocks)
    while chunk > 1 and room // (SLICES * (chunk * block + 8)) < 2:
        chunk -= 1
    depth = room // (SLICES * (chunk * block + 8))
    grid = min(num_tiles, limits.num_sms // shares) * shares
    defines = {"NUM_BLOCKS": num_blocks, "SHARES": shares, "CHUNK": chunk, "DEPTH": depth}
    return Plan(
        "linear",
        {"COLUMN_TILES": column_tiles, "GATED": int(gated), "FP8": int(fp8), **defines},
        (grid, -(-num_rows // (8 * column_tiles))),
        SLICES * 32,
        fixed + SLICES * depth * (chunk * block + 8),
    )


@functools.cache
def _more_rows(num_rows: int, num_tiles: int, num_blocks: int, shares: int, gated: bool, limits: Limits) -> Plan:
    column_tiles = 4 if num_rows <= 32 else 8 if num_rows <= 64 else 16
    row_tiles = 8 if num_tiles >= MANY_TILES * limits.num_sms else 2
    stage = 3 * (row_tiles * 1024 + column_tiles * 512)
    stages = min(6, (limits.shared_bytes - 2048) // stage)
    defines = {"NUM_BLOCKS": num_blocks, "SHARES": shares, "ROW_TILES": row_tiles, "STAGES": stages}
    return Plan(
        "linear_tiles",
        {"COLUMN_TILES": column_tiles, "GATED": int(gated), **defines},
        (-(-num_tiles // row_tiles), -(-num_rows // (8 * column_tiles)), shares),
        WARPS_OF_TILES * 32,
        stages * stage + 32 * column_tiles,
    )
