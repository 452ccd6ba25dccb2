"""The experts of decode rows: gate/up with clamped SwiGLU, and down with the weighted sum over ranks, from MXFP4.

Each distinct expert is read once a launch. The kernels find the routing in the router's logits themselves (`choose` in
moe.cu: as torch.topk, and the lower id first where logits are equal, which torch leaves open). A row's bits do not
depend on the other rows.

Shape letters: T rows, H hidden, E experts, k experts of a row, I intermediate, P parts of a row's square sum.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from eyas.kernels.cuda.compiler import load
from eyas.kernels.mxfp4_layout import PackedExperts
from eyas.kernels.norm import Normed

__all__ = ["MAX_ROWS", "Activations", "GridBarrier", "moe_down", "moe_up"]

MAX_ROWS = 512
MATH_WARPS = 15
THREADS = 32 * (MATH_WARPS + 1)
TILE = 16
TABLE_BYTES = 20 * 1024 + 3 * 1024  # of shared memory: MAX_ROWS rows of 4 experts of 128, and some
MAX_DEPTH = 6


class Limits(NamedTuple):
    """Of a device: multiprocessors, and bytes of shared memory that one block may have."""

    num_sms: int
    shared_bytes: int


class GridBarrier:
    """The counter with which the blocks of one launch at a time wait for each other."""

    def __init__(self, device: torch.device | str) -> None:
        self.counter = torch.zeros(1, dtype=torch.int32, device=device)


class Activations(NamedTuple):
    """What `moe_up` is asked for; `act_TKI` bf16 [T, k, I] is filled by `moe_down`, but for dead rows."""

    act_TKI: Tensor
    normed: Normed
    gate_up: PackedExperts
    bias_EN: Tensor
    limit: float
    eps: float


def moe_up(
    normed: Normed,
    logits_TE: Tensor,
    live_T: Tensor,
    gate_up: PackedExperts,
    bias_EN: Tensor,
    *,
    top_k: int,
    limit: float,
    eps: float,
) -> Activations:
    """Gate, up and SwiGLU of the top k experts of each live row, by rank. Launches nothing: `moe_down` does both.

    `kernels.moe.moe_up_ref`. Bias fp32 with gate and up alternating; logits fp32; live bool. T <= 512.
    """
    act = normed.rows_TH.new_empty(len(live_T), top_k, gate_up.num_rows // 2)
    return Activations(act, normed, gate_up, bias_EN, limit, eps)


def moe_down(
    activations: Activations,
    logits_TE: Tensor,
    live_T: Tensor,
    down: PackedExperts,
    bias_EH: Tensor,
    residual_TH: Tensor,
    norm_H: Tensor,
    barrier: GridBarrier,
) -> tuple[Tensor, Normed]:
    """residual + the experts' outputs weighted by a softmax over the top k, added by rank, fp32; and the next norm.

    Both matrices in one launch: the weights of the second stream in while the first ends. `kernels.moe.moe_down_ref`.
    Bias, residual and norm fp32. Dead rows keep their residual.
    """
    act, (rows, square_sums), gate_up, up_bias, limit, eps = activations
    num_rows, num_experts = logits_TE.shape
    if num_rows > MAX_ROWS:
        raise ValueError(f"{num_rows} rows: at most {MAX_ROWS} at a time")
    floats = (logits_TE, square_sums, up_bias, bias_EH, residual_TH, norm_H)
    assert rows.dtype == torch.bfloat16 and live_T.dtype == torch.bool
    assert all(tensor.dtype == torch.float32 for tensor in floats)
    assert all(tensor.is_contiguous() for tensor in (*floats, rows, live_T))
    assert gate_up.num_columns == down.num_rows and gate_up.num_rows == 2 * down.num_columns
    limits = _limits(act.device)
    top_k = act.shape[1]
    constants, stages_bytes = _ring(gate_up.num_columns, down.num_columns, limits)
    tables = 64 + 4 * (4 * num_experts + 3) + num_rows * (4 + 8 * top_k)  # `carve` of moe.cu
    out = torch.empty_like(residual_TH)
    after = Normed(torch.empty_like(rows), out.new_empty(num_rows, down.num_rows // TILE))
    load("moe", constants | {"NUM_EXPERTS": num_experts, "TOP_K": top_k}).kernel("moe").launch(
        limits.num_sms,
        THREADS,
        rows,
        square_sums,
        square_sums.shape[1],
        float(eps),
        logits_TE,
        live_T,
        num_rows,
        gate_up.words,
        gate_up.scales,
        up_bias,
        gate_up.num_rows // TILE,
        2.0**gate_up.exponent,
        float(limit),
        act,
        down.words,
        down.scales,
        bias_EH,
        down.num_rows // TILE,
        2.0**down.exponent,
        residual_TH,
        norm_H,
        out,
        after.rows_TH,
        after.square_sums_TP,
        out.new_empty(num_rows * top_k, down.num_rows),
        barrier.counter,
        # One block per multiprocessor: two must not crowd where the kernel before this one ends first.
        shared=max(stages_bytes + tables, limits.shared_bytes // 2 + 1024),
    )
    return out, after


def _ring(up_columns: int, down_columns: int, limits: Limits) -> tuple[dict[str, int | str], int]:
    """What the kernel is compiled with for the ring of items under way, and its bytes of shared memory.

    A place of the ring has the item, a partial sum per slice, two barriers.
    """
    units = -(-max(up_columns, down_columns) // 64)
    slices = -(-units // -(-units // MATH_WARPS))
    stage = units * (512 + 32) + slices * 512 + 16
    depth = max(1, min(MAX_DEPTH, (limits.shared_bytes - TABLE_BYTES) // stage))
    return {"UP_COLUMNS": up_columns, "DOWN_COLUMNS": down_columns, "DEPTH": depth}, depth * stage


@functools.cache
def _limits(device: torch.device) -> Limits:
    properties = torch.cuda.get_device_properties(device)
    return Limits(properties.multi_processor_count, properties.shared_memory_per_block_optin)
