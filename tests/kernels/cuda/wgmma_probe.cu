// The matrix instruction of a warpgroup beside that of a warp, in the same order of columns.
//
// Defines: ROWS, SHORT (rows of 64 bytes in shared memory instead of 128).
#include "wgmma.cuh"

constexpr int SHORT_BYTES = ROWS * 64;  // of all rows and 32 columns

// c[64][ROWS] = a[64][k] b[ROWS][k]^T, one warpgroup, k a multiple of 64; by_warp[64][ROWS] the same by mma_bf16.
extern "C" __global__ void __launch_bounds__(128)
    multiply(float* c, float* by_warp, const u16* a, const u16* b, int num_k) {
    SHARED(u8, shared);
    u8* const rows = shared + (-reinterpret_cast<u64>(shared) & 1023);
    const int g = lane_id() / 4, t = lane_id() % 4, first = 16 * warp_id();
    float sums[ROWS / 2] = {}, others[ROWS / 8][4] = {};
    pdl_wait();
    for (int k = 0; k < num_k; k += 64) {
        for (int i = threadIdx.x; i < ROWS * 8; i += 128) {  // pieces of 16 bytes
            const int row = i / 8, piece = i % 8;
            const int place = SHORT ? piece / 4 * SHORT_BYTES + row * 64 + (piece % 4 ^ row / 2 % 4) * 16
                                    : row * 128 + (piece ^ (row & 7)) * 16;
            *reinterpret_cast<uint4*>(rows + place) =
                *reinterpret_cast<const uint4*>(b + row * num_k + k + piece * 8);
        }
        async_fence();
        __syncthreads();
        u32 left[4][4];
        for (int i = 0; i < 4; ++i)
            for (int j = 0; j < 4; ++j)
                left[i][j] = *reinterpret_cast<const u32*>(a + (first + g + j % 2 * 8) * num_k + k + 16 * i + 2 * t + j / 2 * 8);
        wgmma_ready(left);
        wgmma_fence();
        for (int i = 0; i < 4; ++i)
            wgmma(sums, left[i],
                  SHORT ? wgmma_short_rows(rows + i / 2 * SHORT_BYTES, i % 2) : wgmma_rows(wgmma_begin(rows), 0, i));
        wgmma_commit();
        wgmma_wait<0>();
        for (int i = 0; i < 4; ++i) {
            for (int n = 0; n < ROWS / 8; ++n) {
                const u16* const right = b + (8 * n + g) * num_k + k + 16 * i + 2 * t;
                mma_bf16(others[n], left[i], *reinterpret_cast<const u32*>(right), *reinterpret_cast<const u32*>(right + 8));
            }
        }
        __syncthreads();
    }
    for (int i = 0; i < ROWS / 2; ++i) {
        const int place = (first + g + i / 2 % 2 * 8) * ROWS + i / 4 * 8 + 2 * t + i % 2;
        c[place] = sums[i];
        by_warp[place] = others[i / 4][i % 4];
    }
}

// c[64][64] = a[64][k] b[k][64], one warpgroup, k a multiple of 64: a sum over the rows of 128 bytes. The first
// instruction of all sets the sums.
extern "C" __global__ void __launch_bounds__(128) multiply_over_rows(float* c, const u16* a, const u16* b, int num_k) {
    SHARED(u8, shared);
    u8* const rows = shared + (-reinterpret_cast<u64>(shared) & 1023);
    const int g = lane_id() / 4, t = lane_id() % 4, first = 16 * warp_id();
    float sums[32], zeros[32];
    pdl_wait();
    for (int k = 0; k < num_k; k += 64) {
        for (int i = threadIdx.x; i < 64 * 8; i += 128) {  // pieces of 16 bytes
            const int row = i / 8, piece = i % 8;
            *reinterpret_cast<uint4*>(rows + row * 128 + (piece ^ (row & 7)) * 16) =
                *reinterpret_cast<const uint4*>(b + (k + row) * 64 + piece * 8);
        }
        async_fence();
        __syncthreads();
        u32 left[4][4], nothing[1][4] = {};
        for (int i = 0; i < 4; ++i)
            for (int j = 0; j < 4; ++j)
                left[i][j] = *reinterpret_cast<const u32*>(a + (first + g + j % 2 * 8) * num_k + k + 16 * i + 2 * t + j / 2 * 8);
        wgmma_ready(left);
        wgmma_ready(nothing);
        wgmma_fence();
        if (k == 0) {
            wgmma_first(zeros, nothing[0], wgmma_rows(wgmma_begin(rows), 0, 0));
            wgmma_commit();
            wgmma_wait<0>();
            wgmma_done(zeros);
            for (int i = 0; i < 32; ++i) sums[i] = zeros[i];
            wgmma_done(sums);
            wgmma_fence();
        }
        for (int i = 0; i < 4; ++i) wgmma_over_rows(sums, left[i], wgmma_sixteen(wgmma_begin(rows), 0, i));
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_done(sums);
        __syncthreads();
    }
    for (int i = 0; i < 32; ++i) c[(first + g + i / 2 % 2 * 8) * 64 + i / 4 * 8 + 2 * t + i % 2] = sums[i];
}
