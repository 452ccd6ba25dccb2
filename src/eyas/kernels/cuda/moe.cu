// The mixture of experts for a few rows: each distinct expert is read once, whatever the number of rows.
//
// Every block finds the top k of all rows from the logits, so all agree on the list of distinct experts; (expert, tile
// of 16 matrix rows) in that order are the items, and each block takes one contiguous share of them. One warp asks for
// the items in bulk copies, DEPTH ahead. 15 warps multiply: warp s owns SLICE units of 64 columns, keeps its fragments
// of the rows (B) while the expert stays the same, unpacks the weights (kernels/mxfp4_layout.py) and leaves a partial
// sum in shared memory. The first warp then adds the slices in order and finishes the item, and its place in the ring
// is free. More than 8 rows of one expert: more passes over the item while it is in shared memory.
//
// Row invariance: an output is a sum of slices in ascending order, each one chain of matrix instructions in ascending
// columns; the borders follow from the number of columns alone.
//
// Defines: NUM_COLUMNS (of the matrices, a multiple of 32), DEPTH (items a block has under way), NUM_EXPERTS, TOP_K.
#include "common.cuh"

constexpr int TILE = 16;
constexpr int COLUMNS = 8;  // rows of the batch in one pass
constexpr int MATH_WARPS = 15, WARPS = MATH_WARPS + 1, THREADS = WARPS * 32;
constexpr int UNITS = (NUM_COLUMNS + 63) / 64;
constexpr int SLICE = (UNITS + MATH_WARPS - 1) / MATH_WARPS;  // units of a warp
constexpr int SLICES = (UNITS + SLICE - 1) / SLICE;           // warps that have any
constexpr int WORD_BYTES = UNITS * 512, SCALE_BYTES = UNITS * 32, ITEM_BYTES = WORD_BYTES + SCALE_BYTES;
constexpr int LOGITS_PER_LANE = (NUM_EXPERTS + 31) / 32;
constexpr float SWIGLU_ALPHA = 1.702f;  // kernels/moe.py

struct Shared {
    u8* ring;          // [DEPTH][ITEM_BYTES]: words, scales
    float4* partials;  // [DEPTH][SLICES][32]: fragments
    u64 *full, *done;  // [DEPTH]
    int *experts, *first, *cursors;  // distinct experts, where their pairs begin (and where the last end), counts
    int* num_distinct;
    float* row_scales;  // [T]: inverse rms
    float* weights;     // [T k]
    u16* pairs;         // [T k]: row * k + rank, by expert
    short* ids;         // [T k]
};

DEVICE Shared carve(u8* base, int num_rows) {
    Shared s;
    s.ring = base;
    s.partials = reinterpret_cast<float4*>(s.ring + DEPTH * ITEM_BYTES);
    s.full = reinterpret_cast<u64*>(s.partials + DEPTH * SLICES * 32);
    s.done = s.full + DEPTH;
    s.experts = reinterpret_cast<int*>(s.done + DEPTH);
    s.first = s.experts + NUM_EXPERTS;
    s.cursors = s.first + NUM_EXPERTS + 1;
    s.num_distinct = s.cursors + NUM_EXPERTS;
    s.row_scales = reinterpret_cast<float*>(s.num_distinct + 1);
    s.weights = s.row_scales + num_rows;
    s.pairs = reinterpret_cast<u16*>(s.weights + num_rows * TOP_K);
    s.ids = reinterpret_cast<short*>(s.pairs + num_rows * TOP_K);
    return s;
}

// ---- routing -----------------------------------------------------------------------------------------------------

struct Choice {
    int id;        // of rank lane_id()
    float weight;  // softmax over the chosen
};

