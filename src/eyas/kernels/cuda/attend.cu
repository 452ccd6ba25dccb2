// Attention of the decode path in one launch: sums of the QKV product, RoPE, cache write, split-KV attention, merge.
//
// Keys are dealt in leaves of 32 WARPS at absolute positions, 32 to each warp. A warp carries no softmax state (peak,
// sum, output) from leaf to leaf: the warps' states are added in order, and leaves are joined by a binary tree over
// their absolute numbers. A piece, the work of one block, is one aligned node of that tree, as large as the grid makes
// necessary; the block that comes last joins the pieces by the same tree. What a row does not see is the identity of
// each of these steps, so its bits depend on nothing but its position and its keys.
//
// Matrix instructions: 16 row-heads (pairs of row and query head) times 8 keys for the scores, then probabilities
// (bf16; their sum is taken in fp32 before rounding) times 8 dimensions. Scores become the left operand without moving
// between lanes, as in FlashAttention-2 (Dao, 2023). All row-heads of a sequence share the copy of the keys.
//
// Defines: GROUP (query heads per key/value head, 4 or 8), NUM_KV, WARPS (8, or 4 where shared memory is small), STAGES
// (leaves under way), RESIDENT (blocks per multiprocessor).
#include "attend_plan.cuh"
#include "common.cuh"
#include "softmax_tree.cuh"

constexpr int D = 64;
constexpr int PAGE = 16;
constexpr int THREADS = 32 * WARPS;
constexpr int SPAN = 16;                       // pieces that a thread reads at once
constexpr int QUERY_TASKS = GROUP * 8 / 32;    // warps for the query heads of one row
constexpr int TOKEN = NUM_KV * D;              // elements from token to token in a cache
constexpr int ROW_BYTES = D * 2;
constexpr int TILE_WORDS = 16 * D / 2;          // queries of 16 row-heads
constexpr int HALF_BYTES = STEP * ROW_BYTES;   // keys, or values, of a step
constexpr int SUM_STRIDE = D + 4;              // floats; padded against bank conflicts
constexpr int ITEMS = 256 / THREADS;           // (row-head, four dimensions) of a tile per thread
constexpr int LEVELS = 16;
constexpr int SLICES_AT_ONCE = 2, PARTS_AT_ONCE = 6;
constexpr float SCALE = 0.125f * LOG2_E;
static_assert(STEP == 2 * PAGE);

// 16-byte chunk c of row r stands at chunk c ^ swizzle(r): no bank conflicts for fragments of keys nor of values.
DEVICE int swizzle(int r) { return (r & 6) ^ ((r & 1) << 2); }

// The low `count` bits, any count; and bits moved up, or down.
DEVICE u32 below(int count) { return count >= 32 ? FULL_WARP : count <= 0 ? 0u : (1u << count) - 1; }
DEVICE u32 shifted(u32 bits, int up) { return up >= 32 || up <= -32 ? 0u : up >= 0 ? bits << up : bits >> -up; }

// What 32 lanes of a warp make of the product: four pairs (d, d + 32) of features of a row's query head each; or, of
// its key (lanes 0 .. 7) and value (8 .. 15).
struct Task {
    int row, head, feature;  // `feature` of the product, its partner is D / 2 further
    bool is_query, is_value, alive, active;  // live row; lane with features
    float4 low_bias, high_bias, cosine, sine;
};

struct Loaded {
    float4 lows[SLICES_AT_ONCE], highs[SLICES_AT_ONCE];
    float parts[PARTS_AT_ONCE];
};

