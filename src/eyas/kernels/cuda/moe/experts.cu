// The experts of prompt rows: MXFP4 weights, unpacked in registers, times the rows of an expert on Hopper's wgmma.
//
// `group` copies each row to its experts' entries, one after the other by expert, in the order in which unpacked
// weights have their columns; they are cut into equal tiles of up to TILE_ROWS. (Tile, block of 64 GROUPS features) are
// the items, in an order in which blocks of a launch that run together have the same weights. A block of threads takes
// every gridDim.xth: a warpgroup has 64 features, and the last one brings the tile's rows and the block's weights in
// stages of 192 columns, and runs ahead into the next items. Copies are served in the order in which they were asked
// for, so rows that are asked for later than weights would wait for them. A warp unpacks the weights of its 16 features
// and 64 columns while the products of its previous step run; with many rows, while other warps' run.
//
// Row invariance: an output is a sum of slices in ascending order, each a stage's columns in one chain of instructions
// of 16 products, whatever N an instruction has. Where moe.cu has slices of 192 columns too, it has the same bits.
//
// Defines: UP (1: gate and up with SwiGLU, 0: down), COLUMNS (of the matrix, a multiple of 32), FEATURES (its rows, a
// multiple of 64), TILE_ROWS (16, 32, 64 or 128), TOP_K, NUM_EXPERTS, STAGES (at least 2).
#include "moe/mxfp4.cuh"
#include "wgmma.cuh"

// Warpgroups with 64 features each: the more, the better a scheduler is used, while there are registers for their sums.
constexpr int GROUPS = TILE_ROWS == 16 ? 5 : 3;
constexpr int MATH_WARPS = 4 * GROUPS, COPY_WARPS = 4, THREADS = 32 * (MATH_WARPS + COPY_WARPS);
// Of a thread: what a copy warp gives back of a launch's registers, the others share.
constexpr int LAUNCH_REGISTERS = 65536 / THREADS / 8 * 8, COPY_REGISTERS = 32;
constexpr int REGISTERS = (LAUNCH_REGISTERS * THREADS - 32 * COPY_WARPS * COPY_REGISTERS) / (32 * MATH_WARPS) / 8 * 8;
constexpr int MOST_FEW = 64;  // columns of a product beside whose sums there are registers for three steps
constexpr int STEPS = (COLUMNS + 63) / 64, LAST_PARTS = COLUMNS % 64 ? 2 : 4;  // of 64 columns; of 16 in the last
constexpr int SPAN = 3, SPANS = (STEPS + SPAN - 1) / SPAN;                     // steps of a stage; stages of an item
constexpr int WORD_BYTES = 512, SCALE_BYTES = 32;  // of 16 features and a step: layouts/mxfp4.py
constexpr int WARP_BYTES = SPAN * (WORD_BYTES + SCALE_BYTES), WEIGHT_BYTES = MATH_WARPS * WARP_BYTES;  // of a stage
constexpr int TILES = FEATURES / 16, BLOCKS = (TILES + MATH_WARPS - 1) / MATH_WARPS;
constexpr int ROW_BYTES = 128, STEP_BYTES = TILE_ROWS * ROW_BYTES;

// Rows first .. end - 1 of the entries of an expert, which has `of` tiles; this is number `index`.
struct Tile {
    int expert, first, end;
    short index, of;
};

// The kernel's arguments, kept in shared memory: in registers there is no room for them beside the sums.
// Aligned for the tiles, which are written 16 bytes at a time and stand behind them and an even number of barriers.
struct __align__(16) Arguments {
    const u8 *entries, *words, *scales;
    const float* bias;           // [E, FEATURES]
    const float* entry_scales;   // of entries, UP
    const int* pairs;            // of entries
    u8* out;                     // UP: entries for the next product; else bf16 [pairs, FEATURES]
    float factor, limit;
    int num_pairs, num_items;
};

struct Shared {
    u8 *rows, *weights;  // [STAGES][SPAN][STEP_BYTES], [STAGES][WEIGHT_BYTES]
    Arguments* arguments;
    u64 *full, *empty;  // [STAGES]
    Tile* tiles;
};