// The experts of a row by falling logit, the lower id first where logits are equal. One warp; lanes of rank < TOP_K.
DEVICE Choice choose(const float* logits) {
    u32 keys[LOGITS_PER_LANE];  // order of floats as order of integers; 0 is below all
#pragma unroll
    for (int i = 0; i < LOGITS_PER_LANE; ++i) {
        const int id = lane_id() * LOGITS_PER_LANE + i;
        const u32 bits = id < NUM_EXPERTS ? load_l2(logits + id) : 0xffffffffu;
        keys[i] = id < NUM_EXPERTS ? max(bits >> 31 ? ~bits : bits | 0x80000000u, 1u) : 0;
    }
    Choice mine = {0, 0.f};
    float best = 0.f, sum = 0.f;
#pragma unroll
    for (int rank = 0; rank < TOP_K; ++rank) {
        u32 key = keys[0];
        int which = 0;
#pragma unroll
        for (int i = 1; i < LOGITS_PER_LANE; ++i) {
            which = keys[i] > key ? i : which;
            key = max(keys[i], key);
        }
        const u32 top = __reduce_max_sync(FULL_WARP, key);
        const int winner = __ffs(__ballot_sync(FULL_WARP, key == top)) - 1;
        const int id = winner * LOGITS_PER_LANE + __shfl_sync(FULL_WARP, which, winner);
        const float logit = __uint_as_float(top >> 31 ? top & 0x7fffffffu : ~top);
        if (rank == 0) best = logit;
        const float weight = fast_exp(logit - best);
        sum += weight;
        if (lane_id() == rank) mine = {id, weight};
#pragma unroll
        for (int i = 0; i < LOGITS_PER_LANE; ++i)
            if (lane_id() == winner && i == which) keys[i] = 0;
    }
    mine.weight *= fast_reciprocal(sum);
    return mine;
}

// Numbers the experts that have rows, in ascending order, and says where their pairs begin. One warp; s.cursors holds
// the counts, and the beginnings afterwards.
DEVICE void list_experts(const Shared& s) {
    int distinct = 0, total = 0;
    for (int base = 0; base < NUM_EXPERTS; base += 32) {
        const int id = base + lane_id();
        const int count = id < NUM_EXPERTS ? s.cursors[id] : 0;
        int end = count;  // inclusive sum over the lanes
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const int below = __shfl_up_sync(FULL_WARP, end, step);
            if (lane_id() >= step) end += below;
        }
        const u32 used = __ballot_sync(FULL_WARP, count > 0);
        if (count > 0) {
            const int place = distinct + __popc(used & ((1u << lane_id()) - 1));
            s.experts[place] = id;
            s.first[place] = s.cursors[id] = total + end - count;
        }
        distinct += __popc(used);
        total += __shfl_sync(FULL_WARP, end, 31);
    }
    if (lane_id() == 0) {
        s.first[distinct] = total;
        *s.num_distinct = distinct;
    }
    __syncwarp();
}

// All threads; `ask` is what the last warp does as soon as the list of experts is known, `meanwhile` what the others do.
template <class Ask, class Meanwhile>
DEVICE void route(const Shared& s, const float* logits, const u8* live, int num_rows, Ask ask, Meanwhile meanwhile) {
    const bool asks = warp_id() == MATH_WARPS;
    if (num_rows == 1) {
        if (asks) {
            const Choice choice = choose(logits);
            const int num_chosen = live[0] ? TOP_K : 0;
            if (lane_id() <= num_chosen) s.first[lane_id()] = lane_id();
            if (lane_id() < num_chosen) {
                s.experts[lane_id()] = choice.id;
                s.pairs[lane_id()] = lane_id();
                s.weights[lane_id()] = choice.weight;
            }
            *s.num_distinct = num_chosen;
            __syncwarp();
            ask();
        } else {
            meanwhile();
        }
        __syncthreads();
        return;
    }
    for (int id = threadIdx.x; id < NUM_EXPERTS; id += THREADS) s.cursors[id] = 0;
    __syncthreads();
    for (int row = warp_id(); row < num_rows; row += WARPS) {
        const bool is_live = live[row];
        Choice choice = {-1, 0.f};
        if (is_live) choice = choose(logits + static_cast<i64>(row) * NUM_EXPERTS);
        if (lane_id() < TOP_K) {
            const int pair = row * TOP_K + lane_id();
            s.ids[pair] = is_live ? choice.id : -1;
            s.weights[pair] = choice.weight;
            if (is_live) atomicAdd(&s.cursors[choice.id], 1);
        }
    }
    __syncthreads();
    if (asks) {
        list_experts(s);
        ask();
    } else {
        meanwhile();
    }
    __syncthreads();
    for (int pair = threadIdx.x; pair < num_rows * TOP_K; pair += THREADS)
        if (s.ids[pair] >= 0) s.pairs[atomicAdd(&s.cursors[s.ids[pair]], 1)] = pair;
    __syncthreads();
}

// ---- the stream of items -----------------------------------------------------------------------------------------

struct Items {
    int begin, end;  // of this block
    int num_tiles;   // of an expert
};

DEVICE Items share_of(const Shared& s, int num_tiles) {
    const int count = *s.num_distinct * num_tiles;
    const int block = blockIdx.x, blocks = gridDim.x;
    return {static_cast<int>(static_cast<i64>(count) * block / blocks),
            static_cast<int>(static_cast<i64>(count) * (block + 1) / blocks), num_tiles};
}

