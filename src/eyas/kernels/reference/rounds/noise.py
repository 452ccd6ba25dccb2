"""Position-keyed Gumbel noise from a counter-based generator.

Philox-4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011), keyed by the
request's seed; the counter holds the vocabulary id, the position and the choice. One value per (seed, choice, position,
id), independent of all other draws.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["gumbel", "philox_4x32"]

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def _multiply(factor: int, x: Tensor) -> tuple[Tensor, Tensor]:
    """High and low 32 bits of factor * x for 32-bit values in int64; halves of 16 bits keep the product below 2^63."""
    low_part = factor * (x & 0xFFFF)
    high_part = factor * (x >> 16)
    return (high_part + (low_part >> 16)) >> 16, (low_part + (high_part << 16)) & _MASK


def philox_4x32(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Four 32-bit words (in int64) for each 4-word counter and 2-word key; all arguments broadcast."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        high0, low0 = _multiply(_MULTIPLIERS[0], c0)
        high1, low1 = _multiply(_MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def _to_gumbel(bits: Tensor) -> Tensor:
    """Standard Gumbel fp32 from 32 random bits: E = -log1p(-w) with w = (r + 1/2) 2^-32, then -log E.

    Large noise comes from small w, where floats are dense; -log(-log(u)) with u near 1 would quantise the tail that
    decides a draw among 200,000 tokens.
    """
    uniform = (bits.float() + 0.5) * 2.0**-32
    exponential = -torch.log1p(-uniform.clamp(max=1 - 2.0**-24))
    return -torch.log(exponential)


def gumbel(
    seed_T: Tensor, choice_T: Tensor, position_T: Tensor, *, vocab_size: int | None = None, ids_V: Tensor | None = None
) -> Tensor:
    """Noise fp32 [T, V] for the tokens that stand at `position_T`; for ids 0..vocab_size-1, or for `ids_V` alone."""
    key = ((seed_T & _MASK).unsqueeze(1), ((seed_T >> 32) & _MASK).unsqueeze(1))
    position, choice = position_T.unsqueeze(1), choice_T.unsqueeze(1)
    zero = torch.zeros_like(position)
    if ids_V is None:
        assert vocab_size is not None
        block = torch.arange(-(-vocab_size // 4), device=seed_T.device).unsqueeze(0)
        words = torch.stack(philox_4x32((block, position, choice, zero), key), dim=-1)
        return _to_gumbel(words.flatten(1)[:, :vocab_size].contiguous())
    words = torch.stack(philox_4x32(((ids_V // 4).unsqueeze(0), position, choice, zero), key), dim=-1)
    lane = (ids_V % 4).view(1, -1, 1).expand(seed_T.shape[0], -1, 1)
    return _to_gumbel(words.gather(2, lane).squeeze(2))
