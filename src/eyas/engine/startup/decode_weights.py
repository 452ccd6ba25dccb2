"""Copies of attention's matrices in 12 bits, where they are asked for."""

from __future__ import annotations

import logging

from eyas.base.errors import UserError
from eyas.base.settings.config import EngineConfig
from eyas.model.checkpoints.device_layout import add_copies, num_copies
from eyas.model.weights import TargetWeights

__all__ = ["check_decode_weights", "fit_decode_weights"]

log = logging.getLogger(__name__)


def check_decode_weights(config: EngineConfig, *, has_kernels: bool) -> None:
    """Raises UserError where copies are asked for that nothing would read."""
    if config.decode_weights == "12bit" and not has_kernels:
        raise UserError("--decode-weights 12bit is for the kernels of a GPU from Hopper on; leave it out")


def fit_decode_weights(config: EngineConfig, weights: TargetWeights) -> TargetWeights:
    """Return packed weights with the copies that the settings ask for. All other weights are in memory already."""
    if config.decode_weights == "bf16":
        return weights
    weights = add_copies(weights)
    made, asked = num_copies(weights), 2 * len(weights.layers)
    if made < asked:
        log.warning("%d of %d matrices of attention stay in bf16: their exponents vary too much", asked - made, asked)
    return weights