// One thread: item `begin + n` into its place in the ring.
DEVICE void ask_for(const Shared& s, const Items& items, int n, const u8* words, const u8* scales) {
    const int item = items.begin + n, d = item / items.num_tiles;
    const i64 tile = static_cast<i64>(s.experts[d]) * items.num_tiles + (item - d * items.num_tiles);
    u8* const place = s.ring + n % DEPTH * ITEM_BYTES;
    u64* const full = s.full + n % DEPTH;
    copy_barrier_expect(full, ITEM_BYTES);
    copy_bulk(place, words + tile * WORD_BYTES, WORD_BYTES, full);
    copy_bulk(place + WORD_BYTES, scales + tile * SCALE_BYTES, SCALE_BYTES, full);
}

DEVICE void init_barriers(const Shared& s) {
    for (int i = 0; i < DEPTH; ++i) {
        copy_barrier_init(s.full + i, 1);
        copy_barrier_init(s.done + i, SLICES);
    }
    copy_barrier_fence();
}

DEVICE void ask_for_first(const Shared& s, const u8* words, const u8* scales, int num_tiles) {
    const Items items = share_of(s, num_tiles);
    if (lane_id() == 0)
        for (int n = 0; n < min(DEPTH, items.end - items.begin); ++n) ask_for(s, items, n, words, scales);
}

// ---- multiplying -------------------------------------------------------------------------------------------------

// c += the 16 x 32 weights of two words times a lane's 8 values of the rows.
DEVICE void multiply_block(float (&c)[4], u32 low_row, u32 high_row, u32 factors, const uint4& b) {
    constexpr u32 CODE = 0x81C081C0u, SIGN_EXPONENT = 0x81808180u, MANTISSA = 0x00400040u;
    const auto pair = [](u32 q, int p) {
        if (p == 0) return q & CODE;
        if (p == 1) return __funnelshift_r(q, q, 4) & CODE;
        if (p == 2) return (q << 6) & CODE;
        return (__funnelshift_r(q, q, 6) & SIGN_EXPONENT) | ((q << 2) & MANTISSA);
    };
    u32 a[4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int p = 0; p < 2; ++p) {
            a[2 * p] = mul_bf16x2_low(pair(low_row, 2 * half + p), factors);
            a[2 * p + 1] = mul_bf16x2_high(pair(high_row, 2 * half + p), factors);
        }
        mma_bf16(c, a, half ? b.z : b.x, half ? b.w : b.y);
    }
}

