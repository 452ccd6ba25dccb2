"""Norms, rotation and SwiGLU of rows, forward and backward, each in one reading of its inputs. Arithmetic is in fp32.

The plain twins are in `train/heads/numerics.py`. Gradients of a norm's weight are summed by programs over rows of their
own, then over programs, in an order that follows from the number of rows alone.

Shape letters: N rows, H hidden, I inner width, P programs, R rows, Q heads, D head dimension.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["norm_backward", "norm_forward", "rotated", "swiglu_backward", "swiglu_forward"]

_PROGRAMS = 528  # four on each multiprocessor of an H100 or H200
_BLOCK = 2048


@triton.jit
def _norm_kernel(x_ptr, weight_ptr, out_ptr, factor_ptr, H, x_stride, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < H
    x = tl.load(x_ptr + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    factor = tl.rsqrt(tl.sum(x * x, 0) / H + eps)
    out = x * factor * tl.load(weight_ptr + column, mask=inside, other=0.0)
    tl.store(out_ptr + row * H + column, out.to(out_ptr.dtype.element_ty), mask=inside)
    tl.store(factor_ptr + row, factor)


def norm_forward(x_NH: Tensor, weight_H: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return x / sqrt(mean(x^2) + eps) times `weight`, in x's dtype, and the factor 1 / sqrt(...), fp32 [N, 1].

    Rows of x may lie apart.
    """
    num_rows, width = x_NH.shape
    out = torch.empty(x_NH.shape, dtype=x_NH.dtype, device=x_NH.device)
    factor = torch.empty(num_rows, 1, dtype=torch.float32, device=x_NH.device)
    block = triton.next_power_of_2(width)
    _norm_kernel[(num_rows,)](x_NH, weight_H, out, factor, width, x_NH.stride(0), eps, BLOCK=block, num_warps=8)
    return out, factor


@triton.jit(do_not_specialize=["num_rows"])
def _norm_backward_kernel(
    d_out_ptr, x_ptr, factor_ptr, weight_ptr, d_x_ptr, partial_ptr, num_rows, H, d_stride, x_stride, BLOCK: tl.constexpr
):  # fmt: skip
    program = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < H
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0)
    d_weight = tl.zeros((BLOCK,), tl.float32)
    for at in tl.range(program, num_rows, tl.num_programs(0)):
        row = at + tl.zeros((BLOCK,), tl.int64)
        d_out = tl.load(d_out_ptr + row * d_stride + column, mask=inside, other=0.0).to(tl.float32)
        factor = tl.load(factor_ptr + at)
        unit = tl.load(x_ptr + row * x_stride + column, mask=inside, other=0.0).to(tl.float32) * factor
        d_weight += d_out * unit
        d_unit = d_out * weight
        inner = tl.sum(d_unit * unit, 0) / H
        d_x = ((d_unit - unit * inner) * factor).to(d_x_ptr.dtype.element_ty)
        tl.store(d_x_ptr + row * H + column, d_x, mask=inside)
    tl.store(partial_ptr + program * H + column, d_weight, mask=inside)


def norm_backward(d_out_NH: Tensor, x_NH: Tensor, factor_N1: Tensor, weight_H: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of x, in its dtype, and of the weight, fp32 [H]. Rows may lie apart."""
    num_rows, width = x_NH.shape
    d_x = torch.empty(x_NH.shape, dtype=x_NH.dtype, device=x_NH.device)
    programs = min(_PROGRAMS, num_rows)
    partial_PH = torch.empty(programs, width, dtype=torch.float32, device=x_NH.device)
    _norm_backward_kernel[(programs,)](
        d_out_NH, x_NH, factor_N1, weight_H, d_x, partial_PH, num_rows, width, d_out_NH.stride(0), x_NH.stride(0),
        BLOCK=triton.next_power_of_2(width), num_warps=8,
    )  # fmt: skip
    return d_x, partial_PH.sum(0)


@triton.jit
def _rotate_kernel(
    x_ptr, cos_ptr, sin_ptr, out_ptr, sign, Q, HALF: tl.constexpr, BLOCK_Q: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, HALF)
    head = tl.arange(0, BLOCK_Q)
    cos = tl.load(cos_ptr + row * HALF + d)[None, :]
    sin = tl.load(sin_ptr + row * HALF + d)[None, :] * sign
    at = (row * Q + head)[:, None] * (2 * HALF) + d[None, :]
    inside = (head < Q)[:, None] & (d < HALF)[None, :]
    a = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(x_ptr + at + HALF, mask=inside, other=0.0).to(tl.float32)
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    tl.store(out_ptr + at, (a * cos - b * sin).to(dtype), mask=inside)
    tl.store(out_ptr + at + HALF, (b * cos + a * sin).to(dtype), mask=inside)


def rotated(x_RQD: Tensor, cos_RD: Tensor, sin_RD: Tensor, *, back: bool = False) -> Tensor:
    """Return rotated heads, or with `back` the gradient of heads from that of rotated ones.

    Half-split form; fp32 tables of D / 2, a power of two. All are contiguous.
    """
    num_rows, heads, dim = x_RQD.shape
    out = torch.empty_like(x_RQD)
    _rotate_kernel[(num_rows,)](
        x_RQD, cos_RD, sin_RD, out, -1.0 if back else 1.0, heads, HALF=dim // 2, BLOCK_Q=triton.next_power_of_2(heads)
    )
    return out


@triton.jit
def _swiglu_kernel(gate_ptr, up_ptr, out_ptr, total, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < total
    gate = tl.load(gate_ptr + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + at, (gate * tl.sigmoid(gate) * up).to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _swiglu_backward_kernel(d_out_ptr, gate_ptr, up_ptr, d_gate_ptr, d_up_ptr, total, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < total
    d_out = tl.load(d_out_ptr + at, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(gate_ptr + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + at, mask=inside, other=0.0).to(tl.float32)
    s = tl.sigmoid(gate)
    dtype: tl.constexpr = d_gate_ptr.dtype.element_ty
    tl.store(d_gate_ptr + at, (d_out * up * s * (1.0 + gate * (1.0 - s))).to(dtype), mask=inside)
    tl.store(d_up_ptr + at, (d_out * gate * s).to(dtype), mask=inside)


def swiglu_forward(gate_NI: Tensor, up_NI: Tensor) -> Tensor:
    """Return silu(gate) up. All are contiguous."""
    out, total = torch.empty_like(gate_NI), gate_NI.numel()
    _swiglu_kernel[(triton.cdiv(total, _BLOCK),)](gate_NI, up_NI, out, total, BLOCK=_BLOCK)
    return out


def swiglu_backward(d_out_NI: Tensor, gate_NI: Tensor, up_NI: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of gate and up."""
    d_gate, d_up, total = torch.empty_like(gate_NI), torch.empty_like(up_NI), gate_NI.numel()
    _swiglu_backward_kernel[(triton.cdiv(total, _BLOCK),)](d_out_NI, gate_NI, up_NI, d_gate, d_up, total, BLOCK=_BLOCK)
    return d_gate, d_up
