// Dense products for more rows than linear.cu keeps in registers: matrix and rows go through shared memory in stages.
//
// A block multiplies ROW_TILES tiles of 16 features with all rows of the launch's chunk, over one part of K: the blocks
// of a cluster own the parts of the same outputs and add them through each other's shared memory. The chains of matrix
// instructions, the slices of K and the order in which their sums are added are those of linear.cu, so a row's bits are
// the same there and here.
//
// Defines: COLUMN_TILES (n-tiles of 8 rows), ROW_TILES, WARPS_M and WARPS_N (warps along tiles and along rows),
// STAGES, and those of linear_parts.cuh.
#include "dense/linear_parts.cuh"

constexpr int WARPS = WARPS_M * WARPS_N;
constexpr int TEAMS = WARPS % 4 ? 1 : WARPS / 4, TEAM = WARPS / TEAMS;  // warps that copy every TEAMSth place of the ring
constexpr int M = ROW_TILES / WARPS_M, N = COLUMN_TILES / WARPS_N;  // of a warp
static_assert(M * WARPS_M == ROW_TILES && N * WARPS_N == COLUMN_TILES, "every warp has the same share");
constexpr int COLUMNS = 8 * COLUMN_TILES;
constexpr int STAGE_ROW = 64 * STAGE_BLOCKS;  // bytes
constexpr int TILE_BYTES = STAGE_BLOCKS * BLOCK_BYTES;
constexpr int MATRIX_BYTES = ROW_TILES * TILE_BYTES;
constexpr int STAGE_BYTES = MATRIX_BYTES + COLUMNS * STAGE_ROW;
constexpr int RING_BYTES = STAGES * STAGE_BYTES, SUMS_BYTES = ROW_TILES * COLUMN_TILES * 512;
// A block of a cluster has one group of tiles, so its ring is free when the sums come.
constexpr int SUMS_PLACE = PARTS > 1 ? 0 : RING_BYTES;
constexpr int SCALES_PLACE = PARTS > 1 && RING_BYTES > SUMS_BYTES ? RING_BYTES : SUMS_PLACE + SUMS_BYTES;

// A row's pieces of 16 bytes. Two rows fill all banks: an odd stage shifts them by itself, in an even one odd rows have
// neighbouring blocks swapped.
DEVICE int piece_place(int row, int piece) {
    return row * STAGE_ROW + (STAGE_BLOCKS % 2 ? piece : piece ^ (row & 1) * 4) * 16;
}

// One stage: some blocks of a group of tiles, and where in the ring they are.
struct Stage {
    int group, number, place;
    u32 parity;

    __device__ void advance() {
        if (++place == STAGES) place = 0, parity ^= 1;
        if (++number == PART_STAGES) number = 0, group += gridDim.x;
    }
};

// c += tiles m0 .. of the stage times its rows n0 * 8 .., for block k of the stage. `zero` is 0, which the compiler must
// not know: it would copy the registers of a tile for every product, for they have to lie side by side.
DEVICE void multiply(float (&c)[M][N][4], const u8* stage, int k, int m0, int n0, u32 zero) {
    const int lane = lane_id(), g = lane >> 2, t = lane & 3;
    uint4 b[N];
#pragma unroll
    for (int n = 0; n < N; ++n)
        b[n] = *reinterpret_cast<const uint4*>(stage + MATRIX_BYTES + piece_place((n0 + n) * 8 + g, k * 4 + t));
#pragma unroll
    for (int m = 0; m < M; ++m) {
        u32 first[4], second[4];
        load_block(stage + (m0 + m) * TILE_BYTES + k * BLOCK_BYTES, first, second);
#pragma unroll
        for (int i = 0; i < 4; ++i) first[i] += zero, second[i] += zero;
#pragma unroll
        for (int n = 0; n < N; ++n) mma_bf16(c[m][n], first, b[n].x, b[n].y);
#pragma unroll
        for (int n = 0; n < N; ++n) mma_bf16(c[m][n], second, b[n].z, b[n].w);
    }
}

