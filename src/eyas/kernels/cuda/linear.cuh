// What the two kernels of dense products share: how K is cut and how a finished sum becomes an output.
#pragma once
#include "common.cuh"

constexpr int TILE = 16;            // features
constexpr int BLOCK_BYTES = 1024;   // 16 features x 32 of K, see layout.py
constexpr int SLICES = 16;          // of a share of K

struct Range {
    int begin, end;
};

// Part `index` of `count` nearly equal parts of `total` blocks of K.
DEVICE Range part_of(int index, int count, int total) { return {index * total / count, (index + 1) * total / count}; }

// What follows in the program is issued after the matrix instructions that made c, hence after the loads they used.
template <int N>
DEVICE void issued_before(float (&c)[N][4]) {
#pragma unroll
    for (int n = 0; n < N; ++n) keep_order(c[n]);
}

// 1 / rms of a row from its sums of squares; every lane of a warp calls it. The first 256 sums are asked for at once.
DEVICE float inverse_rms(const float* square_sums, int num_parts, int width, float eps) {
    float parts[8], sum = 0.f;
#pragma unroll
    for (int k = 0; k < 8; ++k) parts[k] = lane_id() + 32 * k < num_parts ? square_sums[lane_id() + 32 * k] : 0.f;
#pragma unroll
    for (int k = 0; k < 8; ++k) sum += parts[k];
    for (int i = lane_id() + 256; i < num_parts; i += 32) sum += square_sums[i];
    return fast_rsqrt(warp_sum(sum) / width + eps);
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
