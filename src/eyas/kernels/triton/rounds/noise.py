"""Position-keyed Gumbel noise in kernels: the values of `kernels.reference.rounds.noise`, and their arithmetic.

Nothing but additions, multiplications and integer operations, compiled without fused multiply-adds: every kernel,
launch and device that uses these functions gets the same bits for the same (seed, choice, position, id).
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["gumbel", "gumbel_of", "log"]


@triton.jit
def log(x):
    """Natural logarithm of positive normal fp32 numbers, within about one unit in the last place.

    Polynomial and splitting of ln 2: S. Moshier's Cephes library, `logf`.
    """
    bits = x.to(tl.int32, bitcast=True)
    exponent = (bits - 0x3F3504F3) >> 23  # leaves a factor between sqrt(1/2) and sqrt(2)
    m = (bits - (exponent << 23)).to(tl.float32, bitcast=True) - 1.0
    e = exponent.to(tl.float32)
    p = m * 7.0376836292e-2 - 1.1514610310e-1
    p = p * m + 1.1676998740e-1
    p = p * m - 1.2420140846e-1
    p = p * m + 1.4249322787e-1
    p = p * m - 1.6668057665e-1
    p = p * m + 2.0000714765e-1
    p = p * m - 2.4999993993e-1
    p = p * m + 3.3333331174e-1
    square = m * m
    p = p * m * square - e * 2.12194440e-4 - square * 0.5
    return (m + p) + e * 0.693359375


@triton.jit
def _of_bits(bits):
    """Standard Gumbel fp32 of 32 random bits: -log E with E = -log(1 - w), w = (r + 1/2) 2^-32."""
    w = tl.minimum((bits.to(tl.float32) + 0.5) * 2.3283064365386963e-10, 1.0 - 2.0**-24)
    u = 1.0 - w
    return -log(-(log(u) + ((1.0 - u) - w)))  # the rounding error of u, which is all there is of small w


@triton.jit
def _words(block, position, choice, seed):
    return tl.philox(seed, block, position, choice, tl.zeros_like(block))


@triton.jit
def gumbel(seed, choice, position, first, SIZE: tl.constexpr):
    """Noise fp32 [SIZE] for the ids from `first` on, a multiple of 4, of one row."""
    block = first // 4 + tl.arange(0, SIZE // 4)
    w0, w1, w2, w3 = _words(block, position, choice, seed)
    return _of_bits(tl.interleave(tl.interleave(w0, w2), tl.interleave(w1, w3)))


@triton.jit
def gumbel_of(seed, choice, position, ids):
    """Noise of arbitrary int32 ids of one row."""
    w0, w1, w2, w3 = _words(ids // 4, position, choice, seed)
    lane = ids % 4
    return _of_bits(tl.where(lane < 2, tl.where(lane == 0, w0, w1), tl.where(lane == 2, w2, w3)))