DEVICE Shared carve(u8* base) {
    Shared s;
    s.rows = base;
    s.weights = s.rows + STAGES * SPAN * STEP_BYTES;
    s.arguments = reinterpret_cast<Arguments*>(s.weights + STAGES * WEIGHT_BYTES);
    s.full = reinterpret_cast<u64*>(s.arguments + 1);
    s.empty = s.full + STAGES;
    s.tiles = reinterpret_cast<Tile*>(s.empty + STAGES);
    return s;
}

using Stage = Place<STAGES>;

struct Item {
    int expert, first, count, block;
};

DEVICE Item item_of(const Tile* tiles, int number) {
    const int some = number / BLOCKS, before = some - tiles[some].index, of = tiles[some].of;
    const int local = number - before * BLOCKS;
    const Tile tile = tiles[before + local % of];
    return {tile.expert, tile.first, tile.end - tile.first, local / of};
}

// ---- what a block multiplies -------------------------------------------------------------------------------------

// Where `group` has the piece of 16 bytes `piece` of 64 columns `step` of an entry, number `place` of its tile.
DEVICE i64 place_of(int step, int num_pairs, int entry, int place, int piece) {
    return (static_cast<i64>(step) * num_pairs + entry) * ROW_BYTES + (piece ^ (place & 7)) * 16;
}

// One of the four copy warps, which brings the weights of every fourth warp, and the rows of a step: a copy a lane.
DEVICE void bring(const Shared& s, int part) {
    const Arguments with = *s.arguments;
    const int group = lane_id() % 8;
    const bool words = lane_id() < GROUPS, scales = lane_id() / 8 == 1 && group < GROUPS, rows = lane_id() == 16 && part < SPAN;
    const u32 step_bytes = words ? WORD_BYTES : SCALE_BYTES;
    const i64 stride = rows ? static_cast<i64>(SPAN) * with.num_pairs * ROW_BYTES : SPAN * step_bytes;
    u8* const first_place = rows ? s.rows + part * STEP_BYTES
                                 : s.weights + (4 * group + part) * WARP_BYTES + (words ? 0 : SPAN * WORD_BYTES);
    const int stage_bytes = rows ? SPAN * STEP_BYTES : WEIGHT_BYTES;
    Stage stage;
    int brought = 0;
    for (int number = blockIdx.x; number < with.num_items; number += gridDim.x) {
        const Item item = item_of(s.tiles, number);
        const int tile = item.block * MATH_WARPS + 4 * group + part, groups = min(GROUPS, (TILES - item.block * MATH_WARPS) / 4);
        const i64 unit = static_cast<i64>(item.expert * TILES + tile) * STEPS;
        const u8* from = rows ? with.entries + place_of(part, with.num_pairs, item.first, 0, 0)
                              : (words ? with.words : with.scales) + unit * step_bytes;
        const bool weights = (words || scales) && group < groups;
        for (int span = 0; span < SPANS; ++span, ++brought, stage.step(), from += stride) {
            if (brought >= STAGES) copy_barrier_wait(s.empty + stage.number, stage.parity ^ 1);
            const int steps = min(SPAN, STEPS - span * SPAN);
            u64* const full = s.full + stage.number;
            if (lane_id() == 0)
                copy_barrier_expect(full, groups * steps * (WORD_BYTES + SCALE_BYTES) + (part < steps) * item.count * ROW_BYTES);
            __syncwarp();
            u8* const place = first_place + stage.number * stage_bytes;
            if (weights) copy_bulk(place, from, steps * step_bytes, full);
            if (rows && part < steps) copy_bulk_kept(place, from, item.count * ROW_BYTES, full);
        }
    }
}

// The 16 x 64 weights of a lane's four words, in the order of four instructions.
DEVICE void unpack(u32 (&a)[4][4], const uint4& words, u32 scales) {
    const u32 factors[2] = {scales & MXFP4_FACTORS, __funnelshift_l(scales, scales, 8) & MXFP4_FACTORS};
    const u32 low[2] = {words.x, words.z}, high[2] = {words.y, words.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int p = 0; p < 2; ++p) {
            a[i][2 * p] = mul_bf16x2_low(mxfp4_pair(low[i / 2], 2 * (i % 2) + p), factors[i / 2]);
            a[i][2 * p + 1] = mul_bf16x2_high(mxfp4_pair(high[i / 2], 2 * (i % 2) + p), factors[i / 2]);
        }
    }
}

// ---- an item -----------------------------------------------------------------------------------------------------

template <int N>
struct Product {
    float total[N / 2], d[N / 2];  // of all slices before; of this one
    u32 about[(N + 31) / 32];      // of row lane_id() + 32 i of the tile: its scale, or its pair
    float2 bias;

