// What moe.cu keeps in shared memory, and how its blocks find out which experts the rows go to.
//
// Defines: see moe.cu.
#pragma once

#include "common.cuh"

constexpr int TILE = 16;
constexpr int COLUMNS = 8;  // rows of the batch in one pass
constexpr int MATH_WARPS = 15, WARPS = MATH_WARPS + 1, THREADS = WARPS * 32;
constexpr int UP_UNITS = (UP_COLUMNS + 63) / 64, DOWN_UNITS = (DOWN_COLUMNS + 63) / 64;  // of 64 columns
constexpr int UNITS = UP_UNITS > DOWN_UNITS ? UP_UNITS : DOWN_UNITS;
constexpr int SLICE = (UNITS + MATH_WARPS - 1) / MATH_WARPS;  // units of a warp
constexpr int SLICES = (UNITS + SLICE - 1) / SLICE;           // warps that have any
constexpr bool EVEN = UP_UNITS == DOWN_UNITS && UNITS % SLICE == 0;
constexpr int UNIT_WORD_BYTES = 512, UNIT_SCALE_BYTES = 32, ITEM_BYTES = UNITS * (UNIT_WORD_BYTES + UNIT_SCALE_BYTES);
constexpr int LOGITS_PER_LANE = (NUM_EXPERTS + 31) / 32;
constexpr float SWIGLU_ALPHA = 1.702f;  // kernels/moe.py
constexpr int UP = 0, DOWN = 1;

// One of the two matrices of every expert, and this block's share of its items.
struct Phase {
    const u8 *words, *scales;
    int units, num_tiles, begin, end;
};

struct Shared {
    Phase* phases;     // [2]
    u8* ring;          // [DEPTH][ITEM_BYTES]: words, scales
    float4* partials;  // [DEPTH][SLICES][32]: fragments
    u64 *full, *done;  // [DEPTH]
    int *experts, *first, *costs;  // of distinct experts; where their pairs and the costs of their items begin
    int* cursors;                  // of all experts: counts of pairs, then where the next pair goes
    int* num_distinct;
    float* row_scales;  // [T]: inverse rms times 2^exponent of gate/up
    float* weights;     // [T k]
    u16* pairs;         // [T k]: row * k + rank, by expert
    short* ids;         // [T k]
};

DEVICE Shared carve(u8* base, int num_rows) {
    Shared s;
    s.phases = reinterpret_cast<Phase*>(base);
    s.ring = base + 2 * sizeof(Phase);
    s.partials = reinterpret_cast<float4*>(s.ring + DEPTH * ITEM_BYTES);
    s.full = reinterpret_cast<u64*>(s.partials + DEPTH * SLICES * 32);
    s.done = s.full + DEPTH;
    s.experts = reinterpret_cast<int*>(s.done + DEPTH);
    s.first = s.experts + NUM_EXPERTS;
    s.costs = s.first + NUM_EXPERTS + 1;
    s.cursors = s.costs + NUM_EXPERTS + 1;
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

// Time of an item of an expert with so many rows: its bytes, and a little for each pass.
DEVICE int cost_of(int num_rows) { return 1 + (num_rows + COLUMNS - 1) / COLUMNS; }

// Numbers the experts that have rows, in ascending order, and says where their pairs and costs begin. One warp;
// s.cursors holds the counts, and where pairs begin afterwards.
DEVICE void list_experts(const Shared& s) {
    int distinct = 0, total = 0;  // costs in the high half, pairs in the low half
    for (int base = 0; base < NUM_EXPERTS; base += 32) {
        const int id = base + lane_id();
        const int count = id < NUM_EXPERTS ? s.cursors[id] : 0;
        const int mine = count > 0 ? cost_of(count) << 16 | count : 0;
        int end = mine;  // inclusive sum over the lanes
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const int below = __shfl_up_sync(FULL_WARP, end, step);
            if (lane_id() >= step) end += below;
        }
        const u32 used = __ballot_sync(FULL_WARP, count > 0);
        if (count > 0) {
            const int place = distinct + __popc(used & ((1u << lane_id()) - 1)), begin = total + end - mine;
            s.experts[place] = id;
            s.first[place] = s.cursors[id] = begin & 0xffff;
            s.costs[place] = begin >> 16;
        }
        distinct += __popc(used);
        total += __shfl_sync(FULL_WARP, end, 31);
    }
    if (lane_id() == 0) {
        s.first[distinct] = total & 0xffff;
        s.costs[distinct] = total >> 16;
    }
    *s.num_distinct = distinct;
    __syncwarp();
}

// All threads; `ask` is what the last warp does as soon as the list of experts is known,
// `meanwhile` what the others do.
template <class Ask, class Meanwhile>
DEVICE void route(const Shared& s, const float* logits, const u8* live, int num_rows, Ask ask, Meanwhile meanwhile) {
    const bool asks = warp_id() == MATH_WARPS;
    if (num_rows == 1) {
        if (asks) {
            const int num_chosen = live[0] ? TOP_K : 0;
            const Choice choice = choose(logits);
            if (lane_id() <= num_chosen) {
                s.first[lane_id()] = lane_id();
                s.costs[lane_id()] = lane_id() * cost_of(1);
            }
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
