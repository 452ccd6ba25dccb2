// Dense products for more rows than linear.cu keeps in registers, on Hopper's matrix instruction of a warpgroup.
//
// A warp has a tile of 16 features, whose weights it takes to registers as linear.cu does. Other warps ask for weights
// and rows, whole rings ahead and into the next tiles, and make the rows ready, which all share. The instructions' 16
// columns, slices of K and the order in which sums are added are those of linear.cu, and a column of wgmma has the bits of
// mma.sync whatever the others are, so a row's bits are the same there and here. As in linear_tiles.cu the blocks of a
// cluster own the parts of the same outputs and add them through each other's shared memory.
//
// linear.cu's instruction takes columns {8 t .. 8 t + 3} of 32 with t = 0 .. 3, then the other 16, so a lane's
// weights and rows are 16 bytes each. wgmma reads rows from shared memory, where its 16 columns lie side by side: word i of the
// four pieces of 16 bytes of 32 columns becomes piece i. Rows come by asynchronous copies of whole lines and change in
// place: 4 loads and 4 stores for a row and 32 columns. The warps that do so have no copies under way, for which a fence
// might wait.
//
// Defines: COLUMNS (rows of a block: 32, 64, 128), ROW_TILES (of a block: 1 to 12), DEPTH (stages of the weights),
// ROW_STAGES, and those of linear_parts.cuh.
#include "dense/linear_parts.cuh"
#include "wgmma.cuh"

constexpr int MATH_GROUPS = (ROW_TILES + 3) / 4, MATH_WARPS = 4 * MATH_GROUPS;
constexpr int WEIGHTS_WARP = MATH_WARPS, ROWS_WARP = MATH_WARPS + 1, EXCHANGERS = 2;  // and those after the two
constexpr int THREADS = 32 * (MATH_WARPS + 2 + EXCHANGERS);
constexpr bool MANY_REGISTERS = MATH_GROUPS == 3 && COLUMNS > 64;  // more than a block's 128 for each thread
constexpr int N = COLUMNS / 8;
constexpr int ROW_BYTES = 64, ROWS_BYTES = COLUMNS * ROW_BYTES;  // of 32 columns
constexpr int STAGE_BYTES = STAGE_BLOCKS * ROWS_BYTES, PLACE_BYTES = STAGE_BLOCKS * BLOCK_BYTES;
constexpr int RING_BYTES = ROW_STAGES * STAGE_BYTES + ROW_TILES * DEPTH * PLACE_BYTES;
// A block of a cluster has one group of tiles, so its rings are free when the sums come.
constexpr int SUMS_BYTES = PARTS > 1 ? ROW_TILES * N * 512 : 0;

struct Shared {
    u8 *rows, *weights;  // [ROW_STAGES][STAGE_BYTES], [ROW_TILES][DEPTH][PLACE_BYTES]
    float4* sums;        // [ROW_TILES][N][32], in place of the rings
    float* scales;       // [COLUMNS]
    u64 *rows_there, *rows_full, *rows_empty;  // [ROW_STAGES]: copied, made ready, read
    u64 *weights_full, *weights_empty;         // [ROW_TILES][DEPTH], [DEPTH]
};

DEVICE Shared carve(u8* base) {
    Shared s;
    s.rows = base;
    s.weights = base + ROW_STAGES * STAGE_BYTES;
    s.sums = reinterpret_cast<float4*>(base);
    s.scales = reinterpret_cast<float*>(base + (RING_BYTES > SUMS_BYTES ? RING_BYTES : SUMS_BYTES));
    s.rows_there = reinterpret_cast<u64*>(s.scales + COLUMNS);
    s.rows_full = s.rows_there + ROW_STAGES;
    s.rows_empty = s.rows_full + ROW_STAGES;
    s.weights_full = s.rows_empty + ROW_STAGES;
    s.weights_empty = s.weights_full + ROW_TILES * DEPTH;
    return s;
}

// The work of a block: one chunk of rows, and groups of tiles from `group` on.
struct Work {
    int group, stride, num_groups, chunks, first_row, live_rows, part;

    __device__ int num_stages() const {
        return PARTS > 1 ? PART_STAGES : (num_groups - group + stride - 1) / stride * PART_STAGES;
    }
};

DEVICE int count_of(const Range& range) { return range.end - range.begin; }

// ---- weights -----------------------------------------------------------------------------------------------------

