"""The experts of decode rows: gate/up with clamped SwiGLU, and down with the weighted sum over ranks, from MXFP4.

Each distinct expert is read once a launch. The kernels find the routing in the router's logits themselves (`choose` in
moe_route.cuh: as torch.topk, and the lower id first where logits are equal, which torch leaves open): every block for
itself, or, where rows are many, a launch before. A row's bits do not depend on the other rows. `outputs` does the same
products for rows, of a short prompt, whose experts are known.

Shape letters: T rows, H hidden, E experts, k experts of a row, I intermediate, P parts of a row's square sum.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from eyas.kernels.cuda.compiler import load
from eyas.kernels.layouts.device import Limits, device_limits
from eyas.kernels.layouts.mxfp4 import PackedExperts
from eyas.kernels.reference.layers.norm import Normed

__all__ = [
    "MAX_COLUMNS",
    "MAX_EXPERTS",
    "MAX_ROWS",
    "MAX_TOP_K",
    "Activations",
    "Workspace",
    "moe_down",
    "moe_up",
    "outputs",
    "slice_columns",
]

MAX_ROWS = 2048
FEW_ROWS = 64  # up to here each block finds the routing of all rows for itself
MAX_EXPERTS, MAX_TOP_K = 128, 4  # for whose tables shared memory has room
MAX_COLUMNS = 8192  # of either matrix: one place of the ring must fit into 99 KiB of shared memory
MATH_WARPS, MOST_FINISHERS = 15, 3
TILE = 16
FIXED_TABLE_BYTES = 24  # without those of the routing
ROUTE_WARPS = 16  # of a block of moe_route.cu, which has them too
MAX_DEPTH = 6
ONE_TILE_PAIRS = 7  # of row and rank, for each expert


class Workspace:
    """Memory in which the blocks of one launch at a time exchange values: all bits set (NOT_YET of common.cuh) means
    that there is no value yet.

    Launches take turns with the two halves of `act`, and each clears what the one before has used; who reads `partials`
    clears them. `state`: blocks that know whose turn it is; the turn; rows of the launch before. `routed`: blocks that
    have chosen their rows' experts; 0 between launches.
    """

    def __init__(self, max_rows: int, top_k: int, hidden: int, intermediate: int, device: torch.device | str) -> None:
        self.max_rows = max_rows
        act = torch.full((2, max_rows, top_k, intermediate), -1, dtype=torch.int16, device=device)
        self.act_2TKI = act.view(torch.bfloat16)
        self.partials_TKH = torch.full((max_rows, top_k, hidden), -1, dtype=torch.int32, device=device)
        self.state = torch.zeros(3, dtype=torch.int32, device=device)
        self.routed = torch.zeros(1, dtype=torch.int32, device=device)


class Activations(NamedTuple):
    """Arguments of `moe_up`, kept for `moe_down` to launch both."""

    normed: Normed
    gate_up: PackedExperts
    bias_EN: Tensor
    top_k: int
    limit: float
    eps: float


def moe_up(
    normed: Normed, gate_up: PackedExperts, bias_EN: Tensor, *, top_k: int, limit: float, eps: float
) -> Activations:
    """Gate, up and SwiGLU of the top k experts of each live row, by rank. Launches nothing: `moe_down` does both.

    `kernels.reference.layers.moe.moe_up_ref`. Bias fp32 with gate and up alternating.
    """
    return Activations(normed, gate_up, bias_EN, top_k, limit, eps)


def moe_down(
    activations: Activations,
    logits_TE: Tensor,
    live_T: Tensor,
    down: PackedExperts,
    bias_EH: Tensor,
    residual_TH: Tensor,
    norm_H: Tensor,
    workspace: Workspace,
) -> tuple[Tensor, Normed]:
    """Add the experts' outputs, weighted by a softmax over the top k, to the residual by rank, fp32; and the next norm.

    Both matrices in one launch: the weights of the second stream in while the first ends.
    `kernels.reference.layers.moe.moe_down_ref`. Logits, bias, residual and norm fp32; live bool. Dead rows keep their
    residual. T <= rows of the workspace <= 2,048.
    """
    (rows, square_sums), gate_up, up_bias, top_k, limit, eps = activations
    num_rows, num_experts = logits_TE.shape
    most_rows = min(MAX_ROWS, workspace.max_rows)
    if num_rows > most_rows:
        raise ValueError(f"{num_rows} rows: at most {most_rows} at a time")
    floats = (logits_TE, square_sums, up_bias, bias_EH, residual_TH, norm_H)
    assert rows.dtype == torch.bfloat16 and live_T.dtype == torch.bool
    assert all(tensor.dtype == torch.float32 for tensor in floats)
    assert all(tensor.is_contiguous() for tensor in (*floats, rows, live_T))
    _check_shapes(square_sums, gate_up, down, top_k, workspace)
    constants = _constants(num_rows, gate_up, down, top_k, device_limits(rows.device))
    tables, table_bytes = None, _table_bytes(num_rows, num_experts, top_k, constants["COLUMN_TILES"])
    if num_rows > FEW_ROWS:
        tables, table_bytes = route(activations, logits_TE, live_T, constants, workspace), FIXED_TABLE_BYTES
    out = torch.empty_like(residual_TH)
    after = Normed(torch.empty_like(rows), out.new_empty(num_rows, down.num_rows // TILE))
    routing, ends = (square_sums, float(eps), logits_TE, live_T), (residual_TH, norm_H, out, *after)
    experts = (gate_up, up_bias, down, bias_EH)
    _launch(rows, routing, experts, limit, ends, workspace, tables, constants | {"OUTPUTS": 0}, table_bytes)
    return out, after


def outputs(
    x_TH: Tensor,
    ids_TK: Tensor,
    inverse_rms_T: Tensor,
    gate_up: PackedExperts,
    up_bias_EN: Tensor,
    down: PackedExperts,
    down_bias_EH: Tensor,
    workspace: Workspace,
    *,
    limit: float,
) -> Tensor:
    """Outputs bf16 [T k, H] of rows whose experts are known, not yet weighted; of dead rows (id -1) none are written.

    Ids int32, inverse rms of the rows and biases fp32. T <= rows of the workspace.
    """
    num_rows, top_k = ids_TK.shape
    if num_rows > workspace.max_rows:
        raise ValueError(f"{num_rows} rows: at most {workspace.max_rows} at a time")
    assert x_TH.dtype == torch.bfloat16 and ids_TK.dtype == torch.int32
    floats = (inverse_rms_T, up_bias_EN, down_bias_EH)
    assert all(tensor.dtype == torch.float32 for tensor in floats)
    assert all(tensor.is_contiguous() for tensor in (*floats, x_TH, ids_TK))
    _check_experts(gate_up, down, top_k, workspace)
    constants = _constants(num_rows, gate_up, down, top_k, device_limits(x_TH.device))
    tables = sort(ids_TK, inverse_rms_T, gate_up, constants)
    out_PH = x_TH.new_empty(num_rows * top_k, down.num_rows)
    routing, ends = (None, 0.0, None, None), (None, None, None, out_PH, None)
    experts = (gate_up, up_bias_EN, down, down_bias_EH)
    _launch(x_TH, routing, experts, limit, ends, workspace, tables, constants | {"OUTPUTS": 1}, FIXED_TABLE_BYTES)
    return out_PH


def slice_columns(most_columns: int) -> int:
    """Return the columns of a slice of the sums, by those of the wider matrix."""
    return 64 * -(-most_columns // (64 * MATH_WARPS))


def _constants(
    num_rows: int, gate_up: PackedExperts, down: PackedExperts, top_k: int, limits: Limits
) -> dict[str, int]:
    return {
        "UP_COLUMNS": gate_up.num_columns, "COLUMN_TILES": _column_tiles(num_rows * top_k, gate_up.num_experts, limits),
        "NUM_EXPERTS": gate_up.num_experts, "TOP_K": top_k
    }  # fmt: skip


def _launch(
    rows: Tensor,
    routing: tuple[Tensor | None, float, Tensor | None, Tensor | None],
    experts: tuple[PackedExperts, Tensor, PackedExperts, Tensor],
    limit: float,
    ends: tuple[Tensor | None, ...],
    workspace: Workspace,
    tables: Tensor | None,
    constants: dict[str, int],
    table_bytes: int,
) -> None:
    gate_up, up_bias, down, down_bias = experts
    limits = device_limits(rows.device)
    depth, stages_bytes = _ring(gate_up.num_columns, down.num_columns, constants["COLUMN_TILES"], limits)
    constants |= {"DOWN_COLUMNS": down.num_columns, "DEPTH": depth, "ROUTED": int(tables is not None)}
    load("moe/moe", constants).kernel("moe").launch(
        limits.num_sms,
        32 * (MATH_WARPS + min(MOST_FINISHERS, depth)),
        rows,
        *routing,
        len(rows),
        gate_up.words,
        gate_up.scales,
        up_bias,
        2.0**gate_up.exponent,
        float(limit),
        workspace.act_2TKI,
        workspace.max_rows,
        down.words,
        down.scales,
        down_bias,
        2.0**down.exponent,
        *ends,
        workspace.partials_TKH,
        workspace.state,
        tables,
        # One block per multiprocessor: two must not crowd where the kernel before this one ends first.
        shared=max(stages_bytes + table_bytes, limits.shared_bytes // 2 + 1024),
    )


def _check_shapes(
    square_sums_TP: Tensor, gate_up: PackedExperts, down: PackedExperts, top_k: int, workspace: Workspace
) -> None:
    _check_experts(gate_up, down, top_k, workspace)
    assert square_sums_TP.shape[1] == gate_up.num_columns // 16
    assert workspace.partials_TKH.shape[1:] == (top_k, down.num_rows)


def _check_experts(gate_up: PackedExperts, down: PackedExperts, top_k: int, workspace: Workspace) -> None:
    assert gate_up.num_columns == down.num_rows and gate_up.num_rows == 2 * down.num_columns
    assert workspace.act_2TKI.shape[2:] == (top_k, down.num_columns)


def route(
    activations: Activations, logits_TE: Tensor, live_T: Tensor, constants: dict[str, int], workspace: Workspace
) -> Tensor:
    """Return the routing of all rows: bytes as `Tables` of moe_route.cuh has them."""
    num_rows = len(logits_TE)
    tables = _new_tables(num_rows, constants, logits_TE.device)
    load("moe/moe_route", constants).kernel("moe_route").launch(
        -(-num_rows // ROUTE_WARPS),
        32 * ROUTE_WARPS,
        tables,
        logits_TE,
        activations.normed.square_sums_TP,
        live_T,
        num_rows,
        float(activations.eps),
        2.0**activations.gate_up.exponent,
        workspace.routed,
        shared=_sorting_bytes(num_rows, constants),
    )
    return tables


def sort(ids_TK: Tensor, inverse_rms_T: Tensor, gate_up: PackedExperts, constants: dict[str, int]) -> Tensor:
    """Return the routing of rows whose experts are known, as `route` does."""
    num_rows = len(ids_TK)
    tables = _new_tables(num_rows, constants, ids_TK.device)
    load("moe/moe_route", constants).kernel("moe_sort").launch(
        1,
        32 * ROUTE_WARPS,
        tables,
        ids_TK,
        inverse_rms_T,
        num_rows,
        2.0**gate_up.exponent,
        shared=_sorting_bytes(num_rows, constants),
    )
    return tables


def _new_tables(num_rows: int, constants: dict[str, int], device: torch.device) -> Tensor:
    sizes = constants["NUM_EXPERTS"], constants["TOP_K"], constants["COLUMN_TILES"]
    return torch.empty(_table_bytes(num_rows, *sizes) - FIXED_TABLE_BYTES, dtype=torch.uint8, device=device)


def _sorting_bytes(num_rows: int, constants: dict[str, int]) -> int:
    return 4 * (-(-num_rows * constants["TOP_K"] // 2) * 2 + (ROUTE_WARPS + 1) * constants["NUM_EXPERTS"])


def _column_tiles(num_pairs: int, num_experts: int, limits: Limits) -> int:
    """Return how many tiles of 8 rows of an expert share an item."""
    # An item takes 0.73 us for one tile and 0.93 for two on an H200, so few second groups are cheaper than wide items
    # for all. A small ring has no room for more.
    return 1 if num_pairs <= ONE_TILE_PAIRS * num_experts or limits.shared_bytes < 128 * 1024 else 2


def _ring(up_columns: int, down_columns: int, column_tiles: int, limits: Limits) -> tuple[int, int]:
    """Places of the ring of items under way, and its bytes of shared memory.

    A place of the ring has the item, partial sums of each slice, two barriers.
    """
    units = -(-max(up_columns, down_columns) // 64)
    slices = -(-units // -(-units // MATH_WARPS))
    stage = -(-units * (512 + 32) // 128) * 128 + column_tiles * slices * 512 + 16
    tables = _table_bytes(FEW_ROWS, MAX_EXPERTS, MAX_TOP_K, column_tiles)
    depth = max(1, min(MAX_DEPTH, (limits.shared_bytes - tables) // stage))
    return depth, depth * stage


def _table_bytes(num_rows: int, num_experts: int, top_k: int, column_tiles: int) -> int:
    """Return the bytes that `carve` of moe.cuh takes after the ring, tables of the routing included."""
    num_groups = num_experts + num_rows * top_k // (8 * column_tiles)
    ids = 2 * 4 * -(-num_rows * top_k // 2)  # and pairs, in whole words
    return FIXED_TABLE_BYTES + 4 * (num_experts + 2 * num_groups + 2) + num_rows * 4 * (1 + top_k) + ids
