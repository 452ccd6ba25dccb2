// What the kernels of dense products share: how K is cut and how a finished sum becomes an output.
#pragma once
#include "common.cuh"

#ifndef FP8
#define FP8 0  // of the matrix: e4m3 with a factor a feature, or bf16
#endif
#ifndef INT8
#define INT8 0  // or int8 with an exponent for 32 of them and a factor a feature
#endif
#ifndef BITS12
#define BITS12 0  // of a bf16 matrix: in 12 bits a weight
#endif

constexpr int TILE = 16;           // features
constexpr int PLAIN_BYTES = 1024;  // 16 features x 32 of K in bf16, see layouts/dense.py
constexpr int BLOCK_BYTES = INT8 ? 528 : FP8 ? 512 : BITS12 ? 784 : PLAIN_BYTES;  // the same as it is read
constexpr int SLICES = 16;                                                        // of a share of K

struct Range {
    int begin, end;
};

// Part `index` of `count` nearly equal parts of `total` blocks of K.
DEVICE Range part_of(int index, int count, int total) { return {index * total / count, (index + 1) * total / count}; }

// Four e4m3 as bf16: bytes 0 and 2, then 1 and 3, each to the halves of a register. The bits of an e4m3 at the end of
// those of a bf16 are the number times 2^-120, subnormals too.
DEVICE void widen_fp8(u32 four, u32& even, u32& odd) {
    constexpr u32 SIGNS = 0x80008000u, REST = 0x07f007f0u, TWO_TO_120 = 0x7b807b80u;
    even = mul_bf16x2((four << 8 & SIGNS) | (four << 4 & REST), TWO_TO_120);
    odd = mul_bf16x2((four & SIGNS) | (four >> 4 & REST), TWO_TO_120);
}

// Four int8 times a power of two, which both halves of `scale` hold, as f16. A byte at the end of 1,024 is 1,024 + the
// byte; `offset` is -1,152 times the scale, and all is exact.
DEVICE void widen_int8(u32 four, u32 scale, u32 offset, u32& even, u32& odd) {
    constexpr u32 IS_1024 = 0x64646464u, BYTES_0_2 = 0x4240u, BYTES_1_3 = 0x4341u;
    const u32 above = four ^ 0x80808080u;  // 128 + the number
    even = fma_f16x2(__byte_perm(above, IS_1024, BYTES_0_2), scale, offset);
    odd = fma_f16x2(__byte_perm(above, IS_1024, BYTES_1_3), scale, offset);
}

// Weights of two matrix instructions: k 8t .. 8t + 3 and 8t + 4 .. 8t + 7, of rows g (low) and g + 8 (high).
DEVICE void fragments(uint4 low, uint4 high, u32 (&first)[4], u32 (&second)[4]) {
    first[0] = low.x, first[1] = high.x, first[2] = low.y, first[3] = high.y;
    second[0] = low.z, second[1] = high.z, second[2] = low.w, second[3] = high.w;
}

#if BITS12
constexpr u32 MARKED = 0xffff0080u;  // in the first word of a header: a first mark, or that the block is left plain

// Whether a block has weights that load_block finds only with MARKS.
DEVICE bool has_marks(const u8* block) { return *reinterpret_cast<const u32*>(block + 768) & MARKED; }

// High bytes of up to three weights are less than their code says: lane, place and by how much, see layouts/bits12.py.
DEVICE void lower_marked(u32 (&high)[4], uint4 header) {
    const u32 marks[3] = {header.x >> 16, header.y & 0xffff, header.y >> 16};
#pragma unroll
    for (int i = 0; i < 3; ++i) {
        const u32 mark = marks[i], less = (mark & 31) == lane_id() ? mark >> 9 << (mark >> 2 & 24) : 0;
#pragma unroll
        for (int w = 0; w < 4; ++w) high[w] -= (mark >> 7 & 3) == w ? less : 0;
    }
}