// Asks for stage `number` of a tile of the block, counted on from the first of `group` into the groups that follow.
DEVICE void ask(const Shared& s, const u8* matrix, int num_tiles, const Work& work, int mine, int number, int place) {
    const int group = PARTS > 1 ? work.group : work.group + number / PART_STAGES * work.stride;
    const int tile = group * ROW_TILES + mine;
    if (group >= work.num_groups) return;
    const Range blocks = blocks_of(work.part, number % PART_STAGES);
    const u32 bytes = tile < num_tiles ? count_of(blocks) * BLOCK_BYTES : 0;
    u64* const full = s.weights_full + mine * DEPTH + place;
    u8* const target = s.weights + (mine * DEPTH + place) * PLACE_BYTES;
    const u8* const source = matrix + (static_cast<i64>(tile) * NUM_BLOCKS + blocks.begin) * BLOCK_BYTES;
    copy_barrier_expect(full, bytes);
    if (bytes > 0 && work.chunks > 1) copy_bulk_kept(target, source, bytes, full);  // blocks of other rows read it, too
    if (bytes > 0 && work.chunks == 1) copy_bulk(target, source, bytes, full);
}

// One warp, a lane for each tile: all that follows the first DEPTH stages.
DEVICE void bring_weights(const Shared& s, const u8* matrix, int num_tiles, const Work& work) {
    Place<DEPTH> place;
#pragma unroll 1
    for (int number = DEPTH; number < work.num_stages(); ++number, place.step()) {
        copy_barrier_wait(s.weights_empty + place.number, place.parity);
        __syncwarp();
        if (lane_id() < ROW_TILES) ask(s, matrix, num_tiles, work, lane_id(), number, place.number);
        __syncwarp();
    }
}

// ---- rows --------------------------------------------------------------------------------------------------------

// A stage has the rows' 64 bytes of each 32 columns; piece p of 16 bytes of row r is at p ^ (r / 2 % 4), see wgmma.cuh.

// Asks for stage `number` of the part, and nothing for rows behind the last: all lanes of a warp.
DEVICE void ask_rows(const Shared& s, const u16* rows, i64 row_stride, const Work& work, int number, int place) {
    constexpr int PASS = STAGE_BLOCKS > 2 ? 2 : 4;  // rows of a warp's copy; 8 lanes have two rows' pieces of 32 columns
    const int piece = lane_id() % 4, first = lane_id() / 4 % PASS, block = lane_id() / (4 * PASS);
    const Range blocks = blocks_of(work.part, number);
    const int live_rows = block < count_of(blocks) ? work.live_rows : 0;
    const u16* from = rows + (work.first_row + first) * row_stride + (blocks.begin + block) * 32 + piece * 8;
    u8* to = s.rows + place * STAGE_BYTES + block * ROWS_BYTES + first * ROW_BYTES;
    const auto copy_8 = [&](int live) {  // of 8 rows
#pragma unroll
        for (int k = 0; k < 8; k += PASS, from += PASS * row_stride)
            if (first + k < live) copy_async_16(to + k * ROW_BYTES + (piece ^ first / 2 ^ k / 2) * 16, from);
    };
    int row = 0;
#pragma unroll 2
    for (; row + 8 <= live_rows; row += 8, to += 8 * ROW_BYTES) copy_8(8);
    if (row < live_rows) copy_8(live_rows - row);
    copy_async_arrive(s.rows_there + place);
}

// One warp: all that follows the first ROW_STAGES stages.
DEVICE void bring_rows(const Shared& s, const u16* rows, i64 row_stride, const Work& work) {
    Place<ROW_STAGES> place;
#pragma unroll 1
    for (int number = ROW_STAGES; number < work.num_stages(); ++number, place.step()) {
        copy_barrier_wait(s.rows_empty + place.number, place.parity);
        __syncwarp();
        ask_rows(s, rows, row_stride, work, number % PART_STAGES, place.number);
    }
}

// Words of a row's 32 columns change places, as said above. `row`: its place, whose number is `number` in a group of 8.
DEVICE void exchange_words(u8* row, int number) {
    const auto at = [&](int piece) { return reinterpret_cast<uint4*>(row + (piece ^ number / 2) * 16); };
    const uint4 a = *at(0), b = *at(1), c = *at(2), d = *at(3);
    *at(0) = {a.x, b.x, c.x, d.x};
    *at(1) = {a.y, b.y, c.y, d.y};
    *at(2) = {a.z, b.z, c.z, d.z};
    *at(3) = {a.w, b.w, c.w, d.w};
}

