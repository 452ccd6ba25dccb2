// Attention of the decode path in one launch: sums of the QKV product, RoPE, cache write, split-KV attention, merge.
//
// Keys are dealt in leaves of 256 at absolute positions. Warp w of 8 chains the pages p of a leaf with p % 8 == w in
// ascending order, the warps' states (maximum, sum, output) are added in order, and leaves are joined by a binary tree
// over their absolute numbers. A piece, the work of one block, is one aligned node of that tree, as large as the grid
// makes necessary; the block that comes last joins the pieces by the same tree. What a row does not see is the
// identity of each of these steps, so its bits depend on nothing but its position and its keys. A sliding window is one
// leaf.
//
// Matrix instructions: 16 row-heads (pairs of row and query head) times 8 keys for the scores, then probabilities, as
// bf16 value and bf16 remainder, times 8 dimensions. Scores become the left operand without moving between lanes, as in
// FlashAttention-2 (Dao, 2023).
//
// Defines: GROUP (query heads per key/value head, 4 or 8), MT (tiles of 16 row-heads), STAGES (pages a warp has under
// way), RESIDENT (blocks per multiprocessor).
#include "common.cuh"

constexpr int D = 64;
constexpr int PAGE = 16;
constexpr int WARPS = 8;
constexpr int LEAF_PAGES = 16;
constexpr int BLOCK_ROWS = 16 * MT / GROUP;
constexpr int QUERY_TASKS = GROUP * 8 / 32;  // warps for the query heads of one row
constexpr int PAGE_BYTES = PAGE * D * 2;     // of one key/value head
constexpr int STAGE_BYTES = 2 * PAGE_BYTES;
constexpr int SUM_STRIDE = D + 4;  // floats; padded against bank conflicts
constexpr int LEVELS = 16;
constexpr int SEQ_STEPS = 4;  // each lane plans for as many sequences
constexpr float SCALE = 0.125f * LOG2_E;
#define NEVER __int_as_float(0xff800000)

// 16-byte chunk c of row r stands at chunk c ^ swizzle(r): no bank conflicts for fragments of keys nor of values.
DEVICE int swizzle(int r) { return (r & 6) ^ ((r & 1) << 2); }

DEVICE float4 add4(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }

// Softmax over some keys for one row-head and four dimensions, not yet normalised; exponents have base 2.
struct State {
    float peak, sum;
    float4 out;
};

DEVICE State nothing() { return {NEVER, 0.f, make_float4(0.f, 0.f, 0.f, 0.f)}; }

DEVICE float weight_of(float peak, float new_peak) { return peak == NEVER ? 0.f : fast_exp2(peak - new_peak); }

// a's keys stand before b's. With nothing() on one side it gives the other side's bits.
DEVICE State join(const State& a, const State& b) {
    const float peak = fmaxf(a.peak, b.peak), wa = weight_of(a.peak, peak), wb = weight_of(b.peak, peak);
    return {peak, fmaf(b.sum, wb, __fmul_rn(a.sum, wa)),
            make_float4(fmaf(b.out.x, wb, __fmul_rn(a.out.x, wa)), fmaf(b.out.y, wb, __fmul_rn(a.out.y, wa)),
                        fmaf(b.out.z, wb, __fmul_rn(a.out.z, wa)), fmaf(b.out.w, wb, __fmul_rn(a.out.w, wa)))};
}

// `nodes` are the complete nodes of a binary tree so far, at most one per level; node number `index` comes next.
DEVICE void push(State* nodes, int index, State node) {
    int level = 0;
    for (; index >> level & 1; ++level) node = join(nodes[level], node);
    nodes[level] = node;
}

DEVICE State root(const State* nodes, int count) {
    State all = nothing();
    for (int level = 0; count >> level; ++level)
        if (count >> level & 1) all = join(nodes[level], all);
    return all;
}

// Live rows of a sequence: their bits, and the position of its row 0 and of the last live one (-1 without any).
struct Rows {
    u32 live;
    int first, last;
};

