"""Rotary tables: default, linear, YaRN and llama3 frequency scaling, in half-split form."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from eyas.kernels.reference.layers.ops import RopeTable
from eyas.model.config import RopeConfig

__all__ = ["inverse_frequencies", "rope_table"]


def _yarn(config: RopeConfig, plain: Tensor, head_dim: int) -> Tensor:
    """Apply YaRN (Peng et al., 2023; gpt_oss/torch/model.py): slow dimensions are interpolated, fast ones kept."""

    def dimension(rotations: float) -> float:
        """Index of the frequency that turns `rotations` times within the original context."""
        return (head_dim / 2) * math.log(config.original_context / (rotations * 2 * math.pi)) / math.log(config.theta)

    low, high = dimension(config.beta_fast), dimension(config.beta_slow)
    if config.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # the ramp needs a width
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float64) - low) / (high - low)).clamp(0, 1)
    return plain / config.factor * ramp + plain * (1 - ramp)


def _llama3(config: RopeConfig, plain: Tensor) -> Tensor:
    """Llama 3.1's scaling (transformers `modeling_rope_utils.py`): by wavelength, smooth between the two bounds."""
    wavelength = 2 * math.pi / plain
    low_wavelength = config.original_context / config.low_freq_factor
    high_wavelength = config.original_context / config.high_freq_factor
    smooth = (config.original_context / wavelength - config.low_freq_factor) / (
        config.high_freq_factor - config.low_freq_factor
    )
    blended = (1 - smooth) * plain / config.factor + smooth * plain
    scaled = torch.where(wavelength > low_wavelength, plain / config.factor, blended)
    return torch.where(wavelength < high_wavelength, plain, scaled)


def inverse_frequencies(config: RopeConfig, head_dim: int) -> Tensor:
    """Return the inverse frequencies, fp64 [head_dim / 2]."""
    plain = config.theta ** -(torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    match config.kind:
        case "default":
            return plain
        case "linear":
            return plain / config.factor
        case "yarn":
            return _yarn(config, plain, head_dim)
        case "llama3":
            return _llama3(config, plain)


def rope_table(config: RopeConfig, head_dim: int, num_positions: int, device: torch.device) -> RopeTable:
    scale = 1.0
    if config.kind == "yarn":
        scale = config.attention_factor if config.attention_factor is not None else 0.1 * math.log(config.factor) + 1
    positions = torch.arange(num_positions, dtype=torch.float32)
    angles = torch.outer(positions, inverse_frequencies(config, head_dim).float())
    return RopeTable((angles.cos() * scale).to(device), (angles.sin() * scale).to(device))
