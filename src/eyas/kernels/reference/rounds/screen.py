"""Screening in plain PyTorch: which tokens of a row cannot be drawn, judged by rough logits and a bound of their error.

See `kernels.layouts.int8` for the bound, and `kernels.triton.rounds.screen` for why it stays one through temperature
and noise.

Shape letters: T rows, V vocabulary, H hidden.
"""

from __future__ import annotations

import torch
from torch import Tensor

from eyas.kernels.layouts.dense import TILE_ROWS
from eyas.kernels.layouts.int8 import RoughMatrix
from eyas.kernels.reference.layers.norm import Normed, inverse_rms
from eyas.kernels.reference.rounds.noise import gumbel
from eyas.kernels.reference.rounds.sample import SamplingRows

__all__ = ["MARGIN", "UNDERFLOW", "error_of", "most_length", "screen_ref"]

MARGIN = 1 + 2.0**-8  # over the rounding of a norm's sum and root, and of products with it
UNDERFLOW = 2.0**-56  # over what squares and products lose below 2^-126


def most_length(largest: float) -> float:
    """The norm of a row from which on a logit, or a sum on the way to it, might overflow."""
    return 2.0**100 / max(1.0, largest)


def error_of(normed: Normed, eps: float, rough: RoughMatrix) -> Tensor:
    """Return fp32 [T, V], no less than |exact - rough| of logits as kernels compute both."""
    length_T1: Tensor = normed.rows_TH.float().square().sum(1, keepdim=True).sqrt() * MARGIN + UNDERFLOW
    return length_T1 * inverse_rms(normed, eps) * MARGIN * rough.slack_N * MARGIN + UNDERFLOW


def screen_ref(rough_TV: Tensor, error_TV: Tensor, position_T: Tensor, rows: SamplingRows) -> Tensor:
    """Return bool [T, V / 16], the tiles that hold a token which may have the row's highest score."""
    random_T1 = (rows.temperature > 0).unsqueeze(1)
    divisor = torch.where(random_T1, rows.temperature.unsqueeze(1), 1.0)
    noise = gumbel(rows.seed, rows.choice, position_T, vocab_size=rough_TV.shape[1])
    noise = torch.where(random_T1, noise, 0.0)
    low, high = ((rough_TV + sign * error_TV) / divisor + noise for sign in (-1, 1))
    return torch.unflatten(high >= low.amax(1, keepdim=True), 1, (-1, TILE_ROWS)).any(2)
