"""Learning rate by step: a linear warm-up, then a decay."""

from __future__ import annotations

import math
from typing import Literal

__all__ = ["learning_rate_factor"]


def learning_rate_factor(
    step: int, num_steps: int, *, schedule: Literal["cosine", "linear", "constant"], warmup: float, final: float
) -> float:
    """Return the factor on the peak learning rate in step 0, 1, ..., num_steps - 1.

    It rises linearly over the first `warmup` of the steps, and then falls to `final` at the end.
    """
    num_warmup = math.ceil(warmup * num_steps)
    if step < num_warmup:
        return (step + 1) / num_warmup
    if schedule == "constant":
        return 1.0
    gone = min((step + 1 - num_warmup) / max(num_steps - num_warmup, 1), 1.0)
    left = 1 - gone if schedule == "linear" else (1 + math.cos(math.pi * gone)) / 2
    return final + (1 - final) * left