    // What the end needs, long before.
    __device__ void prepare(const Arguments& with, const Item& item, int tile) {
#pragma unroll
        for (int i = 0; i < N / 2; ++i) total[i] = 0.f;
        const u32* const table = reinterpret_cast<const u32*>(UP ? static_cast<const void*>(with.entry_scales) : with.pairs);
#pragma unroll
        for (int i = 0; i < (N + 31) / 32; ++i) {
            const int row = lane_id() + 32 * i;
            about[i] = row < item.count ? table[item.first + row] : 0;
        }
        const i64 place = static_cast<i64>(item.expert) * FEATURES + tile * 16 + (lane_id() >> 2) * 2;
        bias = *reinterpret_cast<const float2*>(with.bias + place);
    }

    // A slice's sums begin as zeros: left undefined for the first instruction they cost registers.
    __device__ void begin_slice() {
#pragma unroll
        for (int i = 0; i < N / 2; ++i) d[i] = 0.f;
    }

    // d += 64 columns, until wgmma_wait. `at`: bytes from `rows` to those of the step.
    __device__ void add(u32 (&a)[4][4], WgmmaRows rows, int at, int step) {
        wgmma_ready(a);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 4; ++i)
            if (i < LAST_PARTS || step < STEPS - 1) wgmma(d, a[i], wgmma_rows(rows, at, i));
        wgmma_commit();
    }

    __device__ void end_slice() {
        wgmma_wait<0>();
#pragma unroll
        for (int i = 0; i < N / 2; ++i) total[i] += d[i];
    }

    __device__ void finish(const Arguments& with, const Item& item, int tile) {
        const int g = lane_id() >> 2, t = lane_id() & 3;
#pragma unroll
        for (int j = 0; j < N / 8; ++j) {
            const int row = 8 * j + 2 * t;
            u32 of[2];
#pragma unroll
            for (int odd = 0; odd < 2; ++odd) of[odd] = __shfl_sync(FULL_WARP, about[j / 4], (row + odd) & 31);
            const float low[2] = {total[4 * j] * with.factor, total[4 * j + 1] * with.factor};
            const float high[2] = {total[4 * j + 2] * with.factor, total[4 * j + 3] * with.factor};
            if (UP) {
                float act[2];
#pragma unroll
                for (int odd = 0; odd < 2; ++odd) {
                    const float scale = __uint_as_float(of[odd]);
                    act[odd] = swiglu(__fmaf_rn(low[odd], scale, bias.x), __fmaf_rn(high[odd], scale, bias.y), with.limit);
                }
                // Lanes of features 2 n and 2 n + 1 give each other one row each, and store both features of the other.
                const int second = g & 1, mine = row + second;
                const float other = __shfl_xor_sync(FULL_WARP, second ? act[0] : act[1], 4);
                const u32 both = second ? pack_bf16(other, act[1]) : pack_bf16(act[0], other);
                const int piece = (tile / 4 % 2 * 2 + (g >> 2)) * 2 + (g >> 1 & 1);
                if (mine < item.count)
                    *reinterpret_cast<u32*>(
                        with.out + place_of(tile / 8, with.num_pairs, item.first + mine, mine, piece) + tile % 4 * 4) = both;
            } else {
#pragma unroll
                for (int odd = 0; odd < 2; ++odd)
                    if (row + odd < item.count)
                        *reinterpret_cast<u32*>(with.out + (static_cast<i64>(of[odd]) * FEATURES + tile * 16 + 2 * g) * 2) =
                            pack_bf16(low[odd] + bias.x, high[odd] + bias.y);
            }
        }
    }
};

// The weights of this warp in a step of a stage, unpacked.
DEVICE void unpack_step(u32 (&a)[4][4], const Shared& s, const Stage& stage, int step) {
    const u8* const weights = s.weights + stage.number * WEIGHT_BYTES + warp_id() * WARP_BYTES;
    unpack(a, *reinterpret_cast<const uint4*>(weights + step * WORD_BYTES + lane_id() * 16),
           *reinterpret_cast<const u32*>(weights + SPAN * WORD_BYTES + step * SCALE_BYTES + (lane_id() >> 2) * 4));
}

