// Dense products for more rows than linear.cu keeps in registers: matrix and rows go through shared memory in stages.
//
// A block multiplies ROW_TILES tiles of 16 features with all rows of the launch's chunk. The chains of matrix
// instructions, the slices of K and the order in which their sums are added are those of linear.cu, so a row's bits are
// the same there and here.
//
// Defines: COLUMN_TILES (n-tiles of 8 rows: 4, 8, 16), ROW_TILES (2, 4, 8), STAGES, and as in linear.cu NUM_BLOCKS,
// SHARES, GATED.
#include "linear.cuh"

constexpr int WARPS = 8;
constexpr int COLUMNS = 8 * COLUMN_TILES;
constexpr int STAGE_BLOCKS = 3;               // of K: a row's 192 bytes lie in other banks than its neighbours'
constexpr int STAGE_ROW = 64 * STAGE_BLOCKS;  // bytes
constexpr int MATRIX_BYTES = ROW_TILES * STAGE_BLOCKS * BLOCK_BYTES;
constexpr int STAGE_BYTES = MATRIX_BYTES + COLUMNS * STAGE_ROW;
// A warp's share of the block's product.
constexpr int PRODUCTS = ROW_TILES * COLUMN_TILES / WARPS;
constexpr int M = PRODUCTS > 1 ? 2 : 1, N = PRODUCTS / M;
constexpr int WARPS_M = ROW_TILES / M;
static_assert(M * N * WARPS == ROW_TILES * COLUMN_TILES && WARPS_M * M == ROW_TILES, "every warp has the same share");

// Where a thread's sums belong.
struct Place {
    int tile, feature, row;  // of the launch
    bool live;
    i64 index;
};

struct Places {
    int first_tile, first_row, num_tiles, num_rows;

    __device__ Place operator()(int m, int n, int half, int odd) const {
        const int tile = first_tile + m, row = first_row + n * 8 + 2 * (lane_id() & 3) + odd;
        const int feature = tile * TILE + half * 8 + (lane_id() >> 2);
        const bool live = tile < num_tiles && row < num_rows;
        return {tile, feature, row, live, static_cast<i64>(row) * (num_tiles * TILE) + feature};
    }
};

template <class F>
DEVICE void each_sum(float (&sums)[M][N][4], const Places& places, F f) {
#pragma unroll
    for (int i = 0; i < M * N * 4; ++i)
        f(sums[i / (4 * N)][i / 4 % N][i % 4], places(i / (4 * N), i / 4 % N, i % 4 / 2, i % 2));
}