// Adds the parts that the blocks of the cluster hold, each block for some of the sums, and finishes them.
DEVICE void add_parts(float (&total)[M][N][4], float4* shared, int part, int first_tile, int first_column, const Finish& finish) {
    float4* const mine = shared + warp_id() * (M * N * 32) + lane_id();
    if constexpr (PARTS > 1) __syncthreads();  // nobody reads the ring
#pragma unroll
    for (int i = 0; i < M * N; ++i) {
        const float(&sums)[4] = total[i / N][i % N];
        mine[i * 32] = {sums[0], sums[1], sums[2], sums[3]};
    }
    if constexpr (PARTS > 1) cluster_barrier();
#pragma unroll 2
    for (int j = 0; j < (M * N + PARTS - 1) / PARTS; ++j) {
        const int i = j * PARTS + part;
        if (i >= M * N) break;
        float4 parts[PARTS];
#pragma unroll
        for (int p = 0; p < PARTS; ++p) parts[p] = PARTS > 1 ? load_cluster_16(mine + i * 32, p) : mine[i * 32];
        float sums[4] = {};
        add_shares(sums, parts);
        finish(sums, first_tile + i / N, first_column + i % N * 8);
    }
    if constexpr (PARTS > 1) cluster_barrier();  // the sums stay until the other blocks have read them
}

extern "C" __cluster_dims__(1, 1, PARTS) __global__ void __launch_bounds__(WARPS * 32, 1)
    linear_tiles(const u16* rows, i64 row_stride, const u8* matrix, int num_rows, int num_tiles,
                 const float* square_sums, int num_parts, float eps, const float* bias, const float* residual,
                 const float* norm, float* out, u16* out_bf16, u16* normed, float* out_square_sums) {
    SHARED(u8, shared);
    float4* const sums = reinterpret_cast<float4*>(shared + SUMS_PLACE);     // of all warps
    float* const scales = reinterpret_cast<float*>(shared + SCALES_PLACE);  // [COLUMNS]
    u64* const barriers = reinterpret_cast<u64*>(scales + COLUMNS);        // [STAGES]
    Range* const ranges = reinterpret_cast<Range*>(barriers + STAGES);     // [PART_STAGES]
    const int warp = warp_id(), lane = lane_id(), part = blockIdx.z;
    const int first_row = blockIdx.y * COLUMNS, live_rows = min(COLUMNS, num_rows - first_row);

    // A tile's part of a stage is one copy, and each warp of a team asks for every TEAMth.
    const int member = warp % TEAM;
    auto copies = [&](const Stage& at) { return at.group * ROW_TILES < num_tiles && at.place % TEAMS == warp / TEAM; };
    auto copy_matrix = [&](const Stage& at) {
        if (lane > 0 || !copies(at)) return;
        const Range blocks = ranges[at.number];
        const u32 bytes = (blocks.end - blocks.begin) * BLOCK_BYTES;
        const int first_tile = at.group * ROW_TILES, tiles = min(ROW_TILES, num_tiles - first_tile);
        copy_barrier_expect(barriers + at.place, member < tiles ? (tiles - 1 - member) / TEAM * bytes + bytes : 0);
        u8* const target = shared + at.place * STAGE_BYTES;
        const u8* const source = matrix + (static_cast<i64>(first_tile) * NUM_BLOCKS + blocks.begin) * BLOCK_BYTES;
#pragma unroll
        for (int tile = member; tile < ROW_TILES; tile += TEAM) {
            if (tile >= tiles || bytes == 0) break;
            copy_bulk(target + tile * TILE_BYTES, source + tile * NUM_BLOCKS * BLOCK_BYTES, bytes, barriers + at.place);
        }
    };
    // Each thread has one piece of 16 bytes of every PASSth row. What lies behind the rows or the stage is left out.
    constexpr int PIECES = STAGE_BLOCKS > 2 ? 16 : 8, PASS = TEAM * 32 / PIECES;
    const int my_row = (member * 32 + lane) / PIECES, my_piece = lane % PIECES;
    const u16* const my_source = rows + (first_row + my_row) * row_stride + my_piece * 8;
    const int my_place = MATRIX_BYTES + piece_place(my_row, my_piece);
    auto copy_rows = [&](const Stage& at) {
        if (!copies(at)) return;
        const Range blocks = ranges[at.number];
        if (blocks.begin + my_piece / 4 >= blocks.end) return;
        u8* const target = shared + at.place * STAGE_BYTES + my_place;
        const u16* source = my_source + blocks.begin * 32;
#pragma unroll
        for (int i = 0; i < COLUMNS; i += PASS, source += PASS * row_stride)
            if (my_row + i < live_rows) copy_async_16(target + i * STAGE_ROW, source);
    };
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) copy_barrier_init(barriers + i, TEAM);
        copy_barrier_fence();
    }
    for (int i = threadIdx.x; i < PART_STAGES; i += WARPS * 32) ranges[i] = blocks_of(part, i);
    __syncthreads();
    Stage next = {static_cast<int>(blockIdx.x), 0, 0, 0}, now = next;
