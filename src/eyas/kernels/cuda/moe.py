"""The experts of decode rows: gate/up with clamped SwiGLU, and down with the weighted sum over ranks, from MXFP4.

Each distinct expert is read once a launch. The kernels find the routing in the router's logits themselves (`choose` in
moe.cu: as torch.topk, and the lower id first where logits are equal, which torch leaves open). A row's bits do not
depend on the other rows.

Shape letters: T rows, H hidden, E experts, k experts of a row, I intermediate, P parts of a row's square sum.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from eyas.kernels.cuda.compiler import load
from eyas.kernels.cuda.launch import Kernel
from eyas.kernels.mxfp4_layout import PackedExperts
from eyas.kernels.norm import Normed

__all__ = ["MAX_ROWS", "GridBarrier", "defines", "moe_down", "moe_up"]

MAX_ROWS = 512
MATH_WARPS = 15
THREADS = 32 * (MATH_WARPS + 1)
TILE = 16
# Two kernels of the chain share a multiprocessor, so that one loads while the other ends.
SHARED_BYTES = 110 * 1024
MAX_DEPTH = 8


class GridBarrier:
    """The counter with which the blocks of one launch at a time wait for each other."""

    def __init__(self, device: torch.device | str) -> None:
        self.counter = torch.zeros(1, dtype=torch.int32, device=device)


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
) -> Tensor:
    """Activations bf16 [T, k, I] of the top k experts of each live row, by rank; those of dead rows are not written.

    `kernels.moe.moe_up_ref`. Bias fp32 with gate and up alternating; logits fp32; live bool. T <= 512.
    """
    num_rows = _check(logits_TE, live_T, gate_up, bias_EN, normed.rows_TH.shape[1])
    assert normed.rows_TH.dtype == torch.bfloat16 and normed.rows_TH.is_contiguous()
    assert normed.square_sums_TP.is_contiguous()
    act = normed.rows_TH.new_empty(num_rows, top_k, gate_up.num_rows // 2)
    _kernel("moe_up", gate_up, top_k).launch(
        _num_blocks(act.device),
        THREADS,
        normed.rows_TH,
        normed.square_sums_TP,
        normed.square_sums_TP.shape[1],
        float(eps),
        logits_TE,
        live_T,
        num_rows,
        gate_up.words,
        gate_up.scales,
        bias_EN,
        float(limit),
        act,
        gate_up.num_rows // TILE,
        shared=_shared_bytes(gate_up, top_k, num_rows),
    )
    return act


def moe_down(
    act_TKI: Tensor,
    logits_TE: Tensor,
    live_T: Tensor,
    down: PackedExperts,
    bias_EH: Tensor,
    residual_TH: Tensor,
    norm_H: Tensor,
    barrier: GridBarrier,
) -> tuple[Tensor, Normed]:
    """residual + the experts' outputs weighted by a softmax over the top k, added by rank, fp32; and the next norm.

    `kernels.moe.moe_down_ref`. All but `act_TKI` fp32. The launch before it in the stream must be `moe_up` with the
    same logits. Dead rows keep their residual. T <= 512.
    """
    num_rows = _check(logits_TE, live_T, down, bias_EH, act_TKI.shape[2])
    assert act_TKI.dtype == torch.bfloat16 and act_TKI.is_contiguous()
    assert residual_TH.dtype == norm_H.dtype == torch.float32 and residual_TH.is_contiguous()
    top_k = act_TKI.shape[1]
    out = torch.empty_like(residual_TH)
    normed = Normed(act_TKI.new_empty(out.shape), out.new_empty(num_rows, down.num_rows // TILE))
    partials = out.new_empty(num_rows * top_k, down.num_rows)
    _kernel("moe_down", down, top_k).launch(
        _num_blocks(act_TKI.device),
        THREADS,
        act_TKI,
        logits_TE,
        live_T,
        num_rows,
        down.words,
        down.scales,
        bias_EH,
        residual_TH,
        norm_H,
        out,
        normed.rows_TH,
        normed.square_sums_TP,
        partials,
        barrier.counter,
        down.num_rows // TILE,
        shared=_shared_bytes(down, top_k, num_rows),
    )
    return out, normed


def defines(num_columns: int, num_experts: int, top_k: int) -> dict[str, int | str]:
    """What moe.cu is compiled with for matrices of so many columns."""
    depth = max(2, min(MAX_DEPTH, SHARED_BYTES // _stage_bytes(num_columns)))
    return {"NUM_COLUMNS": num_columns, "DEPTH": depth, "NUM_EXPERTS": num_experts, "TOP_K": top_k}


def _check(logits_TE: Tensor, live_T: Tensor, experts: PackedExperts, bias_EN: Tensor, num_columns: int) -> int:
    num_rows, num_experts = logits_TE.shape
    if num_rows > MAX_ROWS:
        raise ValueError(f"{num_rows} rows: at most {MAX_ROWS} at a time")
    assert experts.num_columns == num_columns and experts.num_experts == num_experts
    assert bias_EN.shape == (num_experts, experts.num_rows) and live_T.shape == (num_rows,)
    assert logits_TE.dtype == bias_EN.dtype == torch.float32 and live_T.dtype == torch.bool
    assert logits_TE.is_contiguous() and bias_EN.is_contiguous() and live_T.is_contiguous()
    return num_rows


def _num_units(num_columns: int) -> int:
    return -(-num_columns // 64)


def _stage_bytes(num_columns: int) -> int:
    """Of a place in the ring: the item, a partial sum per slice, two barriers."""
    units = _num_units(num_columns)
    slices = -(-units // -(-units // MATH_WARPS))
    return units * (512 + 32) + slices * 512 + 16


def _shared_bytes(experts: PackedExperts, top_k: int, num_rows: int) -> int:
    """As `carve` of moe.cu."""
    depth = int(defines(experts.num_columns, experts.num_experts, top_k)["DEPTH"])
    tables = 4 * (3 * experts.num_experts + 2)
    return depth * _stage_bytes(experts.num_columns) + tables + num_rows * (4 + 8 * top_k)


def _kernel(name: str, experts: PackedExperts, top_k: int) -> Kernel:
    return load("moe", defines(experts.num_columns, experts.num_experts, top_k)).kernel(name)


@functools.cache
def _num_blocks(device: torch.device) -> int:
    """One per multiprocessor: the blocks of `moe_down` wait for each other, so all must be resident."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
