// What the kernels of dense products that divide K among the blocks of a cluster share: stages, parts, the end of a sum.
//
// Defines: STAGE_BLOCKS (of K in a stage: 1 to 4), and as in linear.cu NUM_BLOCKS, SHARES, GROUPS, GATED.
#pragma once
#include "dense/linear.cuh"

constexpr int PARTS = SHARES * GROUPS, PART_SLICES = SLICES / GROUPS;
constexpr int STEPS = ((NUM_BLOCKS + SHARES * SLICES - 1) / (SHARES * SLICES) + STAGE_BLOCKS - 1) / STAGE_BLOCKS;  // of a slice
constexpr int PART_STAGES = PART_SLICES * STEPS;

// Blocks of K of a stage of a part.
DEVICE Range blocks_of(int part, int number) {
    const Range slice = part_of(part * PART_SLICES + number / STEPS, SHARES * SLICES, NUM_BLOCKS);
    const int begin = min(slice.begin + number % STEPS * STAGE_BLOCKS, slice.end);
    return {begin, min(begin + STAGE_BLOCKS, slice.end)};
}

// sums += the parts of all blocks, those of a share first: the order of linear.cu.
DEVICE void add_shares(float (&sums)[4], const float4 (&parts)[PARTS]) {
#pragma unroll
    for (int i = 0; i < SHARES; ++i) {
        float4 share = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
        for (int p = i * GROUPS; p < (i + 1) * GROUPS; ++p)
            share.x += parts[p].x, share.y += parts[p].y, share.z += parts[p].z, share.w += parts[p].w;
        sums[0] += share.x, sums[1] += share.y, sums[2] += share.z, sums[3] += share.w;
    }
}

DEVICE float load_if(const float* values, i64 place, bool valid) { return valid && values != nullptr ? values[place] : 0.f; }

// The end of the sums of a tile and 8 rows, held as the matrix instruction leaves them: at once, or in steps, which lets
// loads go ahead of stores that the compiler takes for the same memory.
struct Finish {
    Output output;
    const float* scales;  // of the block's rows, or null
    float* out_square_sums;
    int num_rows, num_tiles, first_row;

    struct Features {
        float bias[2], factor[2];
    };

    __device__ i64 place(int tile, int column) const {
        return static_cast<i64>(first_row + column) * (num_tiles * TILE) + tile * TILE + (lane_id() >> 2);
    }

    __device__ bool is_live(int tile, int column) const { return tile < num_tiles && first_row + column < num_rows; }

    __device__ Features features(int tile) const {
        const int feature = tile * TILE + (lane_id() >> 2);
        const bool live = tile < num_tiles;
        return {{load_if(output.bias, feature, live), load_if(output.bias, feature + 8, live)},
                {load_if(output.norm, feature, live), load_if(output.norm, feature + 8, live)}};
    }

    __device__ void load_residual(float (&residual)[4], int tile, int first_column) const {
        const int column = first_column + 2 * (lane_id() & 3);
        const i64 at = place(tile, column), num_features = num_tiles * TILE;
#pragma unroll
        for (int i = 0; i < 4; ++i)
            residual[i] = load_if(output.residual, at + i % 2 * num_features + i / 2 * 8, is_live(tile, column + i % 2));
    }

    __device__ void scale(float (&sums)[4], const Features& features, const float (&residual)[4], int first_column) const {
        const int column = first_column + 2 * (lane_id() & 3);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float scale = scales != nullptr ? scales[column + i % 2] : 1.f, bias = features.bias[i / 2];
            sums[i] = __fmaf_rn(sums[i], scale, output.residual == nullptr ? bias : bias + residual[i]);
        }
    }

    __device__ void write(const float (&sums)[4], const Features& features, int tile, int first_column) const {
        const int g = lane_id() >> 2, column = first_column + 2 * (lane_id() & 3);
        const i64 row = first_row + column, num_features = num_tiles * TILE, at = place(tile, column);
        const bool live[2] = {is_live(tile, column), is_live(tile, column + 1)};
#if GATED
#pragma unroll
        for (int odd = 0; odd < 2; ++odd)
            if (live[odd])
                output.out_bf16[(row + odd) * (num_features / 2) + tile * 8 + g] = to_bf16(silu_times(sums[odd], sums[2 + odd]));
#else
#pragma unroll
        for (int i = 0; i < 4; ++i)
            if (live[i % 2]) output.write(sums[i], features.factor[i / 2], at + i % 2 * num_features + i / 2 * 8);
        if (out_square_sums == nullptr) return;
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
            float square = __fmul_rn(sums[odd], sums[odd]) + __fmul_rn(sums[2 + odd], sums[2 + odd]);
#pragma unroll
            for (int step = 16; step > 2; step >>= 1) square += __shfl_xor_sync(FULL_WARP, square, step);
            if (g == 0 && live[odd]) out_square_sums[(row + odd) * num_tiles + tile] = square;
        }
#endif
    }

    __device__ void operator()(float (&sums)[4], int tile, int first_column) const {
        const Features of_tile = features(tile);
        float residual[4];
        load_residual(residual, tile, first_column);
        scale(sums, of_tile, residual, first_column);
        write(sums, of_tile, tile, first_column);
    }
};