// One of EXCHANGERS warps, number `warp`, for every EXCHANGERSth group of 8 rows.
DEVICE void make_ready(const Shared& s, const Work& work, int warp) {
    const int lane = lane_id(), total = work.num_stages();
    Place<ROW_STAGES> place;
#pragma unroll 1
    for (int number = 0; number < total; ++number, place.step()) {
        const int num_blocks = count_of(blocks_of(work.part, number % PART_STAGES));
        u8* const mine = s.rows + place.number * STAGE_BYTES + lane / 8 * ROWS_BYTES + lane % 8 * ROW_BYTES;
        copy_barrier_wait(s.rows_there + place.number, place.parity);
        if (lane / 8 < num_blocks) {
#pragma unroll 2
            for (int row = warp * 8; row < work.live_rows; row += 8 * EXCHANGERS)
                exchange_words(mine + row * ROW_BYTES, lane % 8);
        }
        async_fence();
        __syncwarp();
        if (lane == 0) copy_barrier_expect(s.rows_full + place.number, 0);
    }
}

// 1 / rms of the block's rows, by the warps that multiply.
DEVICE void find_scales(float* scales, const float* square_sums, int num_parts, float eps, const Work& work) {
    constexpr int AT_ONCE = 4;  // rows of a warp whose sums of squares are asked for together
#pragma unroll 1
    for (int row = warp_id(); row < work.live_rows; row += AT_ONCE * MATH_WARPS) {
        float squares[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const i64 at = work.first_row + min(row + i * MATH_WARPS, work.live_rows - 1);
            squares[i] = sum_of_lane(square_sums + at * num_parts, num_parts);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const float scale = inverse_rms(squares[i], NUM_BLOCKS * 32, eps);
            if (lane_id() == 0 && row + i * MATH_WARPS < work.live_rows) scales[row + i * MATH_WARPS] = scale;
        }
    }
    named_barrier(1, MATH_WARPS * 32);
}

// ---- products ----------------------------------------------------------------------------------------------------

// A warp that multiplies. One without a tile multiplies zeros for the others of its warpgroup.
struct Multiplier {
    Place<DEPTH> place;
    Place<ROW_STAGES> stage;

    // c += so many blocks of a stage: without a branch, else each product would wait for the one before.
    template <int BLOCKS>
    __device__ void add_blocks(float (&c)[4 * N], const u8* weights, const u8* rows) {
        u32 a[2 * BLOCKS][4] = {};
        if (warp_id() < ROW_TILES) {
#pragma unroll
            for (int k = 0; k < BLOCKS; ++k) load_block(weights + k * BLOCK_BYTES, a[2 * k], a[2 * k + 1]);
        }
        wgmma_ready(a);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 2 * BLOCKS; ++i) wgmma(c, a[i], wgmma_short_rows(rows + i / 2 * ROWS_BYTES, i % 2));
        wgmma_commit();
        wgmma_wait<0>();
    }

    __device__ void add_stage(float (&c)[4 * N], const Shared& s, int num_blocks) {
        constexpr int AT_ONCE = COLUMNS > 64 ? 1 : STAGE_BLOCKS;  // registers are scarce
        const bool has_tile = warp_id() < ROW_TILES;
        const u8* const weights = s.weights + (warp_id() * DEPTH + place.number) * PLACE_BYTES;
        const u8* const rows = s.rows + stage.number * STAGE_BYTES;
        if (has_tile) copy_barrier_wait(s.weights_full + warp_id() * DEPTH + place.number, place.parity);
        copy_barrier_wait(s.rows_full + stage.number, stage.parity);
        if (num_blocks >= STAGE_BLOCKS) {
#pragma unroll
            for (int k = 0; k < STAGE_BLOCKS; k += AT_ONCE)
                add_blocks<AT_ONCE>(c, weights + k * BLOCK_BYTES, rows + k * ROWS_BYTES);
        } else {
#pragma unroll 1
            for (int k = 0; k < num_blocks; ++k) add_blocks<1>(c, weights + k * BLOCK_BYTES, rows + k * ROWS_BYTES);
        }
        // The products are done, so what they took was read, and the copies that are asked for overtake nothing.
        if (lane_id() == 0) {
            if (has_tile) copy_barrier_expect(s.weights_empty + place.number, 0);
            copy_barrier_expect(s.rows_empty + stage.number, 0);
        }
        __syncwarp();
        stage.step();
        place.step();
    }

    // The slices of a part, each one chain of instructions, added in order.
    __device__ void add_part(float (&total)[4 * N], const Shared& s, int part) {
#pragma unroll
        for (int i = 0; i < 4 * N; ++i) total[i] = 0.f;
#pragma unroll 1
        for (int slice = 0; slice < PART_SLICES; ++slice) {
            float c[4 * N];
#pragma unroll
            for (int i = 0; i < 4 * N; ++i) c[i] = 0.f;
            int left = count_of(part_of(part * PART_SLICES + slice, SHARES * SLICES, NUM_BLOCKS));
#pragma unroll 1
            for (int step = 0; step < STEPS; ++step, left -= STAGE_BLOCKS) add_stage(c, s, left);
#pragma unroll
            for (int i = 0; i < 4 * N; ++i) total[i] += c[i];
        }
    }
};

