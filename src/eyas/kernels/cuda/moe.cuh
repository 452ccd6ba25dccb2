// What moe.cu keeps in shared memory, and how its blocks find out which experts the rows go to.
//
// Defines: see moe.cu.
#pragma once

#include "common.cuh"

constexpr int TILE = 16;
constexpr int GROUP = 8 * COLUMN_TILES;  // rows of an expert that share an item
constexpr int MATH_WARPS = 15, MOST_FINISHERS = 3;  // moe.py has them too
constexpr int FINISHERS = DEPTH < MOST_FINISHERS ? DEPTH : MOST_FINISHERS;  // none waits for a phase after the next
constexpr int WARPS = MATH_WARPS + FINISHERS, THREADS = WARPS * 32;
constexpr int UP_TILES = DOWN_COLUMNS / 8, DOWN_TILES = UP_COLUMNS / TILE;
constexpr int UP_UNITS = (UP_COLUMNS + 63) / 64, DOWN_UNITS = (DOWN_COLUMNS + 63) / 64;  // of 64 columns
constexpr int UNITS = UP_UNITS > DOWN_UNITS ? UP_UNITS : DOWN_UNITS;
constexpr int SLICE = (UNITS + MATH_WARPS - 1) / MATH_WARPS;  // units of a warp
constexpr int SLICES = (UNITS + SLICE - 1) / SLICE;           // warps that have any
constexpr bool EVEN = UP_UNITS == DOWN_UNITS && UNITS % SLICE == 0;
constexpr int UNIT_WORD_BYTES = 512, UNIT_SCALE_BYTES = 32;
constexpr int ITEM_BYTES = (UNITS * (UNIT_WORD_BYTES + UNIT_SCALE_BYTES) + 127) / 128 * 128;
constexpr int LOGITS_PER_LANE = (NUM_EXPERTS + 31) / 32;
constexpr int NUM_PARTS = UP_COLUMNS / 16, PARTS_PER_LANE = (NUM_PARTS + 31) / 32;  // of a row's square sum
constexpr float SWIGLU_ALPHA = 1.702f;  // kernels/reference/moe.py
constexpr int UP = 0, DOWN = 1;

DEVICE int tiles_of(int phase) { return phase == UP ? UP_TILES : DOWN_TILES; }
DEVICE int units_of(int phase) { return EVEN || phase == UP ? UP_UNITS : DOWN_UNITS; }
DEVICE int group_of(int phase, int item) { return phase == UP ? item / UP_TILES : item / DOWN_TILES; }

// One of the two matrices of every expert.
struct Matrix {
    const u8 *words, *scales;
};

struct Shared {
    u8* ring;          // [DEPTH][ITEM_BYTES]: words, scales
    float4* partials;  // [DEPTH][COLUMN_TILES][SLICES][32]: fragments
    u64 *full, *done;  // [DEPTH]
    int *begin, *end;  // [2]: this block's items of each phase
    int* begins;       // of all experts: counts of pairs, then where their pairs begin
    int* num_groups;
    u32 *turn, *rows_before;  // `Workspace` in moe.py
    int *experts, *first;     // of groups: their expert, where their pairs begin
    float* row_scales;        // [T]: inverse rms times 2^exponent of gate/up
    float* weights;           // [T k]
    u16* pairs;               // [T k]: row * k + rank, by expert
    short* ids;               // [T k]
};

