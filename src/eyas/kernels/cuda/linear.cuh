// What the two kernels of dense products share: how K is cut and how a finished sum becomes an output.
#pragma once
#include "common.cuh"

#ifndef FP8
#define FP8 0  // of the matrix: e4m3 with a factor a feature, or bf16
#endif

constexpr int TILE = 16;                       // features
constexpr int BLOCK_BYTES = FP8 ? 512 : 1024;  // 16 features x 32 of K, see layout.py
constexpr int SLICES = 16;                     // of a share of K

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

// A block of a tile in shared memory as the weights of two matrix instructions: k 8t .. 8t + 3 and 8t + 4 .. 8t + 7.
DEVICE void load_block(const u8* block, u32 (&first)[4], u32 (&second)[4]) {
#if FP8
    const uint2 low = *reinterpret_cast<const uint2*>(block + lane_id() * 8);
    const uint2 high = *reinterpret_cast<const uint2*>(block + BLOCK_BYTES / 2 + lane_id() * 8);
    widen_fp8(low.x, first[0], first[2]);
    widen_fp8(high.x, first[1], first[3]);
    widen_fp8(low.y, second[0], second[2]);
    widen_fp8(high.y, second[1], second[3]);
#else
    const uint4 low = *reinterpret_cast<const uint4*>(block + lane_id() * 16);
    const uint4 high = *reinterpret_cast<const uint4*>(block + BLOCK_BYTES / 2 + lane_id() * 16);
    first[0] = low.x, first[1] = high.x, first[2] = low.y, first[3] = high.y;
    second[0] = low.z, second[1] = high.z, second[2] = low.w, second[3] = high.w;
#endif
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
