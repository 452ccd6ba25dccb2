"""Scores as integers: keys that order like fp32 numbers, and pairs of a score and an id that order like a ranking."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["LOWEST", "key_of", "pack", "packed_id", "packed_score", "score_of"]

LOWEST = tl.constexpr(-(2**63))  # below every packed pair


@triton.jit
def key_of(scores):
    """Return int32 keys with the order of fp32 scores; -0 is below +0."""
    bits = scores.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def score_of(keys):
    """Inverse of `key_of` for keys that fit 32 bits."""
    bits = keys.to(tl.int32)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def pack(scores, ids):
    """Return int64, of which the highest is that of the highest score, and of the lowest id among equal scores."""
    keys = key_of(scores + 0.0)  # -0 counts as +0
    return (keys.to(tl.int64) << 32) | (0x7FFFFFFF - ids).to(tl.int64)


@triton.jit
def packed_score(packed):
    return score_of(packed >> 32)


@triton.jit
def packed_id(packed):
    return 0x7FFFFFFF - (packed & 0xFFFFFFFF).to(tl.int32)