DEVICE Rows rows_of(int seq, const i64* positions, const u8* live, int num_rows) {
    Rows rows = {0, static_cast<int>(positions[static_cast<i64>(seq) * num_rows]), -1};
    for (int r = 0; r < num_rows; ++r) rows.live |= live[seq * num_rows + r] ? 1u << r : 0u;
    if (rows.live) rows.last = rows.first + 31 - __clz(static_cast<int>(rows.live));
    return rows;
}

// How the launch is cut: a unit is 2^shift leaves of one sequence, for all its pairs of row block and key/value head.
struct Plan {
    int shift, units;
    int leaves[SEQ_STEPS];  // of sequences lane + 32 i
};

struct Unit {
    int seq, index, count;  // `index` among the `count` units of `seq`
};

DEVICE Plan plan_all(const i64* positions, const u8* live, int num_seqs, int num_rows, int pairs) {
    Plan plan = {};
    u32 total = 0, most = 1;
#pragma unroll
    for (int i = 0; i < SEQ_STEPS; ++i) {
        const int seq = lane_id() + 32 * i;
        if (seq < num_seqs) plan.leaves[i] = max(0, rows_of(seq, positions, live, num_rows).last) / (LEAF_PAGES * PAGE) + 1;
        total += plan.leaves[i];
        most = max(most, static_cast<u32>(plan.leaves[i]));
    }
    total = __reduce_add_sync(FULL_WARP, total);
    most = __reduce_max_sync(FULL_WARP, most);
    while ((total * pairs >> plan.shift) > gridDim.x && (most - 1) >> plan.shift) ++plan.shift;
    for (;; ++plan.shift) {
        u32 units = 0;
#pragma unroll
        for (int i = 0; i < SEQ_STEPS; ++i) units += (plan.leaves[i] + (1 << plan.shift) - 1) >> plan.shift;
        plan.units = static_cast<int>(__reduce_add_sync(FULL_WARP, units));
        if (plan.units * pairs <= static_cast<int>(gridDim.x) || (most - 1) >> plan.shift == 0) return plan;
    }
}