// A multiplying warp says that it has read the stage.
DEVICE void release(const Shared& s, int stage) {
    if (lane_id() == 0) copy_barrier_expect(s.empty + stage, 0);
}

// Products of a step run while the next one is unpacked, of a stage into registers of its own.
template <int N>
DEVICE void multiply_few(Product<N>& product, const Shared& s, Stage& stage) {
    u32 a[SPAN][4][4];
    copy_barrier_wait(s.full + stage.number, stage.parity);
    unpack_step(a[0], s, stage, 0);
#pragma unroll 1
    for (int span = 0; span < SPANS; ++span) {
        const WgmmaRows rows = wgmma_begin(s.rows + stage.number * SPAN * STEP_BYTES);
        const Stage before = stage;
        product.begin_slice();
#pragma unroll
        for (int j = 0; j < SPAN; ++j) {
            const int step = span * SPAN + j;
            if (STEPS % SPAN && step >= STEPS) break;
            product.add(a[j], rows, j * STEP_BYTES, step);
            if (j < SPAN - 1 && (STEPS % SPAN == 0 || step < STEPS - 1)) unpack_step(a[j + 1], s, stage, j + 1);
        }
        stage.step();
        if (span < SPANS - 1) {
            copy_barrier_wait(s.full + stage.number, stage.parity);
            wgmma_wait<SPAN - 1>();  // the first step's products, which read the registers of the next
            unpack_step(a[0], s, stage, 0);
        }
        product.end_slice();
        release(s, before.number);
    }
}

// Other warps' products run meanwhile: beside the sums of many rows there are registers for one step.
template <int N>
DEVICE void multiply_many(Product<N>& product, const Shared& s, Stage& stage) {
    u32 a[4][4];
#pragma unroll 1
    for (int span = 0; span < SPANS; ++span, stage.step()) {
        copy_barrier_wait(s.full + stage.number, stage.parity);
        const WgmmaRows rows = wgmma_begin(s.rows + stage.number * SPAN * STEP_BYTES);
        product.begin_slice();
#pragma unroll
        for (int j = 0; j < SPAN; ++j) {
            const int step = span * SPAN + j;
            if (STEPS % SPAN && step >= STEPS) break;
            unpack_step(a, s, stage, j);
            product.add(a, rows, j * STEP_BYTES, step);
            if (j < SPAN - 1) wgmma_wait<0>();
        }
        product.end_slice();
        release(s, stage.number);
    }
}

// A warp whose warpgroup has no features of this item.
DEVICE void pass_over(const Shared& s, Stage& stage) {
    for (int span = 0; span < SPANS; ++span, stage.step()) {
        copy_barrier_wait(s.full + stage.number, stage.parity);
        release(s, stage.number);
        __syncwarp();
    }
}

// With the fewest columns, a multiple of 16, that hold the item's rows.
template <int N = 16>
DEVICE void multiply(const Shared& s, const Item& item, Stage& stage) {
    if (item.count > N) {
        if constexpr (N < TILE_ROWS) multiply<N + 16>(s, item, stage);
        return;
    }
    const int tile = item.block * MATH_WARPS + warp_id();
    Product<N> product;
    product.prepare(*s.arguments, item, tile);
    if constexpr (N <= MOST_FEW)
        multiply_few(product, s, stage);
    else
        multiply_many(product, s, stage);
    __syncwarp();
    product.finish(*s.arguments, item, tile);
}

// entries: `group`'s, or those of the product before; the other arguments as in Arguments. Any number of blocks.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    experts(const u8* entries, const Tile* tiles, const int* num_tiles, const u8* words, const u8* scales,
            const float* bias, const float* entry_scales, const int* pairs, u8* out, float factor, float limit,
            int num_pairs) {
    SHARED_1024(u8, shared);
    const Shared s = carve(shared);
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            copy_barrier_init(s.full + i, COPY_WARPS);
            copy_barrier_init(s.empty + i, MATH_WARPS);
        }
        copy_barrier_fence();
    }
    pdl_trigger();
    pdl_wait();
    const int count = *num_tiles, num_items = count * BLOCKS;
    if (threadIdx.x == 0)
        *s.arguments = {entries, words, scales, bias, entry_scales, pairs, out, factor, limit, num_pairs, num_items};
    for (int i = threadIdx.x; i < count; i += THREADS)
        *reinterpret_cast<uint4*>(s.tiles + i) = load_16_if(tiles + i, true);
    __syncthreads();
    if (warp_id() >= MATH_WARPS) {
        give_registers<COPY_REGISTERS>();
        bring(s, warp_id() - MATH_WARPS);
        return;
    }
    take_registers<REGISTERS>();
    Stage stage;
    for (int number = blockIdx.x; number < num_items; number += gridDim.x) {
        const Item item = item_of(s.tiles, number);
        if (item.block * MATH_WARPS + warp_id() < TILES)
            multiply(s, item, stage);
        else
            pass_over(s, stage);
    }
}