// The end of a tile's sums that are not divided. Most often they become numbers of fp32 at once.
DEVICE void finish_tile(const float (&total)[4 * N], int tile, const Finish& finish) {
    const Output& output = finish.output;
    const int first = 2 * (lane_id() & 3), feature = tile * TILE + (lane_id() >> 2), num_features = finish.num_tiles * TILE;
    const bool is_plain = output.residual == nullptr && output.out_bf16 == nullptr && output.normed == nullptr;
    if (!GATED && !(is_plain && finish.out_square_sums == nullptr)) {
#pragma unroll 1
        for (int n = 0; n < N; ++n) {
            float sums[4] = {};
#pragma unroll
            for (int i = 0; i < 4 * N; ++i) sums[i % 4] = i / 4 == n ? total[i] : sums[i % 4];
            finish(sums, tile, 8 * n);
        }
        return;
    }
    if (tile >= finish.num_tiles) return;
    const float bias[2] = {load_if(output.bias, feature, true), load_if(output.bias, feature + 8, true)};
    const int live_rows = finish.num_rows - finish.first_row;
    const i64 row = finish.first_row + first, width = GATED ? num_features / 2 : num_features;
    float* out = output.out + row * width + feature;
    u16* out_bf16 = output.out_bf16 + row * width + tile * 8 + (lane_id() >> 2);
#pragma unroll
    for (int n = 0; n < N; ++n) {
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
            const int column = 8 * n + first + odd;
            const float scale = finish.scales != nullptr ? finish.scales[column] : 1.f;
            const float low = __fmaf_rn(total[4 * n + odd], scale, bias[0]);
            const float high = __fmaf_rn(total[4 * n + 2 + odd], scale, bias[1]);
            if (column < live_rows) {
                if (GATED) out_bf16[0] = to_bf16(silu_times(low, high));
                else out[0] = low, out[8] = high;
            }
            out += odd ? 7 * width : width, out_bf16 += odd ? 7 * width : width;
        }
    }
}

// Adds the parts that the blocks of the cluster hold, each block for some of the sums, and finishes them. Places n
// with n % PARTS == part are read by this block alone, so finished sums go back there; others read the rest until the
// second barrier. Every warp of the block comes here once.
DEVICE void finish_parts(const float (&total)[4 * N], const Shared& s, const Work& work, const Finish& finish) {
    constexpr int MINE = (N + PARTS - 1) / PARTS;  // at most, number j is n = j PARTS + part
    const int tile = work.group * ROW_TILES + warp_id();
    const bool has_tile = warp_id() < ROW_TILES;
    float4* const mine = s.sums + warp_id() * (N * 32) + lane_id();
    Finish::Features features = {};
    float residual[MINE][4] = {};
    __syncthreads();  // nobody uses the rings
    if (has_tile) {
#pragma unroll
        for (int n = 0; n < N; ++n) mine[n * 32] = {total[4 * n], total[4 * n + 1], total[4 * n + 2], total[4 * n + 3]};
        features = finish.features(tile);
        if (finish.output.residual != nullptr) {
#pragma unroll
            for (int j = 0; j < MINE; ++j) finish.load_residual(residual[j], tile, 8 * (j * PARTS + work.part));
        }
    }
    cluster_barrier();
    if (has_tile) {
#pragma unroll
        for (int j = 0; j < MINE; ++j) {
            const int n = j * PARTS + work.part;
            if (n >= N) break;
            float4 parts[PARTS];
            float sums[4] = {};
#pragma unroll
            for (int p = 0; p < PARTS; ++p) parts[p] = load_cluster_16(mine + n * 32, p);
            add_shares(sums, parts);
            finish.scale(sums, features, residual[j], 8 * n);
            mine[n * 32] = {sums[0], sums[1], sums[2], sums[3]};
        }
    }
    cluster_arrive();  // nothing but own places is read from here on
    if (has_tile) {
#pragma unroll 1
        for (int n = work.part; n < N; n += PARTS) {
            const float4 sum = mine[n * 32];
            finish.write({sum.x, sum.y, sum.z, sum.w}, features, tile, 8 * n);
        }
    }
    cluster_wait();
}