DEVICE Shared carve(u8* base, int num_rows) {
    Shared s;
    s.ring = base;
    s.partials = reinterpret_cast<float4*>(s.ring + DEPTH * ITEM_BYTES);
    s.full = reinterpret_cast<u64*>(s.partials + DEPTH * COLUMN_TILES * SLICES * 32);
    s.done = s.full + DEPTH;
    s.begin = reinterpret_cast<int*>(s.done + DEPTH);
    s.end = s.begin + 2;
    s.begins = s.end + 2;
    s.num_groups = s.begins + NUM_EXPERTS;
    s.turn = reinterpret_cast<u32*>(s.num_groups + 1);
    s.rows_before = s.turn + 1;
    const int most_groups = NUM_EXPERTS + num_rows * TOP_K / GROUP;
    s.experts = s.num_groups + 3;
    s.first = s.experts + most_groups;
    s.row_scales = reinterpret_cast<float*>(s.first + most_groups + 1);
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

// What the rows come with.
struct Rows {
    const float *logits, *square_sums;  // [T, NUM_EXPERTS], [T, NUM_PARTS]
    const u8* live;
    int count;
};

// A row's logits, LOGITS_PER_LANE in each lane.
struct Logits {
    u32 bits[LOGITS_PER_LANE];
    bool is_live;
};

// One warp. Not live where there is no such row.
DEVICE Logits load_logits(const Rows& rows, int row) {
    Logits all = {};
    if (row >= rows.count) return all;
#pragma unroll
    for (int i = 0; i < LOGITS_PER_LANE; ++i) {
        const int id = lane_id() * LOGITS_PER_LANE + i;
        if (id < NUM_EXPERTS) all.bits[i] = load_l2(rows.logits + static_cast<i64>(row) * NUM_EXPERTS + id);
    }
    all.is_live = rows.live[row];
    return all;
}

// The parts of a row's square sum, some in each lane.
struct SquareSum {
    float parts[PARTS_PER_LANE];

    __device__ void load(const Rows& rows, int row) {
#pragma unroll
        for (int i = 0; i < PARTS_PER_LANE; ++i) {
            const int part = lane_id() + 32 * i;
            const bool is_there = row < rows.count && part < NUM_PARTS;
            parts[i] = is_there ? rows.square_sums[static_cast<i64>(row) * NUM_PARTS + part] : 0.f;
        }
    }

    __device__ float inverse_rms(float eps) const {
        float sum = 0.f;
#pragma unroll
        for (int i = 0; i < PARTS_PER_LANE; ++i) sum += parts[i];
        return fast_rsqrt(warp_sum(sum) / UP_COLUMNS + eps);
    }
};

// The experts of a row by falling logit, the lower id first where logits are equal. One warp; lanes of rank < TOP_K.
DEVICE Choice choose(const Logits& logits) {
    u32 keys[LOGITS_PER_LANE];  // order of floats as order of integers; 0 is below all
#pragma unroll
    for (int i = 0; i < LOGITS_PER_LANE; ++i) {
        const u32 bits = logits.bits[i];
        const bool is_there = lane_id() * LOGITS_PER_LANE + i < NUM_EXPERTS;
        keys[i] = is_there ? max(bits >> 31 ? ~bits : bits | 0x80000000u, 1u) : 0;
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

// Cuts the experts that have rows into groups, in ascending order, and says where their pairs begin. One warp;
// s.begins holds the counts.
DEVICE void list_groups(const Shared& s) {
    int counts[LOGITS_PER_LANE], mine = 0;  // groups in the high half, pairs in the low half
#pragma unroll
    for (int i = 0; i < LOGITS_PER_LANE; ++i) {
        const int id = lane_id() * LOGITS_PER_LANE + i;
        counts[i] = id < NUM_EXPERTS ? s.begins[id] : 0;
        mine += (counts[i] + GROUP - 1) / GROUP << 16 | counts[i];
    }
    int end = mine;  // inclusive sum over the lanes
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const int below = __shfl_up_sync(FULL_WARP, end, step);
        if (lane_id() >= step) end += below;
    }
    int group = (end - mine) >> 16, begin = (end - mine) & 0xffff;
#pragma unroll
    for (int i = 0; i < LOGITS_PER_LANE; ++i) {
        const int id = lane_id() * LOGITS_PER_LANE + i;
        if (counts[i] > 0) s.begins[id] = begin;
        for (int at = 0; at < counts[i]; at += GROUP, ++group) {
            s.experts[group] = id;
            s.first[group] = begin + at;
        }
        begin += counts[i];
    }
    if (lane_id() == 31) {
        s.first[group] = begin;
        *s.num_groups = group;
    }
    __syncwarp();
}

// The share of this block of the items of both phases. Lanes 0 and 1.
DEVICE void divide(const Shared& s) {
    const int phase = lane_id();
    if (phase <= DOWN) {
        const int total = *s.num_groups * tiles_of(phase), block = blockIdx.x, num_blocks = gridDim.x;
        s.begin[phase] = total * block / num_blocks;
        s.end[phase] = total * (block + 1) / num_blocks;
    }
}

// The only row's experts are the groups. One warp.
DEVICE void route_one(const Shared& s, const Logits& logits) {
    const int num_chosen = logits.is_live ? TOP_K : 0;
    const Choice choice = choose(logits);
    if (lane_id() <= num_chosen) s.first[lane_id()] = lane_id();
    if (lane_id() < num_chosen) {
        s.experts[lane_id()] = choice.id;
        s.pairs[lane_id()] = lane_id();
        s.weights[lane_id()] = choice.weight;
    }
    if (lane_id() == 0) *s.num_groups = num_chosen;
    __syncwarp();
}

// Chooses for all rows and counts the pairs of each expert. All threads; a barrier must follow.
DEVICE void choose_all(const Shared& s, const Rows& rows, float eps, float up_factor) {
    for (int id = threadIdx.x; id < NUM_EXPERTS; id += THREADS) s.begins[id] = 0;
    Logits next = load_logits(rows, warp_id());
    SquareSum next_sum;
    next_sum.load(rows, warp_id());
    __syncthreads();
    for (int row = warp_id(); row < rows.count; row += WARPS) {
        const Logits mine = next;
        const SquareSum sum = next_sum;
        next = load_logits(rows, row + WARPS);
        next_sum.load(rows, row + WARPS);
        const Choice choice = choose(mine);
        const float scale = sum.inverse_rms(eps) * up_factor;
        if (lane_id() == 0) s.row_scales[row] = scale;
        if (lane_id() < TOP_K) {
            const int pair = row * TOP_K + lane_id();
            s.ids[pair] = mine.is_live ? choice.id : -1;
            s.weights[pair] = choice.weight;
            if (mine.is_live) atomicAdd(&s.begins[choice.id], 1);
        }
    }
}

// The pairs of each expert in ascending order, as blocks must agree on the groups. Threads of MATH_WARPS.
DEVICE void sort_pairs(const Shared& s, int num_rows) {
    for (int id = threadIdx.x; id < NUM_EXPERTS; id += MATH_WARPS * 32) {
        int place = s.begins[id];
#pragma unroll 8
        for (int pair = 0; pair < num_rows * TOP_K; ++pair)
            if (s.ids[pair] == id) s.pairs[place++] = pair;
    }
}

DEVICE void read_turn(const Shared& s, const u32* state) {
    const u32 turn = load_l2(state + 1), rows_before = load_l2(state + 2);
    *s.turn = turn;
    *s.rows_before = rows_before;
}

// All threads. `load()` is what MATH_WARPS do as soon as the groups are known, or there is but one row; `ask()` is what
// the finishers do, not before: loads wait behind the items that were asked for.
template <class Load, class Ask>
DEVICE void route(const Shared& s, const Rows& rows, float eps, float up_factor, const u32* state, Load load, Ask ask) {
    const bool lists = warp_id() == MATH_WARPS, asks = warp_id() >= MATH_WARPS;
    if (rows.count == 1) {
        if (!asks) {
            load();
            if (warp_id() == 0) {
                SquareSum sum;
                sum.load(rows, 0);
                const float scale = sum.inverse_rms(eps) * up_factor;
                if (lane_id() == 0) s.row_scales[0] = scale;
            }
            if (threadIdx.x == 32) read_turn(s, state);
        } else {
            if (lists) {
                route_one(s, load_logits(rows, 0));
                divide(s);
            }
            named_barrier(1, FINISHERS * 32);
            ask();
        }
        __syncthreads();
        return;
    }
    choose_all(s, rows, eps, up_factor);
    __syncthreads();
    if (lists) {
        list_groups(s);
        divide(s);
    }
    if (threadIdx.x == 0) read_turn(s, state);
    __syncthreads();
    if (!asks) {
        sort_pairs(s, rows.count);
        named_barrier(1, MATH_WARPS * 32);
        load();
    }
    __syncthreads();
    if (asks) ask();
}