// ---- entries -----------------------------------------------------------------------------------------------------

// x bf16 [T, COLUMNS], ids and places [T, TOP_K] (-1: a dead row), counts [NUM_EXPERTS] (pairs of each), inverse rms [T].
// Writes entries bf16 [STEPS, T TOP_K, 64], pairs and scales of entries, tiles and their number. A block for each row.
extern "C" __global__ void __launch_bounds__(128)
    group(const u16* x, const int* ids, const int* places, const int* counts, const float* inverse_rms, u8* entries,
          int* pairs, float* scales, Tile* tiles, int* num_tiles, int num_pairs) {
    __shared__ int firsts[NUM_EXPERTS], mine[TOP_K][2];
    __shared__ int warp_sums[4][2];
    const int row = blockIdx.x, thread = threadIdx.x;
    pdl_trigger();
    pdl_wait();
    // Pairs, and tiles, of the experts before each: NUM_EXPERTS <= 128. An expert's tiles have one size: a small one
    // takes the time of unpacking all the same, and with 30 items a tile and 132 blocks, both multiples of 2 and 3, the
    // same blocks would get the small ones every time.
    const int pairs_of = thread < NUM_EXPERTS ? counts[thread] : 0, tiles_of = (pairs_of + TILE_ROWS - 1) / TILE_ROWS;
    const int size = (pairs_of + 8 * tiles_of - 1) / max(8 * tiles_of, 1) * 8;  // groups of 8 rows exchange pieces
    int before = pairs_of, tiles_before = tiles_of;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const int some = __shfl_up_sync(FULL_WARP, before, step), some_tiles = __shfl_up_sync(FULL_WARP, tiles_before, step);
        if (lane_id() >= step) before += some, tiles_before += some_tiles;
    }
    if (lane_id() == 31) warp_sums[warp_id()][0] = before, warp_sums[warp_id()][1] = tiles_before;
    __syncthreads();
    for (int warp = 0; warp < warp_id(); ++warp) before += warp_sums[warp][0], tiles_before += warp_sums[warp][1];
    before -= pairs_of, tiles_before -= tiles_of;
    if (thread < NUM_EXPERTS) firsts[thread] = before;
    __syncthreads();
    if (row == 0) {
        for (int i = 0; i < tiles_of; ++i) {
            const int first = before + i * size;
            tiles[tiles_before + i] = {thread, first, min(first + size, before + pairs_of), static_cast<short>(i),
                                       static_cast<short>(tiles_of)};
        }
        if (thread == 127) *num_tiles = tiles_before + tiles_of;
    }
    if (thread < TOP_K) {
        const int pair = row * TOP_K + thread, id = ids[pair], place = id < 0 ? 0 : places[pair];
        const int entry = id < 0 ? -1 : firsts[id] + place;
        mine[thread][0] = entry, mine[thread][1] = place;
        if (entry >= 0) pairs[entry] = pair, scales[entry] = inverse_rms[row];
    }
    __syncthreads();
    const u16* const values = x + static_cast<i64>(row) * COLUMNS;
    for (int at = thread; at < COLUMNS / 8; at += 128) {
        const int step = at / 8, piece = at % 8, column = step * 64 + piece / 4 * 32 + piece / 2 % 2 * 4 + piece % 2 * 2;
        uint4 v;
        v.x = *reinterpret_cast<const u32*>(values + column);
        v.y = *reinterpret_cast<const u32*>(values + column + 8);
        v.z = *reinterpret_cast<const u32*>(values + column + 16);
        v.w = *reinterpret_cast<const u32*>(values + column + 24);
#pragma unroll
        for (int rank = 0; rank < TOP_K; ++rank) {
            const int entry = mine[rank][0];
            if (entry >= 0) *reinterpret_cast<uint4*>(entries + place_of(step, num_pairs, entry, mine[rank][1], piece)) = v;
        }
    }
}