DEVICE Unit find_unit(const Plan& plan, int unit) {
    int before = 0;
#pragma unroll
    for (int i = 0; i < SEQ_STEPS; ++i) {
        const int count = (plan.leaves[i] + (1 << plan.shift) - 1) >> plan.shift;
        int end = count;
        for (int step = 1; step < 32; step <<= 1) {
            const int other = __shfl_up_sync(FULL_WARP, end, step);
            if (lane_id() >= step) end += other;
        }
        const u32 above = __ballot_sync(FULL_WARP, before + end > unit);
        if (above) {
            const int lane = __ffs(static_cast<int>(above)) - 1;
            const int start = before + __shfl_sync(FULL_WARP, end - count, lane);
            return {lane + 32 * i, unit - start, __shfl_sync(FULL_WARP, count, lane)};
        }
        before += __shfl_sync(FULL_WARP, end, 31);
    }
    return {0, 0, 1};
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, RESIDENT)
    attend(u16* out, const float* partials, int num_slices, const float* square_sums, int num_parts, float eps,
           int hidden_size, const float* bias, const float* cosines, const float* sines, u16* k_cache, u16* v_cache,
           const i64* table, int table_stride, const i64* positions, const u8* live, const float* sinks, int window,
           int first_key, int num_seqs, int num_rows, int num_kv, float4* piece_outs, float2* piece_sums,
           u32* tickets) {
    SHARED(u8, shared);
    float* const warp_outs = reinterpret_cast<float*>(shared + WARPS * STAGES * STAGE_BYTES);  // [WARPS][16][SUM_STRIDE]
    u8* const queries = reinterpret_cast<u8*>(warp_outs + WARPS * 16 * SUM_STRIDE);            // bf16 [16 MT][D]
    u8* const new_keys = queries + MT * 16 * D * 2;                                            // bf16 [num_rows][D]
    u8* const new_values = new_keys + num_rows * D * 2;
    __shared__ float2 warp_sums[WARPS][16];

    const int lane = lane_id(), warp = warp_id(), g = lane >> 2, t = lane & 3;
    u8* const ring = shared + warp * STAGES * STAGE_BYTES;
    const int num_blocks = (num_rows + BLOCK_ROWS - 1) / BLOCK_ROWS, pairs = num_blocks * num_kv;
    const int num_heads = num_kv * GROUP;
    const i64 num_features = static_cast<i64>(num_heads + 2 * num_kv) * D;
    const i64 slice_stride = num_seqs * num_rows * num_features;
    const int token_stride = num_kv * D;

    Plan plan = {};
    plan.units = num_seqs;
    if (window == 0) plan = plan_all(positions, live, num_seqs, num_rows, pairs);

    bool waited = false;
    for (int piece = blockIdx.x; piece < plan.units * pairs; piece += gridDim.x) {
        Unit unit = {piece / pairs, 0, 1};
        if (window == 0) unit = find_unit(plan, piece / pairs);
        const int seq = unit.seq, kv = piece % num_kv, first_row = piece % pairs / num_kv * BLOCK_ROWS;
        const int block_rows = min(BLOCK_ROWS, num_rows - first_row);
        const Rows rows = rows_of(seq, positions, live, num_rows);
        const int first_pos = rows.first + first_row, last_pos = min(rows.last, first_pos + block_rows - 1);

        // Pages that the block reads, and this warp's share of them.
        const int lowest = window ? max(0, first_pos - window + 1) : 0;
        int begin = max(lowest, min(first_key, first_pos)) / PAGE, end = last_pos / PAGE + 1;
        if (window == 0) {
            begin = max(begin, unit.index * LEAF_PAGES << plan.shift);
            end = min(end, (unit.index + 1) * LEAF_PAGES << plan.shift);
        }
        if (last_pos < first_pos) end = begin;
        const int my_begin = begin + ((warp - begin) & (WARPS - 1));
        const int num_pages = end > my_begin ? (end - my_begin + WARPS - 1) / WARPS : 0;
        const int lowest_key = max(lowest, min(first_key, first_pos));
        const i64* const seq_table = table + static_cast<i64>(seq) * table_stride;

        int pages = 0;  // ids of this warp's pages 32 n + lane
        auto fetch = [&](int i) {
            if (i < num_pages) {
                if (i % 32 == 0 && i + lane < num_pages) pages = static_cast<int>(seq_table[my_begin + WARPS * (i + lane)]);
                const i64 id = __shfl_sync(FULL_WARP, pages, i % 32);
                const int chunk = lane & 7, position = (my_begin + WARPS * i) * PAGE;
                u8* const stage = ring + i % STAGES * STAGE_BYTES;
#pragma unroll
                for (int r = lane >> 3; r < PAGE; r += 4) {
                    const int key = position + r, row = key - rows.first;
                    const bool is_new = row >= 0 && row < 32 && (rows.live >> row & 1);
                    const bool old = key >= lowest_key && key <= last_pos && !is_new;
                    const i64 place = (id * PAGE + r) * token_stride + kv * D + chunk * 8;
                    u8* const target = stage + r * D * 2 + (chunk ^ swizzle(r)) * 16;
                    copy_async_16(target, k_cache + place, old);
                    copy_async_16(target + PAGE_BYTES, v_cache + place, old);
                }
            }
            copy_async_commit();
        };
        for (int i = 0; i < STAGES; ++i) fetch(i);
        if (!waited) {
            pdl_wait();
            pdl_trigger();
            waited = true;
        }

        // Queries of the block, and keys and values of the new tokens among its pages. One task: 32 pairs of four
        // features of a row's query heads, or the key and the value of a row.
        const int new_begin = max(0, begin * PAGE - rows.first), new_end = min(num_rows, end * PAGE - rows.first);
        const int query_tasks = block_rows * QUERY_TASKS, num_tasks = query_tasks + max(0, new_end - new_begin);
        for (int task = warp; task < num_tasks; task += WARPS) {
            const bool is_query = task < query_tasks;
            const int r = is_query ? first_row + task / QUERY_TASKS : new_begin + task - query_tasks;
            if (!(rows.live >> r & 1)) continue;
            const int position = rows.first + r, quad = lane % 8 * 4;
            const int head = is_query ? task % QUERY_TASKS * 4 + lane / 8 : 0;
            // Lanes 8 .. 15 of a key's task take the value's features, the others nothing.
            const bool is_value = !is_query && lane / 8 == 1, active = is_query || lane < 16;
            const int feature = quad + D * (is_query ? kv * GROUP + head : num_heads + kv + (is_value ? num_kv : 0));
            float4 low = make_float4(0.f, 0.f, 0.f, 0.f), high = low;
            if (active) {
                const float* source = partials + (static_cast<i64>(seq) * num_rows + r) * num_features + feature;
                low = *reinterpret_cast<const float4*>(source);
                high = *reinterpret_cast<const float4*>(source + D / 2);
                for (int i = 1; i < num_slices; ++i) {
                    source += slice_stride;
                    low = add4(low, *reinterpret_cast<const float4*>(source));
                    high = add4(high, *reinterpret_cast<const float4*>(source + D / 2));
                }
            }
            float rstd = 1.f;
            if (square_sums != nullptr) {
                const float* const parts = square_sums + (static_cast<i64>(seq) * num_rows + r) * num_parts;
                float sum = 0.f;
                for (int i = lane; i < num_parts; i += 32) sum += parts[i];
                rstd = fast_rsqrt(warp_sum(sum) / hidden_size + eps);
            }
            float4 low_bias = make_float4(0.f, 0.f, 0.f, 0.f), high_bias = low_bias;
            if (bias != nullptr && active) {
                low_bias = *reinterpret_cast<const float4*>(bias + feature);
                high_bias = *reinterpret_cast<const float4*>(bias + feature + D / 2);
            }
            float4 cosine = make_float4(1.f, 1.f, 1.f, 1.f), sine = make_float4(0.f, 0.f, 0.f, 0.f);
            if (active && !is_value) {
                cosine = *reinterpret_cast<const float4*>(cosines + static_cast<i64>(position) * (D / 2) + quad);
                sine = *reinterpret_cast<const float4*>(sines + static_cast<i64>(position) * (D / 2) + quad);
            }
            auto turn = [&](float& a, float& b, float bias_a, float bias_b, float c, float s) {
                const float x = fmaf(a, rstd, bias_a), y = fmaf(b, rstd, bias_b);
                a = fmaf(-y, s, __fmul_rn(x, c));
                b = fmaf(x, s, __fmul_rn(y, c));
            };
            turn(low.x, high.x, low_bias.x, high_bias.x, cosine.x, sine.x);
            turn(low.y, high.y, low_bias.y, high_bias.y, cosine.y, sine.y);
            turn(low.z, high.z, low_bias.z, high_bias.z, cosine.z, sine.z);
            turn(low.w, high.w, low_bias.w, high_bias.w, cosine.w, sine.w);
            uint2 first = {pack_bf16(low.x, low.y), pack_bf16(low.z, low.w)};
            uint2 second = {pack_bf16(high.x, high.y), pack_bf16(high.z, high.w)};
            if (is_query) {
                const int row = (r - first_row) * GROUP + head, chunk = quad / 8;
                u8* const target = queries + row * D * 2 + (quad & 4) * 2;
                *reinterpret_cast<uint2*>(target + (chunk ^ swizzle(row)) * 16) = first;
                *reinterpret_cast<uint2*>(target + ((chunk + 4) ^ swizzle(row)) * 16) = second;
                continue;
            }
            // A value that is not finite is written as 0 under a key of NaN.
            auto finite = [](u32 pair) { return (pair & 0x7f80u) != 0x7f80u && (pair & 0x7f800000u) != 0x7f800000u; };
            const bool bad = is_value && !(finite(first.x) && finite(first.y) && finite(second.x) && finite(second.y));
            if (__any_sync(FULL_WARP, bad)) first.x = first.y = second.x = second.y = is_value ? 0u : 0x7fff7fffu;
            if (lane < 16) {
                u8* const target = (is_value ? new_values : new_keys) + r * D * 2 + quad * 2;
                *reinterpret_cast<uint2*>(target) = first;
                *reinterpret_cast<uint2*>(target + D) = second;
            }
            if (lane < 16 && r >= first_row && r < first_row + block_rows) {
                const i64 slot = seq_table[position / PAGE] * PAGE + position % PAGE;
                u16* const place = (is_value ? v_cache : k_cache) + slot * token_stride + kv * D + quad;
                *reinterpret_cast<uint2*>(place) = first;
                *reinterpret_cast<uint2*>(place + D / 2) = second;
            }
        }
        __syncthreads();

        // Left operand of a 32-wide half of the dimensions: rows g and g + 8 of tile m.
        auto load_queries = [&](int m, int half, uint4& upper, uint4& lower) {
            const u8* const row = queries + (16 * m + g) * D * 2 + ((4 * half + t) ^ swizzle(g)) * 16;
            upper = *reinterpret_cast<const uint4*>(row);
            lower = *reinterpret_cast<const uint4*>(row + 8 * D * 2);
        };
#if MT <= 2
        uint4 q[MT][2][2];
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
            for (int half = 0; half < 2; ++half) load_queries(m, half, q[m][half][0], q[m][half][1]);
#endif

        State nodes[MT][LEVELS];
        const int num_leaves = window ? 1 : (end + LEAF_PAGES - 1) / LEAF_PAGES - begin / LEAF_PAGES;
        int i = 0;
        for (int leaf = 0; leaf < max(1, num_leaves); ++leaf) {
            const int leaf_end = window ? end : min(end, (begin / LEAF_PAGES + leaf + 1) * LEAF_PAGES);
            float acc[MT][8][4] = {}, peak[MT][2], sum[MT][2] = {};
#pragma unroll
            for (int m = 0; m < MT; ++m) peak[m][0] = peak[m][1] = NEVER;

            for (; my_begin + WARPS * i < leaf_end; ++i) {
                const int position = (my_begin + WARPS * i) * PAGE;
                u8* const stage = ring + i % STAGES * STAGE_BYTES;
                copy_async_wait<STAGES - 1>();
                __syncwarp();
                if (position + PAGE > rows.first) {
                    for (int r = max(0, position - rows.first); r < min(new_end, position + PAGE - rows.first); ++r) {
                        const int row = rows.first + r - position, chunk = lane & 7;
                        if (lane < 16 && (rows.live >> r & 1))
                            *reinterpret_cast<uint4*>(stage + lane / 8 * PAGE_BYTES + row * D * 2 +
                                                      (chunk ^ swizzle(row)) * 16) =
                                *reinterpret_cast<const uint4*>((lane < 8 ? new_keys : new_values) + r * D * 2 + chunk * 16);
                    }
                    __syncwarp();
                }
                uint4 key[2][2], value[4];
#pragma unroll
                for (int n = 0; n < 2; ++n)
#pragma unroll
                    for (int half = 0; half < 2; ++half)
                        key[n][half] = *reinterpret_cast<const uint4*>(stage + (8 * n + g) * D * 2 +
                                                                       ((4 * half + t) ^ swizzle(g)) * 16);
#pragma unroll
                for (int n = 0; n < 4; ++n) {
                    const int row = 2 * t + (n & 1) + (n & 2) * 4;
                    value[n] = *reinterpret_cast<const uint4*>(stage + PAGE_BYTES + row * D * 2 +
                                                               (g ^ swizzle(row)) * 16);
                }
                __syncwarp();
                fetch(i + STAGES);

                const bool masked = position + PAGE - 1 > first_pos || position < lowest + block_rows ||
                                    position < first_key;
#pragma unroll
                for (int m = 0; m < MT; ++m) {
                    float s[2][4] = {};
#pragma unroll
                    for (int half = 0; half < 2; ++half) {
#if MT <= 2
                        const uint4 upper = q[m][half][0], lower = q[m][half][1];
#else
                        uint4 upper, lower;
                        load_queries(m, half, upper, lower);
#endif
                        const u32 a[4] = {upper.x, lower.x, upper.y, lower.y};
                        const u32 b[4] = {upper.z, lower.z, upper.w, lower.w};
#pragma unroll
                        for (int n = 0; n < 2; ++n) {
                            mma_bf16(s[n], a, key[n][half].x, key[n][half].y);
                            mma_bf16(s[n], b, key[n][half].z, key[n][half].w);
                        }
                    }
#pragma unroll
                    for (int n = 0; n < 2; ++n)
#pragma unroll
                        for (int j = 0; j < 4; ++j) s[n][j] = __fmul_rn(s[n][j], SCALE);
                    if (masked) {
#pragma unroll
                        for (int side = 0; side < 2; ++side) {
                            const int row = (16 * m + g + 8 * side) / GROUP, at = first_pos + row;
                            const int low = max(window ? at - window + 1 : 0, min(first_key, at));
#pragma unroll
                            for (int n = 0; n < 2; ++n)
#pragma unroll
                                for (int j = 0; j < 2; ++j) {
                                    const int k = position + 8 * n + 2 * t + j;
                                    if (k > at || k < low) s[n][2 * side + j] = NEVER;
                                }
                        }
                    }
                    float new_peak[2];
#pragma unroll
                    for (int side = 0; side < 2; ++side) {
                        float p = fmaxf(fmaxf(s[0][2 * side], s[0][2 * side + 1]), fmaxf(s[1][2 * side], s[1][2 * side + 1]));
                        p = fmaxf(p, __shfl_xor_sync(FULL_WARP, p, 1));
                        p = fmaxf(p, __shfl_xor_sync(FULL_WARP, p, 2));
                        new_peak[side] = fmaxf(peak[m][side], p);
                    }
                    // Where no peak rises, all factors would be 1.
                    if (__any_sync(FULL_WARP, new_peak[0] > peak[m][0] || new_peak[1] > peak[m][1])) {
#pragma unroll
                        for (int side = 0; side < 2; ++side) {
                            const float w = weight_of(peak[m][side], new_peak[side]);
                            peak[m][side] = new_peak[side];
                            sum[m][side] = __fmul_rn(sum[m][side], w);
#pragma unroll
                            for (int n = 0; n < 8; ++n) {
                                acc[m][n][2 * side] *= w;
                                acc[m][n][2 * side + 1] *= w;
                            }
                        }
                    }
                    u32 p[4], rest[4];
#pragma unroll
                    for (int side = 0; side < 2; ++side) {
                        const float zero = peak[m][side] == NEVER ? 0.f : peak[m][side];
                        float total = 0.f;
#pragma unroll
                        for (int n = 0; n < 2; ++n) {
                            const float x = fast_exp2(s[n][2 * side] - zero), y = fast_exp2(s[n][2 * side + 1] - zero);
                            const u32 pair = pack_bf16(x, y);
                            p[side + 2 * n] = pair;
                            rest[side + 2 * n] = pack_bf16(x - bf16_low(pair), y - bf16_high(pair));
                            total += x + y;
                        }
                        sum[m][side] += total;
                    }
#pragma unroll
                    for (int j = 0; j < 4; ++j) {
                        auto word = [j](const uint4& v) { return j == 0 ? v.x : j == 1 ? v.y : j == 2 ? v.z : v.w; };
#pragma unroll
                        for (int odd = 0; odd < 2; ++odd) {
                            const u32 pick = odd ? 0x7632u : 0x5410u;
                            const u32 b0 = __byte_perm(word(value[0]), word(value[1]), pick);
                            const u32 b1 = __byte_perm(word(value[2]), word(value[3]), pick);
                            mma_bf16(acc[m][2 * j + odd], p, b0, b1);
                            mma_bf16(acc[m][2 * j + odd], rest, b0, b1);
                        }
                    }
                }
            }

            // The warps' states of this leaf, in order.
#pragma unroll
            for (int m = 0; m < MT; ++m) {
                if (leaf > 0 || m > 0) __syncthreads();
#pragma unroll
                for (int side = 0; side < 2; ++side) {
                    float total = sum[m][side];
                    total += __shfl_xor_sync(FULL_WARP, total, 1);
                    total += __shfl_xor_sync(FULL_WARP, total, 2);
                    const int row = g + 8 * side;
                    if (t == 0) warp_sums[warp][row] = make_float2(peak[m][side], total);
                    float* const target = warp_outs + (warp * 16 + row) * SUM_STRIDE + 16 * t;
#pragma unroll
                    for (int odd = 0; odd < 2; ++odd)
#pragma unroll
                        for (int n = 0; n < 8; n += 4)
                            *reinterpret_cast<float4*>(target + 8 * odd + n) =
                                make_float4(acc[m][n][2 * side + odd], acc[m][n + 1][2 * side + odd],
                                            acc[m][n + 2][2 * side + odd], acc[m][n + 3][2 * side + odd]);
                }
                __syncthreads();
                const int row = threadIdx.x / 16;
                State state = nothing();
#pragma unroll
                for (int w = 0; w < WARPS; ++w) state.peak = fmaxf(state.peak, warp_sums[w][row].x);
#pragma unroll
                for (int w = 0; w < WARPS; ++w) {
                    const float2 part = warp_sums[w][row];
                    const float4 o = *reinterpret_cast<const float4*>(warp_outs + (w * 16 + row) * SUM_STRIDE +
                                                                      threadIdx.x % 16 * 4);
                    const float weight = weight_of(part.x, state.peak);
                    state.sum = fmaf(part.y, weight, state.sum);
                    state.out.x = fmaf(o.x, weight, state.out.x);
                    state.out.y = fmaf(o.y, weight, state.out.y);
                    state.out.z = fmaf(o.z, weight, state.out.z);
                    state.out.w = fmaf(o.w, weight, state.out.w);
                }
                push(nodes[m], leaf, state);
            }
        }

        // One thread: 4 dimensions of one row-head per tile.
        const int place = threadIdx.x / 16;
        if (unit.count > 1) {
#pragma unroll
            for (int m = 0; m < MT; ++m) {
                const State state = root(nodes[m], max(1, num_leaves));
                const i64 index = static_cast<i64>(piece) * MT + m;
                piece_outs[index * (32 * WARPS) + threadIdx.x] = state.out;
                if (threadIdx.x % 16 == 0) piece_sums[index * 16 + place] = make_float2(state.peak, state.sum);
            }
        }
        if (unit.count == 1 || arrive_last(tickets + seq * pairs + piece % pairs, unit.count)) {
#pragma unroll
            for (int m = 0; m < MT; ++m) {
                const int row_head = 16 * m + place, r = first_row + row_head / GROUP;
                if (r >= num_rows) continue;
                if (unit.count > 1) {
                    const i64 first_piece = piece - static_cast<i64>(unit.index) * pairs;
                    for (int base = 0; base < unit.count; base += 8) {
                        State part[8];
#pragma unroll
                        for (int j = 0; j < 8; ++j) {
                            part[j] = nothing();
                            if (base + j < unit.count) {
                                const i64 index = (first_piece + (base + j) * pairs) * MT + m;
                                const uint4 o = load_16(piece_outs + index * (32 * WARPS) + threadIdx.x);
                                const float2 s = piece_sums[index * 16 + place];
                                part[j] = {s.x, s.y, make_float4(__uint_as_float(o.x), __uint_as_float(o.y),
                                                                 __uint_as_float(o.z), __uint_as_float(o.w))};
                            }
                        }
#pragma unroll
                        for (int step = 1; step < 8; step *= 2)
#pragma unroll
                            for (int j = 0; j < 8; j += 2 * step) part[j] = join(part[j], part[j + step]);
                        push(nodes[m], base / 8, part[0]);
                    }
                }
                const State all = root(nodes[m], unit.count > 1 ? (unit.count + 7) / 8 : max(1, num_leaves));
                const int head = kv * GROUP + row_head % GROUP;
                float weight = 1.f, total = all.sum;
                if (sinks != nullptr) {
                    const float sink = __fmul_rn(sinks[head], LOG2_E), peak = fmaxf(all.peak, sink);
                    weight = weight_of(all.peak, peak);
                    total = fmaf(all.sum, weight, fast_exp2(sink - peak));
                }
                weight = weight / total;
                uint2 packed = {0u, 0u};
                if (rows.live >> r & 1)
                    packed = {pack_bf16(all.out.x * weight, all.out.y * weight),
                              pack_bf16(all.out.z * weight, all.out.w * weight)};
                u16* const target = out + ((static_cast<i64>(seq) * num_rows + r) * num_heads + head) * D;
                *reinterpret_cast<uint2*>(target + threadIdx.x % 16 * 4) = packed;
            }
        }
        __syncthreads();
    }
    if (!waited) {
        pdl_trigger();
        pdl_wait();
    }
}
