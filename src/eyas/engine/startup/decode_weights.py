"""Decides whether attention's matrices get a copy in 12 bits, which costs memory for pages and saves time a token."""

from __future__ import annotations

import logging

from eyas.base.errors import UserError
from eyas.base.settings.config import EngineConfig
from eyas.base.units import readable
from eyas.model.checkpoints.device_layout import add_copies, copies_bytes, num_copies
from eyas.model.devices import available_bytes
from eyas.model.weights import TargetWeights

__all__ = ["check_decode_weights", "fit_decode_weights"]

ROOM = 20  # times the copies must be free for 'auto': of gpt-oss-120b's 1.46 GB an H200 has 55, an H100 of 80 GB 13
log = logging.getLogger(__name__)


def check_decode_weights(config: EngineConfig, *, has_kernels: bool) -> None:
    """Raises UserError where copies are asked for that nothing would read."""
    if config.decode_weights == "12bit" and not has_kernels:
        raise UserError("--decode-weights 12bit is for the kernels of a GPU from Hopper on; leave it out")


def fit_decode_weights(config: EngineConfig, weights: TargetWeights) -> TargetWeights:
    """Return packed weights with the copies that the settings ask for. All other weights are in memory already."""
    if config.decode_weights == "bf16":
        return weights
    needed, room = copies_bytes(weights), available_bytes(weights.embed_VH.device)
    if config.decode_weights == "auto" and needed * ROOM > room:
        log.info(
            "no copies of attention's matrices in 12 bits: they need %s of %s; --decode-weights 12bit makes them",
            readable(needed), readable(room),
        )  # fmt: skip
        return weights
    weights = add_copies(weights)
    made, asked = num_copies(weights), 2 * len(weights.layers)
    if made < asked:
        log.warning("%d of %d matrices of attention stay in bf16: their exponents vary too much", asked - made, asked)
    return weights