// A block in shared memory, in 12 bits. `plain` has the same in bf16, in global memory, where few are read.
template <bool MARKS>
DEVICE void load_block(const u8* block, u32 (&first)[4], u32 (&second)[4], const u8* plain) {
    constexpr u32 ONES = 0x01010101u, CODES = 0x87u * ONES, FIRST_TWO = 0x5140, LAST_TWO = 0x7362;
    const int lane = lane_id(), shift = lane & 28;  // 4 g
    const uint4 low = *reinterpret_cast<const uint4*>(block + lane * 16);
    const uint2 codes = *reinterpret_cast<const uint2*>(block + 512 + lane * 8);
    const uint4 header = *reinterpret_cast<const uint4*>(block + 768);
    if (MARKS && header.x & 0x80) {
        const u8* const mine = plain + lane * 16;
        fragments(load_16_if(mine, true), load_16_if(mine + PLAIN_BYTES / 2, true), first, second);
        return;
    }
    const u32 base = (header.x & 0x7f) * ONES;
    const u32 of_g = base - (header.z >> shift & 15) * ONES, of_g8 = base - (header.w >> shift & 15) * ONES;
    u32 high[4] = {(codes.x & CODES) + of_g, (__funnelshift_r(codes.x, codes.x, 4) & CODES) + of_g,
                   (codes.y & CODES) + of_g8, (__funnelshift_r(codes.y, codes.y, 4) & CODES) + of_g8};
    if (MARKS) lower_marked(high, header);
    first[0] = __byte_perm(low.x, high[0], FIRST_TWO), first[2] = __byte_perm(low.x, high[0], LAST_TWO);
    second[0] = __byte_perm(low.y, high[1], FIRST_TWO), second[2] = __byte_perm(low.y, high[1], LAST_TWO);
    first[1] = __byte_perm(low.z, high[2], FIRST_TWO), first[3] = __byte_perm(low.z, high[2], LAST_TWO);
    second[1] = __byte_perm(low.w, high[3], FIRST_TWO), second[3] = __byte_perm(low.w, high[3], LAST_TWO);
}
#else
DEVICE bool has_marks(const u8*) { return false; }

// A block of a tile in shared memory, as bf16 or, of INT8, as f16.
template <bool MARKS = false>
DEVICE void load_block(const u8* block, u32 (&first)[4], u32 (&second)[4], const u8* = nullptr) {
#if INT8
    const uint2 low = *reinterpret_cast<const uint2*>(block + lane_id() * 8);
    const uint2 high = *reinterpret_cast<const uint2*>(block + 256 + lane_id() * 8);
    const u32 exponents = *reinterpret_cast<const u16*>(block + 512 + lane_id() / 4 * 2);
    constexpr u32 ONE = 0x04000400u, LESS = 112 * ONE;  // exponent 1 of f16, and the difference of biases
    constexpr u32 MINUS_1152 = 0xe480e480u;
    const u32 low_scale = (exponents & 0xff) * ONE - LESS, low_offset = mul_f16x2(low_scale, MINUS_1152);
    const u32 high_scale = (exponents >> 8) * ONE - LESS, high_offset = mul_f16x2(high_scale, MINUS_1152);
    widen_int8(low.x, low_scale, low_offset, first[0], first[2]);
    widen_int8(high.x, high_scale, high_offset, first[1], first[3]);
    widen_int8(low.y, low_scale, low_offset, second[0], second[2]);
    widen_int8(high.y, high_scale, high_offset, second[1], second[3]);
#elif FP8
    const uint2 low = *reinterpret_cast<const uint2*>(block + lane_id() * 8);
    const uint2 high = *reinterpret_cast<const uint2*>(block + BLOCK_BYTES / 2 + lane_id() * 8);
    widen_fp8(low.x, first[0], first[2]);
    widen_fp8(high.x, first[1], first[3]);
    widen_fp8(low.y, second[0], second[2]);
    widen_fp8(high.y, second[1], second[3]);
#else
    fragments(*reinterpret_cast<const uint4*>(block + lane_id() * 16),
              *reinterpret_cast<const uint4*>(block + BLOCK_BYTES / 2 + lane_id() * 16), first, second);
#endif
}
#endif