// The sums of features g and g + 8 of a tile.
template <class F>
DEVICE void each_pair(float (&sums)[M][N][4], const Places& places, F f) {
#pragma unroll
    for (int i = 0; i < M * N * 2; ++i) {
        float(&c)[4] = sums[i / (2 * N)][i / 2 % N];
        f(c[i % 2], c[i % 2 + 2], places(i / (2 * N), i / 2 % N, 0, i % 2));
    }
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, 1)
    linear_tiles(const u16* rows, i64 row_stride, const u8* matrix, int num_rows, int num_tiles,
                 const float* square_sums, int num_parts, float eps, const float* bias, const float* residual,
                 const float* norm, float* out, u16* out_bf16, u16* normed, float* out_square_sums, float* partials,
                 u32* tickets) {
    SHARED(u8, shared);
    float* const scales = reinterpret_cast<float*>(shared + STAGES * STAGE_BYTES);  // [COLUMNS]
    const Output output = {bias, residual, norm, out, out_bf16, normed};

    const int warp = warp_id(), lane = lane_id(), g = lane >> 2, t = lane & 3;
    const int first_tile = blockIdx.x * ROW_TILES, live_tiles = min(ROW_TILES, num_tiles - first_tile);
    const int first_row = blockIdx.y * COLUMNS, live_rows = min(COLUMNS, num_rows - first_row);
    const int share = blockIdx.z;
    const int begin = part_of(share * SLICES, SHARES * SLICES, NUM_BLOCKS).begin;
    const int end = part_of(share * SLICES + SLICES - 1, SHARES * SLICES, NUM_BLOCKS).end;
    const int num_stages = (end - begin + STAGE_BLOCKS - 1) / STAGE_BLOCKS;

    // A stage is copied in pieces of 16 bytes by all threads; what lies behind the matrix or the rows is left out.
    auto blocks_of = [&](int i) { return min(STAGE_BLOCKS, end - begin - i * STAGE_BLOCKS); };  // <= 0 behind the last
    auto copy_matrix = [&](int i) {
        constexpr int PIECES = STAGE_BLOCKS * BLOCK_BYTES / 16;  // of a tile
        u8* const target = shared + i % STAGES * STAGE_BYTES;
        const u8* const source = matrix + (static_cast<i64>(first_tile) * NUM_BLOCKS + begin + i * STAGE_BLOCKS) * BLOCK_BYTES;
        const int pieces = blocks_of(i) * (BLOCK_BYTES / 16);
#pragma unroll
        for (int p = 0; p < ROW_TILES * PIECES; p += WARPS * 32) {
            const int piece = p + threadIdx.x, tile = piece / PIECES, at = piece % PIECES;
            if (piece < ROW_TILES * PIECES && at < pieces && tile < live_tiles)
                copy_async_16(target + piece * 16, source + tile * NUM_BLOCKS * BLOCK_BYTES + at * 16);
        }
    };
    auto copy_rows = [&](int i) {
        constexpr int PIECES = STAGE_ROW / 16;  // of a row
        u8* const target = shared + i % STAGES * STAGE_BYTES + MATRIX_BYTES;
        const u16* const source = rows + first_row * row_stride + (begin + i * STAGE_BLOCKS) * 32;
        const int pieces = blocks_of(i) * 4;
#pragma unroll
        for (int p = 0; p < COLUMNS * PIECES; p += WARPS * 32) {
            const int piece = p + threadIdx.x, row = piece / PIECES, at = piece % PIECES;
            if (at < pieces && row < live_rows) copy_async_16(target + piece * 16, source + row * row_stride + at * 8);
        }
    };
    for (int i = 0; i < STAGES - 1; ++i) copy_matrix(i);
    pdl_trigger();
    pdl_wait();
    for (int i = 0; i < STAGES - 1; ++i) {
        copy_rows(i);
        copy_async_commit();  // the first group has all of the matrix too
    }
    if (square_sums != nullptr)
        for (int row = warp; row < live_rows; row += WARPS) {
            const float* const parts = square_sums + static_cast<i64>(first_row + row) * num_parts;
            const float scale = inverse_rms(parts, num_parts, NUM_BLOCKS * 32, eps);
            if (lane == 0) scales[row] = scale;
        }

    const int m0 = warp % WARPS_M * M, n0 = warp / WARPS_M * N;
    float total[M][N][4] = {}, c[M][N][4] = {};
    auto end_slice = [&] {
#pragma unroll
        for (int i = 0; i < M * N * 4; ++i) {
            float& sum = c[i / (4 * N)][i / 4 % N][i % 4];
            total[i / (4 * N)][i / 4 % N][i % 4] += sum;
            sum = 0.f;
        }
    };
    int slice = share * SLICES, border = part_of(slice, SHARES * SLICES, NUM_BLOCKS).end;
    for (int i = 0; i < num_stages; ++i) {
        copy_async_wait<STAGES - 2>();
        __syncthreads();  // stage i is there, and nobody reads stage i - 1
        copy_matrix(i + STAGES - 1);
        copy_rows(i + STAGES - 1);
        copy_async_commit();
        const u8* const stage = shared + i % STAGES * STAGE_BYTES;
#pragma unroll
        for (int k = 0; k < STAGE_BLOCKS; ++k) {
            const int block = begin + i * STAGE_BLOCKS + k;
            if (block >= end) break;
            if (block == border) {
                end_slice();
                while (block == border) border = part_of(++slice, SHARES * SLICES, NUM_BLOCKS).end;
            }
            u32 first[M][4], second[M][4];
#pragma unroll
            for (int m = 0; m < M; ++m) {
                const u8* const source = stage + ((m0 + m) * STAGE_BLOCKS + k) * BLOCK_BYTES + lane * 16;
                const uint4 low = *reinterpret_cast<const uint4*>(source);
                const uint4 high = *reinterpret_cast<const uint4*>(source + BLOCK_BYTES / 2);
                first[m][0] = low.x, first[m][1] = high.x, first[m][2] = low.y, first[m][3] = high.y;
                second[m][0] = low.z, second[m][1] = high.z, second[m][2] = low.w, second[m][3] = high.w;
            }
#pragma unroll
            for (int n = 0; n < N; ++n) {
                const u8* const source = stage + MATRIX_BYTES + ((n0 + n) * 8 + g) * STAGE_ROW + k * 64 + t * 16;
                const uint4 b = *reinterpret_cast<const uint4*>(source);
#pragma unroll
                for (int m = 0; m < M; ++m) {
                    mma_bf16(c[m][n], first[m], b.x, b.y);
                    mma_bf16(c[m][n], second[m], b.z, b.w);
                }
            }
        }
    }
    end_slice();

    const Places places = {first_tile + m0, first_row + n0 * 8, num_tiles, num_rows};
    if constexpr (SHARES > 1) {
        const i64 plane = static_cast<i64>(num_rows) * num_tiles * TILE;
        each_sum(total, places, [&](float& sum, const Place& at) {
            if (at.live) partials[share * plane + at.index] = sum;
        });
        if (tickets == nullptr || !arrive_last(tickets + blockIdx.x * gridDim.y + blockIdx.y, SHARES)) return;
        each_sum(total, places, [&](float& sum, const Place& at) {
            sum = 0.f;
            if (at.live)
                for (int s = 0; s < SHARES; ++s) sum += partials[s * plane + at.index];
        });
    }
    each_sum(total, places, [&](float& sum, const Place& at) {
        const float scale = at.live && square_sums != nullptr ? scales[at.row - first_row] : 1.f;
        sum = __fmaf_rn(sum, scale, at.live ? output.addend(at.feature, at.index) : 0.f);
    });
#if GATED
    each_pair(total, places, [&](float gate, float up, const Place& at) {
        const i64 index = static_cast<i64>(at.row) * (num_tiles * TILE / 2) + at.tile * (TILE / 2) + g;
        if (at.live) out_bf16[index] = to_bf16(silu_times(gate, up));
    });
#else
    each_sum(total, places, [&](float& sum, const Place& at) {
        if (at.live) output.write(sum, norm == nullptr ? 0.f : norm[at.feature], at.index);
    });
    if (out_square_sums != nullptr)
        each_pair(total, places, [&](float low, float high, const Place& at) {
            float square = __fmul_rn(low, low) + __fmul_rn(high, high);
#pragma unroll
            for (int step = 16; step > 2; step >>= 1) square += __shfl_xor_sync(FULL_WARP, square, step);
            if (g == 0 && at.live) out_square_sums[static_cast<i64>(at.row) * num_tiles + at.tile] = square;
        });
#endif
}
