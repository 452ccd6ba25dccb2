"""Norms, rotation and SwiGLU of trainable heads. Norms and rotation compute in fp32 or wider.

Norm and SwiGLU have closed backward passes that keep their inputs alone: autograd would keep every intermediate, for
narrow types in fp32.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from eyas.model.devices import KERNEL_CAPABILITY

__all__ = [
    "add_product",
    "gradient_of",
    "has_kernels",
    "linear",
    "norm_backward",
    "norm_forward",
    "rms_norm",
    "rotate",
    "swiglu",
    "wide",
    "wide_product",
]


def wide(x: Tensor) -> Tensor:
    """Return x in fp32 or wider."""
    return x if x.dtype == torch.float64 else x.float()


def wide_product(a: Tensor, b: Tensor) -> Tensor:
    """Return a @ b in fp32 or wider. Logits of 32 to 64 would be rounded to multiples of 1/4 in bf16."""
    if a.is_cuda and a.dtype in (torch.bfloat16, torch.float16):
        return torch.mm(a, b, out_dtype=torch.float32)
    return wide(a) @ wide(b)


def add_product(to: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a @ b to a sum in fp32 or wider: on a GPU in the product itself, without a rounded product beside it."""
    if to.dtype == a.dtype:
        to.addmm_(a, b)
    elif to.dtype == torch.float32 and _adds_wide(a.device):
        torch.addmm(to, a, b, out_dtype=torch.float32, out=to)
    else:
        to += wide_product(a, b) if a.is_cuda else a @ b


@cache
def _adds_wide(device: torch.device) -> bool:
    """Whether this torch adds products of bf16 to a sum in fp32; early versions with `out_dtype` take a sum in bf16."""
    if device.type != "cuda":
        return False
    ones, total = torch.ones(16, 16, dtype=torch.bfloat16, device=device), torch.ones(16, 16, device=device)
    try:
        torch.addmm(total, ones, ones, out_dtype=torch.float32, out=total)
    except RuntimeError:
        return False
    return bool((total == 17).all())


def gradient_of(parameter: Tensor) -> Tensor:
    """Return the gradient of a parameter, zeros if there is none yet."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


def has_kernels(x: Tensor) -> bool:
    """Whether kernels compute with a tensor like this one: of two bytes a value, on Hopper or newer."""
    if not x.is_cuda or x.dtype not in (torch.bfloat16, torch.float16):
        return False
    return torch.cuda.get_device_capability(x.device) >= KERNEL_CAPABILITY


def norm_forward(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return x [N, H] / sqrt(mean(x^2) + eps) times `weight`, in x's dtype, and the factor 1 / sqrt(...) [N, 1]."""
    if has_kernels(x) and x.stride(1) == 1:
        from eyas.kernels.training import rows

        return rows.norm_forward(x, weight.detach(), eps)
    values = wide(x)
    factor = torch.rsqrt(values.square().mean(-1, keepdim=True) + eps)
    return (values * factor).mul_(weight).to(x.dtype), factor


def norm_backward(d_out: Tensor, x: Tensor, factor: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of x [N, H], in its dtype, and of the weight [H]."""
    if has_kernels(x) and x.stride(1) == 1 and d_out.stride(1) == 1:
        from eyas.kernels.training import rows

        return rows.norm_backward(d_out, x, factor, weight.detach())
    unit = wide(x) * factor
    d_weight = wide(d_out) * unit
    d_unit = wide(d_out) * weight
    inner = (d_weight * weight).mean(-1, keepdim=True)
    return d_unit.addcmul_(unit, inner, value=-1).mul_(factor).to(x.dtype), d_weight.sum(0)


def rms_norm(x_NH: Tensor, weight_H: Tensor, eps: float) -> Tensor:
    """Return the norm of rows, in their dtype."""
    out: Tensor = _RmsNorm.apply(x_NH, weight_H, eps)  # type: ignore[no-untyped-call]
    return out


def linear(x: Tensor, matrix: Tensor, parameter: Tensor) -> Tensor:
    """Return x matrix^T, where `matrix` is the parameter in x's dtype.

    The parameter's gradient is added to its `.grad` in the backward pass, in its own dtype: a sum over depths in bf16
    would lose bits, and take two passes over the matrix more for each.
    """
    out: Tensor = _Linear.apply(x, matrix.detach(), parameter)  # type: ignore[no-untyped-call]
    return out


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Return silu(gate) up."""
    out: Tensor = _SwiGlu.apply(gate, up)  # type: ignore[no-untyped-call]
    return out


def rotate(x_RND: Tensor, cos_RD: Tensor, sin_RD: Tensor) -> Tensor:
    """Return rotated queries or keys [R, N, D]; half-split form (NeoX), tables of D / 2."""
    if has_kernels(x_RND):
        out: Tensor = _Rotation.apply(x_RND, cos_RD, sin_RD)  # type: ignore[no-untyped-call]
        return out
    a, b = wide(x_RND).chunk(2, dim=-1)
    cos, sin = cos_RD[:, None], sin_RD[:, None]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x_RND.dtype)


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_NH: Tensor, weight_H: Tensor, eps: float) -> Tensor:
        out, factor_N1 = norm_forward(x_NH, weight_H, eps)
        ctx.save_for_backward(x_NH, factor_N1, weight_H)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return *norm_backward(grads[0], *ctx.saved_tensors), None


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Tensor, parameter: Tensor) -> Tensor:
        ctx.save_for_backward(x, matrix)
        ctx.parameter = parameter
        return F.linear(x, matrix)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, matrix = ctx.saved_tensors
        if ctx.needs_input_grad[2]:
            add_product(gradient_of(ctx.parameter), grads[0].T, x)
        return grads[0] @ matrix if ctx.needs_input_grad[0] else None, None, None


class _SwiGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        if has_kernels(gate):
            from eyas.kernels.training.rows import swiglu_forward

            return swiglu_forward(gate, up)
        return F.silu(gate).mul_(up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        gate, up = ctx.saved_tensors
        if has_kernels(gate):
            from eyas.kernels.training.rows import swiglu_backward

            return swiglu_backward(grads[0].contiguous(), gate, up)
        return torch.ops.aten.silu_backward(grads[0] * up, gate), F.silu(gate).mul_(grads[0])


class _Rotation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_RND: Tensor, cos_RD: Tensor, sin_RD: Tensor) -> Tensor:
        from eyas.kernels.training.rows import rotated

        ctx.save_for_backward(cos_RD, sin_RD)
        return rotated(x_RND.contiguous(), cos_RD, sin_RD)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        from eyas.kernels.training.rows import rotated

        return rotated(grads[0].contiguous(), *ctx.saved_tensors, back=True), None, None