// One warp of MATH_WARPS. Row of pair p: rows + (p / pairs_per_row) * NUM_COLUMNS.
DEVICE void multiply(const Shared& s, const Items& items, const u16* rows, int pairs_per_row) {
    constexpr u32 FACTORS = 0x7F807F80u;
    const int lane = lane_id(), g = lane >> 2, t = lane & 3;
    const int slice = warp_id(), first_unit = slice * SLICE;
    uint4 b[2 * SLICE];
    int loaded = -1;
    for (int n = 0; n < items.end - items.begin; ++n) {
        const int stage = n % DEPTH, d = (items.begin + n) / items.num_tiles;
        const int first = s.first[d], count = s.first[d + 1] - first;
        const u8* const words = s.ring + stage * ITEM_BYTES + first_unit * 512 + lane * 16;
        const u8* const scales = s.ring + stage * ITEM_BYTES + WORD_BYTES + first_unit * 32 + g * 4;
        for (int pass = 0; pass < count; pass += COLUMNS) {
            if (d != loaded || count > COLUMNS) {
                const bool valid = pass + g < count;
                const int pair = valid ? s.pairs[first + pass + g] : 0;
                const u16* const row = rows + static_cast<i64>(pair / pairs_per_row) * NUM_COLUMNS + 8 * t;
#pragma unroll
                for (int j = 0; j < 2 * SLICE; ++j) {
                    const int column = (2 * first_unit + j) * 32;
                    b[j] = load_16_if(row + column, valid && column < NUM_COLUMNS);
                }
                loaded = d;
            }
            if (pass == 0) copy_barrier_wait(s.full + stage, n / DEPTH & 1);
            float c[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
            for (int u = 0; u < SLICE; ++u) {
                if (UNITS % SLICE == 0 || first_unit + u < UNITS) {
                    const uint4 q = *reinterpret_cast<const uint4*>(words + u * 512);
                    const u32 w = *reinterpret_cast<const u32*>(scales + u * 32);
                    multiply_block(c, q.x, q.y, w & FACTORS, b[2 * u]);
                    multiply_block(c, q.z, q.w, __funnelshift_l(w, w, 8) & FACTORS, b[2 * u + 1]);
                }
            }
            s.partials[(stage * SLICES + slice) * 32 + lane] = {c[0], c[1], c[2], c[3]};
            __syncwarp();
            if (lane == 0) copy_barrier_expect(s.done + stage, 0);
            if (pass + COLUMNS < count) named_barrier(1, (SLICES + 1) * 32);  // until the partial sums are read
        }
    }
}

// The last warp. `finish(expert, tile, pair, c)`: a lane's sums (row g, column 2t), (g, 2t+1), (g+8, 2t), (g+8, 2t+1)
// and the pairs of its two columns, -1 where there is none.
template <class Finish>
DEVICE void finish_items(const Shared& s, const Items& items, const u8* words, const u8* scales, Finish finish) {
    const int lane = lane_id(), t = lane & 3, num_items = items.end - items.begin;
    u32 parities = 0;
    for (int n = 0; n < num_items; ++n) {
        const int stage = n % DEPTH, item = items.begin + n, d = item / items.num_tiles;
        const int first = s.first[d], count = s.first[d + 1] - first;
        for (int pass = 0; pass < count; pass += COLUMNS) {
            int pair[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int column = pass + 2 * t + i;
                pair[i] = column < count ? s.pairs[first + column] : -1;
            }
            const auto last_step = finish(s.experts[d], item - d * items.num_tiles, pair);
            copy_barrier_wait(s.done + stage, parities >> stage & 1);
            parities ^= 1u << stage;
            float4 c = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
            for (int slice = 0; slice < SLICES; ++slice) {
                const float4 part = s.partials[(stage * SLICES + slice) * 32 + lane];
                c = {c.x + part.x, c.y + part.y, c.z + part.z, c.w + part.w};
            }
            if (pass + COLUMNS < count) {
                named_barrier(1, (SLICES + 1) * 32);
            } else {
                __syncwarp();
                if (lane == 0 && n + DEPTH < num_items) ask_for(s, items, n + DEPTH, words, scales);
            }
            last_step(c);
        }
    }
}

// ---- kernels -----------------------------------------------------------------------------------------------------

DEVICE float swiglu(float gate, float up, float limit) {
    gate = gate > limit ? limit : gate;  // NaN stays, which fminf would hide
    up = up > limit ? limit : up < -limit ? -limit : up;
    return gate * fast_reciprocal(1.f + fast_exp(-SWIGLU_ALPHA * gate)) * (up + 1.f);
}

// rows bf16 [T, NUM_COLUMNS], square_sums [T, num_parts], bias [E, 2 I] with gate and up alternating, act bf16
// [T, TOP_K, I]; num_tiles = 2 I / 16. Entries of dead rows are not written.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    moe_up(const u16* rows, const float* square_sums, int num_parts, float eps, const float* logits, const u8* live,
           int num_rows, const u8* words, const u8* scales, const float* bias, float limit, u16* act, int num_tiles) {
    SHARED(u8, shared);
    const Shared s = carve(shared, num_rows);
    if (threadIdx.x == MATH_WARPS * 32) init_barriers(s);
    pdl_wait();
    pdl_trigger();  // after pdl_wait: moe_down reads the logits before its own
    route(
        s, logits, live, num_rows, [&] { ask_for_first(s, words, scales, num_tiles); },
        [&] {
            for (int row = warp_id(); row < num_rows; row += MATH_WARPS) {
                float sum = 0.f;
#pragma unroll 6
                for (int i = lane_id(); i < num_parts; i += 32) sum += square_sums[static_cast<i64>(row) * num_parts + i];
                sum = warp_sum(sum);
                if (lane_id() == 0) s.row_scales[row] = fast_rsqrt(sum / NUM_COLUMNS + eps);
            }
        });
    const Items items = share_of(s, num_tiles);
    if (warp_id() < SLICES) multiply(s, items, rows, TOP_K);
    if (warp_id() < MATH_WARPS) return;
    const int g = lane_id() >> 2, num_features = num_tiles * 8;
    finish_items(s, items, words, scales, [&](int expert, int tile, const int(&pair)[2]) {
        const int feature = tile * 8 + g;
        const float2 b = *reinterpret_cast<const float2*>(bias + 2 * (static_cast<i64>(expert) * num_features + feature));
        const int first = pair[0], second = pair[1];
        const float first_scale = first < 0 ? 0.f : s.row_scales[first / TOP_K];
        const float second_scale = second < 0 ? 0.f : s.row_scales[second / TOP_K];
        return [=](const float4& c) {
            const float x = swiglu(c.x * first_scale + b.x, c.z * first_scale + b.y, limit);
            const float y = swiglu(c.y * second_scale + b.x, c.w * second_scale + b.y, limit);
            if (first >= 0) act[static_cast<i64>(first) * num_features + feature] = to_bf16(x);
            if (second >= 0) act[static_cast<i64>(second) * num_features + feature] = to_bf16(y);
        };
    });
}

