"""Inner loops that the prompt kernels share: tiles of `BlockedMatrix` and of `PackedExperts` times rows.

A row's result must not depend on how many rows are in the launch. Every output element is one chain of tensor-core
instructions of 16 products each, in ascending order of k, for every tile; so tiles may differ where rows are few.
`tests/kernels/triton` and the GPU tests compare the bits.

Shape letters: T rows, N features out, K features in, F features of a tile.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["dense_product", "expert_product", "grouped_tile", "halves", "inverse_rms", "streamed_product", "word_order"]

# The interpreter knows neither inline assembly nor products of bf16; it is given fp32.
_INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))


@triton.jit
def grouped_tile(tile, num_rows, blocks_n, BLOCK_T: tl.constexpr, GROUP_T: tl.constexpr):
    """Return (tile of rows, tile of features) of a tile's number, so that those computed together share both."""
    group = tile // (GROUP_T * blocks_n) * GROUP_T
    size = tl.minimum(tl.cdiv(num_rows, BLOCK_T) - group, GROUP_T)
    inner = tile % (GROUP_T * blocks_n)
    return group + inner % size, inner // size


@triton.jit
def inverse_rms(square_sums_ptr, rows, mask, width, eps, PARTS: tl.constexpr):
    """Compute rsqrt(mean of squares + eps) of `rows`, whose squares are summed in PARTS parts.

    Parts are added one after the other: the order of `tl.sum` follows the layout, which differs between launches.
    """
    total = tl.load(square_sums_ptr + rows * PARTS, mask=mask, other=0.0)
    for part in tl.static_range(1, PARTS):
        total += tl.load(square_sums_ptr + rows * PARTS + part, mask=mask, other=0.0)
    return tl.rsqrt(total / width + eps)


