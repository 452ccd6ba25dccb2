// What moe.cu keeps in shared memory, and how its blocks find out which experts the rows go to.
//
// Defines: see moe.cu.
#pragma once

#include "moe/moe_route.cuh"
#include "moe/mxfp4.cuh"

constexpr int TILE = 16;
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
constexpr int UP = 0, DOWN = 1;

DEVICE int tiles_of(int phase) { return phase == UP ? UP_TILES : DOWN_TILES; }
DEVICE int units_of(int phase) { return EVEN || phase == UP ? UP_UNITS : DOWN_UNITS; }
DEVICE int group_of(int phase, int item) { return phase == UP ? item / UP_TILES : item / DOWN_TILES; }

// One of the two matrices of every expert.
struct Matrix {
    const u8 *words, *scales;
};

struct Shared : Tables {
    u8* ring;          // [DEPTH][ITEM_BYTES]: words, scales
    float4* partials;  // [DEPTH][COLUMN_TILES][SLICES][32]: fragments
    u64 *full, *done;  // [DEPTH]
    int *begin, *end;  // [2]: this block's items of each phase
    u32 *turn, *rows_before;  // `Workspace` in moe.py
};

// `given`: the tables that moe_route.cu has written; without it they stand in shared memory, and route() fills them.
DEVICE Shared carve(u8* base, int num_rows, u8* given) {
    Shared s;
    s.ring = base;
    s.partials = reinterpret_cast<float4*>(s.ring + DEPTH * ITEM_BYTES);
    s.full = reinterpret_cast<u64*>(s.partials + DEPTH * COLUMN_TILES * SLICES * 32);
    s.done = s.full + DEPTH;
    s.begin = reinterpret_cast<int*>(s.done + DEPTH);
    s.end = s.begin + 2;
    s.turn = reinterpret_cast<u32*>(s.end + 2);
    s.rows_before = s.turn + 1;
    s.place_tables(ROUTED ? given : reinterpret_cast<u8*>(s.rows_before + 1), num_rows);
    return s;
}

// ---- routing -----------------------------------------------------------------------------------------------------

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
    if (ROUTED) {
        if (lists) divide(s);
        if (threadIdx.x == 0) read_turn(s, state);
        __syncthreads();
        if (!asks) load();
        __syncthreads();
        if (asks) ask();
        return;
    }
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
