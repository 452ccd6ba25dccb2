"""Muon for stacks of matrices, and a schedule that ends on time at any speed.

Muon: Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024. Momentum, orthogonalised by a
quintic Newton-Schulz iteration, is the update; all matrices of a stack are done in one batched product.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable

import torch
from torch import Tensor

__all__ = ["Clock", "Muon", "cosine"]

_QUINTIC = (3.4445, -4.7750, 2.0315)  # raises small singular values fast; the result lies in about [0.7, 1.2]


def orthogonalize(matrices: Tensor, steps: int = 5) -> Tensor:
    """The nearest (semi-)orthogonal matrices, roughly, of a stack [..., N, K]; in bf16 on a GPU."""
    a, b, c = _QUINTIC
    x = matrices.bfloat16() if matrices.is_cuda else matrices.clone()
    wide = x.shape[-2] > x.shape[-1]
    if wide:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if wide else x


class Muon(torch.optim.Optimizer):
    """For parameters whose last two axes are matrices; leading axes are a stack."""

    def __init__(self, params: Iterable[torch.nn.Parameter], lr: float, momentum: float = 0.95) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                velocity = state.setdefault("velocity", torch.zeros_like(parameter))
                velocity.lerp_(parameter.grad, 1 - group["momentum"])
                update = orthogonalize(parameter.grad.lerp(velocity, group["momentum"]))
                scale = max(1.0, parameter.shape[-2] / parameter.shape[-1]) ** 0.5
                parameter.add_(update.to(parameter.dtype), alpha=-group["lr"] * scale)


class Clock:
    """Elapsed fraction of a time budget, or of a number of steps. Starts at the first reading."""

    def __init__(self, *, seconds: float | None, steps: int | None) -> None:
        self.seconds, self.steps = seconds, steps
        self.started: float | None = None
        self.step = -1

    def tick(self) -> float:
        """Count a step; the fraction of the budget gone before it, at least 1 when it is over."""
        self.step += 1
        if self.steps is not None:
            return self.step / self.steps
        assert self.seconds is not None
        now = time.perf_counter()
        if self.started is None:
            self.started = now
        return (now - self.started) / self.seconds


def cosine(fraction: float, *, warmup: float = 0.02, floor: float = 0.02) -> float:
    """Learning-rate factor: linear warm-up, then half a cosine down to `floor`."""
    if fraction < warmup:
        return max(fraction, 1e-3) / warmup
    gone = min((fraction - warmup) / (1 - warmup), 1.0)
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * gone))