// Weights of load_block times rows: bf16 or, of INT8, f16.
DEVICE void multiply_tile(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    if (INT8) mma_f16(c, a, b0, b1);
    else mma_bf16(c, a, b0, b1);
}

// A lane's part of a column of bf16 in f16, times the power of two that brings the largest of the four lanes with that
// column to 2^14 .. 2^15. Returns its inverse. What is 2^39 times smaller than the largest may be lost.
template <int N>
DEVICE float to_f16(uint4 (&words)[N]) {
    u32 largest = 0;
    auto look_at = [&](u32 word) { largest = max(largest, max(word & 0x7fffu, word >> 16 & 0x7fffu)); };
#pragma unroll
    for (int i = 0; i < N; ++i) look_at(words[i].x), look_at(words[i].y), look_at(words[i].z), look_at(words[i].w);
#pragma unroll
    for (int step = 1; step < 4; step *= 2) largest = max(largest, __shfl_xor_sync(FULL_WARP, largest, step));
    const u32 exponent = max(largest >> 7, 16u);
    const float to_fit = __uint_as_float((268u - exponent) << 23);
    auto converted = [&](u32 word) {
        return pack_f16(from_bf16(word & 0xffff) * to_fit, from_bf16(word >> 16) * to_fit);
    };
#pragma unroll
    for (int i = 0; i < N; ++i)
        words[i] = {converted(words[i].x), converted(words[i].y), converted(words[i].z), converted(words[i].w)};
    return __uint_as_float((exponent - 14u) << 23);
}

// What follows in the program is issued after the matrix instructions that made c, hence after the loads they used.
// This holds the compiler; that ptxas keeps to it is looked up in its code (tests/kernels/support/refills.py).
template <int N>
DEVICE void issued_before(float (&c)[N][4]) {
#pragma unroll
    for (int n = 0; n < N; ++n) keep_order(c[n]);
}

// A lane's part of a row's sum of squares. The first 256 sums are asked for at once.
DEVICE float sum_of_lane(const float* square_sums, int num_parts) {
    float parts[8], sum = 0.f;
#pragma unroll
    for (int k = 0; k < 8; ++k) parts[k] = lane_id() + 32 * k < num_parts ? square_sums[lane_id() + 32 * k] : 0.f;
#pragma unroll
    for (int k = 0; k < 8; ++k) sum += parts[k];
    for (int i = lane_id() + 256; i < num_parts; i += 32) sum += square_sums[i];
    return sum;
}

// 1 / rms of a row; every lane of a warp calls it.
DEVICE float inverse_rms(float sum_of_lane, int width, float eps) {
    return fast_rsqrt(warp_sum(sum_of_lane) / width + eps);
}

// The scaled sum plus bias and residual, written as fp32 and as bf16, and made ready for the norm that follows: each
// where there is a pointer.
struct Output {
    const float* bias;
    const float* residual;
    const float* norm;
    float* out;
    u16* out_bf16;
    u16* normed;

    __device__ float addend(int feature, i64 place) const {
        float sum = bias == nullptr ? 0.f : bias[feature];
        return residual == nullptr ? sum : sum + residual[place];
    }

    __device__ void write(float value, float factor, i64 place) const {
        if (out != nullptr) out[place] = value;
        if (out_bf16 != nullptr) out_bf16[place] = to_bf16(value);
        if (normed != nullptr) normed[place] = to_bf16(value * factor);
    }
};

DEVICE float silu_times(float gate, float up) { return gate * fast_reciprocal(1.f + fast_exp(-gate)) * up; }