@triton.jit
def dense_product(
    x_ptr, x_rows, w_ptr, features, K, BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    """Compute fp32 [BLOCK_T, BLOCK_N]: rows `x_rows` of bf16 [.., K] times rows `features` of a blocked matrix.

    Layout of the matrix: [N / 16, K / 32, 16, 32] (`kernels.layouts.dense.BlockedMatrix`). K is a multiple of 32.
    """
    k = tl.arange(0, BLOCK_K)
    x_ptrs = x_ptr + x_rows.to(tl.int64)[:, None] * K + k[None, :]
    w_rows = (features // 16).to(tl.int64) * (K * 16) + (features % 16) * 32
    w_ptrs = w_ptr + w_rows[:, None] + ((k // 32) * 512 + k % 32)[None, :]
    acc = tl.zeros((BLOCK_T, BLOCK_N), tl.float32)
    for start in range(0, K, BLOCK_K):
        inside = (start + k < K)[None, :]
        x = tl.load(x_ptrs, mask=inside, other=0.0)
        w = tl.load(w_ptrs, mask=inside, other=0.0)
        acc = tl.dot(x, w.T, acc)
        x_ptrs += BLOCK_K
        w_ptrs += BLOCK_K * 16
    return acc


@triton.jit
def streamed_product(x, w, row, block, feature, K, BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr, STEP: tl.constexpr):
    """Compute what `dense_product` does, fp32 [BLOCK_T, BLOCK_N], of operands that TMA copies
    (`kernels.triton.prompts.tma`).

    `row` is the first row; `block` and `feature` are coordinates of the descriptor of weights, STEP its columns.
    """
    acc = tl.zeros((BLOCK_T, BLOCK_N), tl.float32)
    for step in range(tl.cdiv(K, STEP)):
        rows = x.load([row, step * STEP])
        weights = w.load([block, 0, feature, step * STEP]).reshape(BLOCK_N, STEP)
        acc = tl.dot(rows, weights.T, acc)
    return acc


@triton.jit
def halves(acc, BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr):
    """Split [BLOCK_T, BLOCK_N] into its first and its last columns."""
    return acc.reshape(BLOCK_T, 2, BLOCK_N // 2).permute(0, 2, 1).split()


@triton.jit
def _unpack(words, factors):
    """The four pairs of weights in each word of eight, in bf16: see `kernels.layouts.mxfp4`.

    The last axis of words, factors and pairs is the two halves of a 32-bit register.
    """
    if _INTERPRETED:
        low, high = words.to(tl.uint32).split()
        q = low | (high << 16)
        pair0 = q & 0x81C081C0
        pair1 = ((q >> 4) | (q << 28)) & 0x81C081C0
        pair2 = (q << 6) & 0x81C081C0
        pair3 = (((q >> 6) | (q << 26)) & 0x81808180) | ((q << 2) & 0x00400040)
        pair0 = _times(pair0, factors)
        pair1 = _times(pair1, factors)
        pair2 = _times(pair2, factors)
        pair3 = _times(pair3, factors)
    else:
        pair0, pair1, pair2, pair3 = tl.inline_asm_elementwise(
            """
            {
            .reg .b32 a, b;
            and.b32 a, $4, 0x81C081C0;
            mul.rn.bf16x2 $0, a, $5;
            shf.r.wrap.b32 a, $4, $4, 4;
            and.b32 a, a, 0x81C081C0;
            mul.rn.bf16x2 $1, a, $5;
            shl.b32 a, $4, 6;
            and.b32 a, a, 0x81C081C0;
            mul.rn.bf16x2 $2, a, $5;
            shl.b32 b, $4, 2;
            and.b32 b, b, 0x00400040;
            shf.r.wrap.b32 a, $4, $4, 6;
            lop3.b32 a, a, 0x81808180, b, 0xEA; // (a & mask) | b
            mul.rn.bf16x2 $3, a, $5;
            }
            """,
            "=&r,=&r,=&r,=&r,r,r",
            args=[words, factors],
            dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=2,
        )
    return pair0, pair1, pair2, pair3


@triton.jit
def _times(pair, factors):
    """A register of two bf16 times two factors, as fp32 on a last axis of two."""
    both = tl.join(pair << 16, pair & 0xFFFF0000).to(tl.float32, bitcast=True)
    return both * (factors.to(tl.uint32) << 16).to(tl.float32, bitcast=True)


@triton.jit
def _finished(acc):
    """Return `acc` after a use that makes the compiler wait for the matrix instructions of this step of a loop.

    Otherwise Triton 3.6 overwrites their operands in registers while they run (triton-lang/triton issue 9433).
    """
    if _INTERPRETED:
        return acc
    return tl.inline_asm_elementwise("", "=f,0", args=[acc], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def expert_product(
    x_ptr, x_rows, words_ptr, scales_ptr, first_tile, num_tiles, K,
    BLOCK_F: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """fp32 [BLOCK_F / 16, 8, 2, BLOCK_T]: 16-row tiles `first_tile`... of a packed expert times `x_rows`, transposed.

    The first three axes are the matrix's rows in order. The columns of `x_rows` stand in the order in which the packed
    words hold them (`word_order`), so that weights go from a 16-byte load to the registers of the tensor cores without
    leaving their thread. K is a multiple of 32, BLOCK_K of 64.
    """
    TILES: tl.constexpr = BLOCK_F // 16
    STEPS: tl.constexpr = BLOCK_K // 64
    num_k64 = (K + 63) // 64
    tile = tl.minimum(first_tile + tl.arange(0, TILES), num_tiles - 1)
    halves_ptr = words_ptr.to(tl.pointer_type(tl.uint16), bitcast=True)
    half, scale, k = tl.arange(0, STEPS * 256), tl.arange(0, STEPS * 8), tl.arange(0, BLOCK_K)
    w_ptrs = halves_ptr + tile[:, None] * (num_k64 * 256) + half[None, :]
    s_ptrs = scales_ptr + tile[:, None] * (num_k64 * 8) + scale[None, :]
    x_ptrs = x_ptr + x_rows.to(tl.int64)[:, None] * K + k[None, :]
    # Right rotations of a word of scales that bring the factor of (block of 32, row half) to bits 14..7: 0, 16, 24, 8.
    rotation = (tl.arange(0, 2)[:, None] * 24 + tl.arange(0, 2)[None, :] * 16).reshape(1, 1, 1, 1, 2, 2, 1) & 31
    acc = tl.zeros((BLOCK_F, BLOCK_T), tl.float32)
    for start in range(0, K, BLOCK_K):
        if STEPS == 1:
            words = tl.load(w_ptrs)
            scales = tl.load(s_ptrs)
        else:
            steps = num_k64 - start // 64
            words = tl.load(w_ptrs, mask=(half // 256 < steps)[None, :], other=0)
            scales = tl.load(s_ptrs, mask=(scale // 8 < steps)[None, :], other=0)
        # Axes: tile, step of 64 columns, g, t, block of 32 columns, row half, register half.
        words = words.reshape(TILES, STEPS, 8, 4, 2, 2, 2)
        scales = scales.to(tl.uint32, bitcast=True).reshape(TILES, STEPS, 8, 1, 1, 1, 1)
        factors = ((scales >> rotation) | (scales << ((32 - rotation) & 31))) & 0x7F80
        factors = tl.broadcast_to(factors.to(tl.uint16), TILES, STEPS, 8, 4, 2, 2, 2)
        x = tl.load(x_ptrs, mask=(start + k < K)[None, :], other=0.0)
        pair0, pair1, pair2, pair3 = _unpack(words, factors)
        weights = tl.join(tl.join(pair0, pair2), tl.join(pair1, pair3))
        weights = weights.permute(0, 5, 2, 1, 4, 7, 8, 3, 6).reshape(BLOCK_F, BLOCK_K)
        acc = _finished(tl.dot(weights.to(x.dtype), x.T, acc))
        w_ptrs += STEPS * 256
        s_ptrs += STEPS * 8
        x_ptrs += BLOCK_K
    return acc.reshape(TILES, 2, 8, BLOCK_T).permute(0, 2, 1, 3)


@triton.jit
def word_order(column):
    """The column that stands at place `column` of a row for `expert_product`."""
    # Place (b, i, c, t, e) holds column 32 b + 8 t + 4 i + 2 c + e.
    inner = column % 32
    return column - inner + (inner // 2 % 4) * 8 + (inner // 16) * 4 + (inner // 8 % 2) * 2 + inner % 2