#pragma unroll 1
    for (int i = 0; i < STAGES - 1; ++i, next.advance()) copy_matrix(next);
    pdl_trigger();
    pdl_wait();
    next = now;
#pragma unroll 1
    for (int i = 0; i < STAGES - 1; ++i, next.advance()) {
        copy_rows(next);
        copy_async_commit();
    }
    constexpr int AT_ONCE = 4;  // rows of a warp whose sums of squares are asked for together
#pragma unroll 1
    for (int row = warp; row < live_rows && square_sums != nullptr; row += AT_ONCE * WARPS) {
        float squares[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const i64 at = first_row + min(row + i * WARPS, live_rows - 1);
            squares[i] = sum_of_lane(square_sums + at * num_parts, num_parts);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const float scale = inverse_rms(squares[i], NUM_BLOCKS * 32, eps);
            if (lane == 0 && row + i * WARPS < live_rows) scales[row + i * WARPS] = scale;
        }
    }

    const int m0 = warp % WARPS_M * M, n0 = warp / WARPS_M * N;
    const Finish finish = {{bias, residual, norm, out, out_bf16, normed}, square_sums == nullptr ? nullptr : scales,
                           out_square_sums, num_rows, num_tiles, first_row};
    const u32 zero = threadIdx.y;
#pragma unroll 1
    while (now.group * ROW_TILES < num_tiles) {  // once where PARTS > 1
        const int first_tile = now.group * ROW_TILES + m0;
        float total[M][N][4] = {};
#pragma unroll 1
        for (int slice = 0; slice < PART_SLICES; ++slice) {
            float c[M][N][4] = {};
#pragma unroll 1
            for (int step = 0; step < STEPS; ++step) {
                copy_async_wait<STAGES - 2>();
                copy_barrier_wait(barriers + now.place, now.parity);
#pragma unroll
                for (int m = 0; m < M; ++m) issued_before(c[m]);
                __syncthreads();  // the stage is there, and nobody reads the one before
                copy_matrix(next);
                copy_rows(next);
                copy_async_commit();
                next.advance();
                const u8* const stage = shared + now.place * STAGE_BYTES;
                const Range blocks = ranges[now.number];
                now.advance();
                if (blocks.end - blocks.begin == STAGE_BLOCKS) {
#pragma unroll
                    for (int k = 0; k < STAGE_BLOCKS; ++k) multiply(c, stage, k, m0, n0, zero);
                } else {
#pragma unroll 1
                    for (int k = 0; k < blocks.end - blocks.begin; ++k) multiply(c, stage, k, m0, n0, zero);
                }
            }
#pragma unroll
            for (int i = 0; i < M * N * 4; ++i) total[i / (4 * N)][i / 4 % N][i % 4] += c[i / (4 * N)][i / 4 % N][i % 4];
        }
        add_parts(total, sums, part, first_tile, n0 * 8, finish);
    }
}