// residual + the weighted outputs by rank, and the next norm, of 16 features of one row per half warp.
DEVICE void combine(const float* partials, const u8* live, int num_rows, const float* residual, const float* norm,
                    float* residual_out, u16* normed, float* square_sums, int num_tiles) {
    const int half = lane_id() >> 4, num_features = num_tiles * TILE;
    const int num_units = num_rows * num_tiles, step = gridDim.x * 2 * WARPS;
    for (int base = blockIdx.x + gridDim.x * 2 * warp_id(); base < num_units; base += step) {
        const int unit = base + gridDim.x * half, row = unit / num_tiles, tile = unit - row * num_tiles;
        const int feature = tile * TILE + (lane_id() & 15);
        const i64 place = static_cast<i64>(row) * num_features + feature;
        float value = 0.f;
        if (unit < num_units) {
            value = residual[place];
            if (live[row]) {
                float total = 0.f;
#pragma unroll
                for (int rank = 0; rank < TOP_K; ++rank) {
                    const float* const part = partials + (static_cast<i64>(row) * TOP_K + rank) * num_features + feature;
                    total += __uint_as_float(load_l2(part));
                }
                value += total;
            }
            residual_out[place] = value;
            normed[place] = to_bf16(value * norm[feature]);
        }
        float square = value * value;
#pragma unroll
        for (int flip = 8; flip > 0; flip >>= 1) square += __shfl_xor_sync(FULL_WARP, square, flip);
        if (unit < num_units && (lane_id() & 15) == 0) square_sums[unit] = square;
    }
}

// act bf16 [T, TOP_K, NUM_COLUMNS], residual [T, H], bias [E, H], norm [H]; num_tiles = H / 16. Writes residual_out
// [T, H], normed bf16 [T, H], square_sums [T, H / 16]; partials [T, TOP_K, H] and the barrier (0 at first) are its own.
// The kernel before it in the stream must be moe_up of the same logits: those are read before pdl_wait().
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    moe_down(const u16* act, const float* logits, const u8* live, int num_rows, const u8* words, const u8* scales,
             const float* bias, const float* residual, const float* norm, float* residual_out, u16* normed,
             float* square_sums, float* partials, u32* barrier, int num_tiles) {
    SHARED(u8, shared);
    const Shared s = carve(shared, num_rows);
    if (threadIdx.x == MATH_WARPS * 32) init_barriers(s);
    pdl_trigger();
    route(s, logits, live, num_rows, [&] { ask_for_first(s, words, scales, num_tiles); }, [] {});
    pdl_wait();
    const Items items = share_of(s, num_tiles);
    if (warp_id() < SLICES) multiply(s, items, act, 1);
    if (warp_id() == MATH_WARPS) {
        const int g = lane_id() >> 2, num_features = num_tiles * TILE;
        finish_items(s, items, words, scales, [&](int expert, int tile, const int(&pair)[2]) {
            const int feature = tile * TILE + 2 * g;
            const float2 b = *reinterpret_cast<const float2*>(bias + static_cast<i64>(expert) * num_features + feature);
            const int first = pair[0], second = pair[1];
            const float first_weight = first < 0 ? 0.f : s.weights[first];
            const float second_weight = second < 0 ? 0.f : s.weights[second];
            return [=](const float4& c) {
                const auto put = [&](int pair, float x, float y) {
                    if (pair < 0) return;
                    *reinterpret_cast<float2*>(partials + static_cast<i64>(pair) * num_features + feature) = {x, y};
                };
                put(first, (c.x + b.x) * first_weight, (c.z + b.y) * first_weight);
                put(second, (c.y + b.x) * second_weight, (c.w + b.y) * second_weight);
            };
        });
        __syncwarp();
        if (lane_id() == 0) grid_barrier(barrier);
    }
    __syncthreads();
    combine(partials, live, num_rows, residual, norm, residual_out, normed, square_sums, num_tiles);
}