extern "C" __global__ void __launch_bounds__(32 * WARPS, RESIDENT)
    attend(u16* out, const float* partials, int num_slices, const float* square_sums, int num_parts, float eps,
           int hidden_size, const float* bias, const float* cosines, const float* sines, u16* k_cache, u16* v_cache,
           const i64* table, int table_stride, const i64* positions, const u8* live, const float* sinks, int window,
           int first_key, int num_seqs, int num_rows, float4* piece_outs, float2* piece_sums, u32* tickets) {
    SHARED(u8, shared);
    float* const warp_outs = reinterpret_cast<float*>(shared + STAGES * WARPS * 2 * HALF_BYTES);  // [WARPS][16]
    u32* const queries = reinterpret_cast<u32*>(warp_outs + WARPS * 16 * SUM_STRIDE);
    __shared__ float2 warp_sums[WARPS][16];

    const int lane = lane_id(), warp = warp_id(), g = lane >> 2, t = lane & 3;
    constexpr int NUM_HEADS = NUM_KV * GROUP, NUM_FEATURES = (NUM_HEADS + 2 * NUM_KV) * D;
    const i64 slice_stride = static_cast<i64>(num_seqs) * num_rows * NUM_FEATURES;

    const Plan plan = plan_all(positions, live, num_seqs, num_rows, window);
    const int pairs = plan.pairs, size = plan.block_size, piece_tiles = (min(size, num_rows) * GROUP + 15) / 16;

    bool waited = false;
    for (int piece = blockIdx.x; piece < plan.units * pairs; piece += gridDim.x) {
        Unit unit = {piece / pairs, 0, 1};
        if (window == 0) unit = find_unit(plan, piece / pairs);
        const int seq = unit.seq, kv = piece % NUM_KV, first_row = piece % pairs / NUM_KV * size;
        const int block_rows = min(size, num_rows - first_row);
        const int num_tiles = (block_rows * GROUP + 15) / 16;
        u8* const new_keys = reinterpret_cast<u8*>(queries + piece_tiles * TILE_WORDS);  // bf16 [num_rows][D]
        u8* const new_values = new_keys + num_rows * ROW_BYTES;
        const Rows rows = rows_of(seq, positions, live, num_rows);
        const int first_pos = rows.first + first_row, last_pos = min(rows.last, first_pos + block_rows - 1);

        // Steps (of 32 keys) that the block reads; this warp's share of them, one in each leaf.
        const int lowest = window ? max(0, first_pos - window + 1) : 0;
        const int lowest_key = max(lowest, min(first_key, first_pos));
        int begin = lowest_key / STEP, end = last_pos / STEP + 1;
        if (window == 0) {
            begin = unit.index * WARPS << plan.shift;
            end = min(end, (unit.index + 1) * WARPS << plan.shift);
        }
        if (WARPS < 8) begin &= ~(WARPS - 1);  // a window meets more steps than there are warps
        if (last_pos < first_pos) end = begin;
        const int num_leaves = max(1, (end - begin + WARPS - 1) / WARPS);
        const int my_begin = begin + ((warp - begin) & (WARPS - 1));
        const i64* const seq_table = table + static_cast<i64>(seq) * table_stride;

        // Copies of a step's keys or values that are in the cache before this launch, zeros instead of all others.
        int pages = 0;  // ids, of this warp's steps 16 n + lane / 2
        const int copy_row = lane >> 3, chunk = lane & 7;
        auto fetch = [&](int i, u16* cache, int half) {
            const int step = my_begin + WARPS * i;
            if (step < end) {
                if (half == 0 && i % 16 == 0) {
                    const int page = 2 * (step + WARPS * (lane >> 1)) + (lane & 1);
                    if (page < 2 * end && page <= last_pos / PAGE) pages = static_cast<int>(seq_table[page]);
                }
                u8* const stage = shared + ((i % STAGES * WARPS + warp) * 2 + half) * HALF_BYTES + copy_row * ROW_BYTES;
                u8* const targets[2] = {stage + (chunk ^ swizzle(copy_row)) * 16,
                                        stage + (chunk ^ swizzle(copy_row + 4)) * 16};
                const u32 stored = below(last_pos + 1 - step * STEP) & ~below(lowest_key - step * STEP);
                const u32 mine = (stored & ~shifted(rows.live, rows.first - step * STEP)) >> copy_row;
#pragma unroll
                for (int page = 0; page < 2; ++page) {
                    const i64 id = __shfl_sync(FULL_WARP, pages, i % 16 * 2 + page);
                    const u16* const source = cache + id * (PAGE * TOKEN) + copy_row * TOKEN + kv * D + chunk * 8;
#pragma unroll
                    for (int r = 0; r < PAGE; r += 4)
                        copy_async_16(targets[r / 4 % 2] + (page * PAGE + r) * ROW_BYTES, source + r * TOKEN,
                                      mine >> (page * PAGE + r) & 1);
                }
            }
            copy_async_commit();
        };
        for (int i = 0; i < STAGES; ++i) {
            fetch(i, k_cache, 0);
            fetch(i, v_cache, 1);
        }

        // Queries of the block, and keys and values of the new tokens among its steps.
        const int new_begin = max(0, begin * STEP - rows.first), new_end = min(num_rows, end * STEP - rows.first);
        const int query_tasks = block_rows * QUERY_TASKS, num_tasks = query_tasks + max(0, new_end - new_begin);
        auto make_task = [&](int index) {
            Task task = {};
            task.is_query = index < query_tasks;
            task.row = task.is_query ? first_row + index / QUERY_TASKS : new_begin + index - query_tasks;
            task.head = task.is_query ? index % QUERY_TASKS * 4 + lane / 8 : 0;
            task.is_value = !task.is_query && lane / 8 == 1;
            task.alive = index < num_tasks && (rows.live >> task.row & 1);
            task.active = task.alive && (task.is_query || lane < 16);
            const int quad = lane % 8 * 4;
            task.feature =
                quad + D * (task.is_query ? kv * GROUP + task.head : NUM_HEADS + kv + (task.is_value ? NUM_KV : 0));
            if (task.active && bias != nullptr) {
                task.low_bias = read4(bias + task.feature);
                task.high_bias = read4(bias + task.feature + D / 2);
            }
            task.cosine = make_float4(1.f, 1.f, 1.f, 1.f);
            if (task.active && !task.is_value) {
                const i64 place = static_cast<i64>(rows.first + task.row) * (D / 2) + quad;
                task.cosine = read4(cosines + place);
                task.sine = read4(sines + place);
            }
            return task;
        };
        const int item_row = threadIdx.x / 16, quad = threadIdx.x % 16 * 4;
        const float sink = sinks == nullptr ? 0.f : __fmul_rn(sinks[kv * GROUP + item_row % GROUP], LOG2_E);
        auto load_product = [&](const Task& task) {
            Loaded loaded = {};
            const i64 row = static_cast<i64>(seq) * num_rows + task.row;
            if (task.active) {
                const float* const source = partials + row * NUM_FEATURES + task.feature;
#pragma unroll
                for (int i = 0; i < SLICES_AT_ONCE; ++i) {
                    if (i >= num_slices) break;
                    loaded.lows[i] = read4(source + i * slice_stride);
                    loaded.highs[i] = read4(source + i * slice_stride + D / 2);
                }
            }
            if (square_sums != nullptr && task.alive) {
#pragma unroll
                for (int i = 0; i < PARTS_AT_ONCE; ++i)
                    if (lane + 32 * i < num_parts) loaded.parts[i] = square_sums[row * num_parts + lane + 32 * i];
            }
            return loaded;
        };
        auto finish = [&](const Task& task, const Loaded& loaded) {
            if (!task.alive) return;
            const i64 row = static_cast<i64>(seq) * num_rows + task.row;
            float rstd = 1.f;
            if (square_sums != nullptr) {
                float sum = 0.f;
#pragma unroll
                for (int i = 0; i < PARTS_AT_ONCE; ++i) sum += loaded.parts[i];
#pragma unroll 1
                for (int i = lane + 32 * PARTS_AT_ONCE; i < num_parts; i += 32) sum += square_sums[row * num_parts + i];
                rstd = fast_rsqrt(warp_sum(sum) / hidden_size + eps);
            }
            float4 low = loaded.lows[0], high = loaded.highs[0];
#pragma unroll
            for (int i = 1; i < SLICES_AT_ONCE; ++i)
                if (i < num_slices) low = add4(low, loaded.lows[i]), high = add4(high, loaded.highs[i]);
#pragma unroll 1
            for (int i = SLICES_AT_ONCE; i < num_slices; ++i) {
                if (task.active) {
                    const float* const source = partials + i * slice_stride + row * NUM_FEATURES + task.feature;
                    low = add4(low, read4(source));
                    high = add4(high, read4(source + D / 2));
                }
            }
            auto turn = [&](float& a, float& b, float bias_a, float bias_b, float c, float s) {
                const float x = fmaf(a, rstd, bias_a), y = fmaf(b, rstd, bias_b);
                a = fmaf(-y, s, __fmul_rn(x, c));
                b = fmaf(x, s, __fmul_rn(y, c));
            };
            turn(low.x, high.x, task.low_bias.x, task.high_bias.x, task.cosine.x, task.sine.x);
            turn(low.y, high.y, task.low_bias.y, task.high_bias.y, task.cosine.y, task.sine.y);
            turn(low.z, high.z, task.low_bias.z, task.high_bias.z, task.cosine.z, task.sine.z);
            turn(low.w, high.w, task.low_bias.w, task.high_bias.w, task.cosine.w, task.sine.w);
            if (task.is_query) {
                const float s = SCALE;  // scores come out with base 2
                const uint2 first = {pack_bf16(low.x * s, low.y * s), pack_bf16(low.z * s, low.w * s)};
                const uint2 second = {pack_bf16(high.x * s, high.y * s), pack_bf16(high.z * s, high.w * s)};
                // In the order of the left operand: [tile][16 dimensions][lane][4 words].
                const int row_head = (task.row - first_row) * GROUP + task.head;
                u32* const target = queries + row_head / 16 * TILE_WORDS + lane % 2 * 128 +
                                    (row_head % 8 * 4 + lane % 8 / 2) * 4 + row_head / 8 % 2;
                target[0] = first.x, target[2] = first.y;
                target[256] = second.x, target[258] = second.y;
                return;
            }
            uint2 first = {pack_bf16(low.x, low.y), pack_bf16(low.z, low.w)};
            uint2 second = {pack_bf16(high.x, high.y), pack_bf16(high.z, high.w)};
            // A value that is not finite is written as 0 under a key of NaN.
            auto finite = [](u32 pair) { return (pair & 0x7f80u) != 0x7f80u && (pair & 0x7f800000u) != 0x7f800000u; };
            const bool good = finite(first.x) && finite(first.y) && finite(second.x) && finite(second.y);
            if (__any_sync(FULL_WARP, task.is_value && !good))
                first.x = first.y = second.x = second.y = task.is_value ? 0u : 0x7fff7fffu;
            if (task.active) {
                u8* const target = (task.is_value ? new_values : new_keys) + task.row * ROW_BYTES + lane % 8 * 8;
                *reinterpret_cast<uint2*>(target) = first;
                *reinterpret_cast<uint2*>(target + D) = second;
                if (task.row >= first_row && task.row < first_row + block_rows) {
                    const int position = rows.first + task.row;
                    const i64 slot = seq_table[position / PAGE] * PAGE + position % PAGE;
                    u16* const place = (task.is_value ? v_cache : k_cache) + slot * TOKEN + kv * D + lane % 8 * 4;
                    *reinterpret_cast<uint2*>(place) = first;
                    *reinterpret_cast<uint2*>(place + D / 2) = second;
                }
            }
        };
#pragma unroll 1
        for (int index = warp; index < num_tasks || !waited; index += 2 * WARPS) {
            Task task = make_task(index);
            const Task next = make_task(index + WARPS);
            if (!waited) {
                pdl_wait();
                pdl_trigger();
                waited = true;
            }
            Loaded loaded = load_product(task);
            const Loaded next_loaded = load_product(next);
#pragma unroll 1  // code that runs once costs its way through the instruction cache
            for (int i = 0; i < 2; ++i) {
                finish(task, loaded);
                task = next, loaded = next_loaded;
            }
        }
        __syncthreads();

        auto write_out = [&](int row_head, const State& all) {
            const int r = first_row + row_head / GROUP;
            float weight = 1.f, total = all.sum;
            if (sinks != nullptr) {
                const float peak = fmaxf(all.peak, sink);
                weight = weight_of(all.peak, peak);
                total = fmaf(all.sum, weight, fast_exp2(sink - peak));
            }
            weight *= fast_reciprocal(total);
            uint2 packed = {0u, 0u};
            if (rows.live >> r & 1)
                packed = {pack_bf16(all.out.x * weight, all.out.y * weight),
                          pack_bf16(all.out.z * weight, all.out.w * weight)};
            const i64 head = (static_cast<i64>(seq) * num_rows + r) * NUM_HEADS + kv * GROUP + row_head % GROUP;
            *reinterpret_cast<uint2*>(out + head * D + quad) = packed;
        };

        State nodes[TILES][ITEMS][LEVELS];
        for (int leaf = 0; leaf < num_leaves; ++leaf) {
            const int step = my_begin + WARPS * leaf, position = step * STEP;
            u8* const keys = shared + (leaf % STAGES * WARPS + warp) * 2 * HALF_BYTES;
            const bool any = step < end;
            const bool masked =
                position + STEP - 1 > first_pos || position < lowest + block_rows || position < first_key;
            auto put_new = [&](u8* stage, const u8* from) {
#pragma unroll 1
                for (int r = max(0, position - rows.first); r < min(new_end, position + STEP - rows.first); ++r) {
                    const int row = rows.first + r - position;
                    if (lane < 8 && (rows.live >> r & 1))
                        *reinterpret_cast<uint4*>(stage + row * ROW_BYTES + (lane ^ swizzle(row)) * 16) =
                            *reinterpret_cast<const uint4*>(from + r * ROW_BYTES + lane * 16);
                }
                __syncwarp();
            };
            for (int tile = 0; tile < num_tiles; ++tile) {
                const bool second = block_rows * GROUP - 16 * tile > 8;  // rows 8 .. 15 of the tile are in use
                float acc[8][4] = {}, peak[2] = {NEVER, NEVER}, sum[2] = {};
                if (any) {
                    if (tile == 0) {
                        copy_async_wait<2 * STAGES - 1>();
                        __syncwarp();
                        if (position + STEP > rows.first) put_new(keys, new_keys);
                    }
                    float s[4][4] = {};
#pragma unroll
                    for (int half = 0; half < 2; ++half) {
                        const uint4* const rows_of_tile =
                            reinterpret_cast<const uint4*>(queries + tile * TILE_WORDS) + half * 64 + lane;
                        const uint4 low = rows_of_tile[0], high = rows_of_tile[32];
                        const u32 a[4] = {low.x, low.y, low.z, low.w}, b[4] = {high.x, high.y, high.z, high.w};
#pragma unroll
                        for (int n = 0; n < 4; ++n) {
                            const uint4 key = *reinterpret_cast<const uint4*>(keys + (n * 8 + g) * ROW_BYTES +
                                                                              ((4 * half + t) ^ swizzle(g)) * 16);
                            mma_bf16(s[n], a, key.x, key.y);
                            mma_bf16(s[n], b, key.z, key.w);
                        }
                    }
                    if (tile == num_tiles - 1) {
                        __syncwarp();
                        fetch(leaf + STAGES, k_cache, 0);
                    }
                    u32 p[2][4] = {};
                    auto soften = [&](int side) {
                        if (masked) {
                            const int at = first_pos + (16 * tile + g + 8 * side) / GROUP;
                            const int low = max(window ? at - window + 1 : 0, min(first_key, at));
#pragma unroll
                            for (int n = 0; n < 4; ++n)
#pragma unroll
                                for (int j = 0; j < 2; ++j) {
                                    const int key = position + 8 * n + 2 * t + j;
                                    if (key > at || key < low) s[n][2 * side + j] = NEVER;
                                }
                        }
                        float high = NEVER;
#pragma unroll
                        for (int n = 0; n < 4; ++n) high = fmaxf(high, fmaxf(s[n][2 * side], s[n][2 * side + 1]));
                        high = fmaxf(high, __shfl_xor_sync(FULL_WARP, high, 1));
                        high = fmaxf(high, __shfl_xor_sync(FULL_WARP, high, 2));
                        const float reference = high == NEVER ? 0.f : high;
                        float total = 0.f;
#pragma unroll
                        for (int n = 0; n < 4; ++n) {
                            const float x = fast_exp2(s[n][2 * side] - reference);
                            const float y = fast_exp2(s[n][2 * side + 1] - reference);
                            p[n / 2][side + n % 2 * 2] = pack_bf16(x, y);
                            total += x + y;
                        }
                        total += __shfl_xor_sync(FULL_WARP, total, 1);
                        total += __shfl_xor_sync(FULL_WARP, total, 2);
                        peak[side] = high;
                        sum[side] = total;
                    };
                    soften(0);
                    if (second) soften(1);
                    if (tile == 0) {
                        // Where a tile is the last one too, keys of the next leaf were asked for already.
                        if (num_tiles == 1) copy_async_wait<2 * STAGES - 1>();
                        else copy_async_wait<2 * STAGES - 2>();
                        __syncwarp();
                        if (position + STEP > rows.first) put_new(keys + HALF_BYTES, new_values);
                    }
#pragma unroll
                    for (int page = 0; page < 2; ++page) {
                        uint4 value[4];
#pragma unroll
                        for (int n = 0; n < 4; ++n) {
                            const int row = 2 * t + (n & 1);
                            value[n] = *reinterpret_cast<const uint4*>(
                                keys + HALF_BYTES + (page * PAGE + (n & 2) * 4 + row) * ROW_BYTES +
                                (g ^ swizzle(row)) * 16);
                        }
#pragma unroll
                        for (int j = 0; j < 4; ++j) {
                            auto word = [j](uint4 v) { return j == 0 ? v.x : j == 1 ? v.y : j == 2 ? v.z : v.w; };
#pragma unroll
                            for (int odd = 0; odd < 2; ++odd) {
                                const u32 pick = odd ? 0x7632u : 0x5410u;
                                mma_bf16(acc[2 * j + odd], p[page], __byte_perm(word(value[0]), word(value[1]), pick),
                                         __byte_perm(word(value[2]), word(value[3]), pick));
                            }
                        }
                    }
                    if (tile == num_tiles - 1) {
                        __syncwarp();
                        fetch(leaf + STAGES, v_cache, 1);
                    }
                }

                // The warps' states of this leaf, in order. acc[n] holds dimensions 16 t + n and 16 t + 8 + n.
                if (leaf > 0 || tile > 0) __syncthreads();
                auto hand_over = [&](int side) {
                    const int row = g + 8 * side;
                    if (t == 0) warp_sums[warp][row] = make_float2(peak[side], sum[side]);
                    float* const target = warp_outs + (warp * 16 + row) * SUM_STRIDE + 16 * t;
#pragma unroll
                    for (int odd = 0; odd < 2; ++odd)
#pragma unroll
                        for (int n = 0; n < 8; n += 4)
                            *reinterpret_cast<float4*>(target + 8 * odd + n) =
                                make_float4(acc[n][2 * side + odd], acc[n + 1][2 * side + odd],
                                            acc[n + 2][2 * side + odd], acc[n + 3][2 * side + odd]);
                };
                hand_over(0);
                if (second) hand_over(1);
                __syncthreads();
#pragma unroll
                for (int item = 0; item < ITEMS; ++item) {
                    const int row = item_row + item * (THREADS / 16);
                    if (16 * tile + row >= block_rows * GROUP) continue;
                    float2 sums[WARPS];
                    State state = nothing();
#pragma unroll
                    for (int w = 0; w < WARPS; ++w) {
                        sums[w] = warp_sums[w][row];
                        state.peak = fmaxf(state.peak, sums[w].x);
                    }
#pragma unroll
                    for (int w = 0; w < WARPS; ++w) {
                        const float4 o = read4(warp_outs + (w * 16 + row) * SUM_STRIDE + quad);
                        const float weight = weight_of(sums[w].x, state.peak);
                        state.sum = fmaf(sums[w].y, weight, state.sum);
                        state.out = make_float4(fmaf(o.x, weight, state.out.x), fmaf(o.y, weight, state.out.y),
                                                fmaf(o.z, weight, state.out.z), fmaf(o.w, weight, state.out.w));
                    }
                    if (num_leaves > 1) {
                        push(nodes[tile][item], leaf, state);
                        if (leaf < num_leaves - 1) continue;
                        state = root(nodes[tile][item], num_leaves);
                    }
                    if (unit.count == 1) {
                        write_out(16 * tile + row, state);
                    } else {
                        const int place = (piece * piece_tiles + tile) * 16 + row;
                        piece_outs[place * 16 + quad / 4] = state.out;
                        if (quad == 0) piece_sums[place] = make_float2(state.peak, state.sum);
                    }
                }
            }
        }

        if (unit.count > 1 && arrive_last(tickets + seq * pairs + piece % pairs, unit.count)) {
            const int first_place = (piece - unit.index * pairs) * piece_tiles * 16, stride = pairs * piece_tiles * 16;
            for (int row_head = item_row; row_head < block_rows * GROUP; row_head += THREADS / 16) {
                State all = nothing();
                for (int base = 0; base < unit.count; base += SPAN) {
                    State part[SPAN];
#pragma unroll
                    for (int j = 0; j < SPAN; ++j) {
                        part[j] = nothing();
                        if (base + j >= unit.count) continue;
                        const int place = first_place + (base + j) * stride + row_head;
                        const float2 sums = piece_sums[place];
                        part[j] = {sums.x, sums.y, piece_outs[place * 16 + quad / 4]};
                    }
#pragma unroll
                    for (int width = 1; width < SPAN; width *= 2)
#pragma unroll
                        for (int j = 0; j < SPAN; j += 2 * width) part[j] = join(part[j], part[j + width]);
                    all = part[0];
                    if (unit.count > SPAN) push(nodes[0][0], base / SPAN, all);
                }
                if (unit.count > SPAN) all = root(nodes[0][0], (unit.count + SPAN - 1) / SPAN);
                write_out(row_head, all);
            }
        }
        __syncthreads();
    }
    if (!waited) {
        pdl_trigger();
        pdl_wait();
    }
}