// Blocks: (chunks of COLUMNS rows within groups of ROW_TILES tiles, 1, parts); with one part any multiple of the chunks.
// Arguments as those of linear_tiles.
extern "C" __cluster_dims__(1, 1, PARTS) __global__ void __launch_bounds__(THREADS, 1)
    linear_wgmma(const u16* rows, i64 row_stride, const u8* matrix, int num_rows, int num_tiles,
                 const float* square_sums, int num_parts, float eps, const float* bias, const float* residual,
                 const float* norm, float* out, u16* out_bf16, u16* normed, float* out_square_sums) {
    SHARED_1024(u8, shared);
    const Shared s = carve(shared);
    const int warp = warp_id(), chunks = (num_rows + COLUMNS - 1) / COLUMNS;
    const int first_row = static_cast<int>(blockIdx.x) % chunks * COLUMNS;
    const Work work = {static_cast<int>(blockIdx.x) / chunks, static_cast<int>(gridDim.x) / chunks,
                       (num_tiles + ROW_TILES - 1) / ROW_TILES, chunks, first_row,
                       min(COLUMNS, num_rows - first_row), static_cast<int>(blockIdx.z)};
    if (warp < ROW_TILES) {
        if (lane_id() == 0) {
            for (int i = 0; i < DEPTH; ++i) copy_barrier_init(s.weights_full + warp * DEPTH + i, 1);
            copy_barrier_fence();
        }
        __syncwarp();
#pragma unroll 1
        for (int i = 0; i < DEPTH; ++i) {
            if (lane_id() == 0) ask(s, matrix, num_tiles, work, warp, i, i);
            __syncwarp();
        }
    }
    if (threadIdx.x == MATH_WARPS * 32) {
        for (int i = 0; i < ROW_STAGES; ++i) {
            copy_barrier_init(s.rows_there + i, 32);
            copy_barrier_init(s.rows_full + i, EXCHANGERS);
            copy_barrier_init(s.rows_empty + i, MATH_WARPS);
        }
        for (int i = 0; i < DEPTH; ++i) copy_barrier_init(s.weights_empty + i, ROW_TILES);
        copy_barrier_fence();
    }
    __syncthreads();
    pdl_trigger();
    pdl_wait();
    if (warp >= MATH_WARPS) {
        if constexpr (MANY_REGISTERS) give_registers<56>();
        if (warp == WEIGHTS_WARP) bring_weights(s, matrix, num_tiles, work);
        else if (warp == ROWS_WARP) bring_rows(s, rows, row_stride, work);
        else make_ready(s, work, warp - ROWS_WARP - 1);
        if constexpr (PARTS > 1) {  // as in finish_parts
            __syncthreads();
            cluster_barrier();
            cluster_arrive();
            cluster_wait();
        }
        return;
    }
#pragma unroll 1
    for (int i = warp; i < min(ROW_STAGES, work.num_stages()); i += MATH_WARPS)
        ask_rows(s, rows, row_stride, work, i % PART_STAGES, i);
    if constexpr (MANY_REGISTERS) take_registers<152>();
    if (square_sums != nullptr) find_scales(s.scales, square_sums, num_parts, eps, work);
    const Finish finish = {{bias, residual, norm, out, out_bf16, normed}, square_sums == nullptr ? nullptr : s.scales,
                           out_square_sums, num_rows, num_tiles, first_row};
    Multiplier multiplier;
    float total[4 * N];
    if constexpr (PARTS > 1) {
        multiplier.add_part(total, s, work.part);
        finish_parts(total, s, work, finish);
    } else {
#pragma unroll 1
        for (int group = work.group; group < work.num_groups; group += work.stride) {
            multiplier.add_part(total, s, work.part);
            if (warp < ROW_TILES) finish_tile(total, group * ROW_TILES + warp, finish);
        }
    }
}
