// How a launch of attend.cu is cut into pieces: by every warp for itself, from the positions on the device.
//
// Defines: as in attend.cu.
#pragma once

#include "common.cuh"

constexpr int D = 64;
constexpr int PAGE = 16;
constexpr int STEP = 32;                   // keys that a warp takes at once
constexpr int CHAIN = 2;                   // steps of a warp in a leaf
constexpr int LEAF_STEPS = WARPS * CHAIN;
constexpr int SEQ_STEPS = 2;               // each lane plans for as many sequences

// Live rows of a sequence: their bits, and the position of its row 0 and of the last live one (-1 without any). Rows
// that stand before the start of the sequence, at negative positions, are dead.
struct Rows {
    u32 live;
    int first, last;
};

DEVICE int last_live(u32 live, int first) { return live ? first + 31 - __clz(static_cast<int>(live)) : -1; }

DEVICE Rows rows_of(int seq, const i64* positions, const u8* live, int num_rows) {
    const int first = static_cast<int>(positions[static_cast<i64>(seq) * num_rows]);
    const u32 bits = __ballot_sync(FULL_WARP, lane_id() < num_rows && live[seq * num_rows + lane_id()]);
    return {bits, first, last_live(bits, first)};
}

// How the launch is cut: rows in blocks, and leaves in units of 2^shift. A piece is a unit of one of the `pairs` of row
// block and key/value head.
struct Plan {
    int shift, units, pairs, block_size;
    int leaves[SEQ_STEPS], first_unit[SEQ_STEPS];  // of sequences lane + 32 i

    __device__ void cut_rows(int tiles, int num_rows) {
        block_size = 16 * tiles / GROUP;
        pairs = (num_rows + block_size - 1) / block_size * NUM_KV;
    }
    __device__ int count(int i) const { return (leaves[i] + (1 << shift) - 1) >> shift; }
};

struct Unit {
    int seq, index, count;  // `index` among the `count` units of `seq`
};

// Of each lane's sequences.
DEVICE void count_leaves(Plan& plan, const i64* positions, const u8* live, int num_seqs, int num_rows, int window) {
#pragma unroll
    for (int i = 0; i < SEQ_STEPS; ++i) {
        const int seq = lane_id() + 32 * i;
        if (seq >= num_seqs) continue;
        plan.leaves[i] = 1;
        if (window) continue;
        const int first = static_cast<int>(positions[static_cast<i64>(seq) * num_rows]);
        u32 bits = 0;
#pragma unroll 1
        for (int r = 0; r < num_rows; ++r) bits |= live[seq * num_rows + r] ? 1u << r : 0u;
        plan.leaves[i] = max(0, last_live(bits, first)) / (STEP * LEAF_STEPS) + 1;
    }
}

// Numbers the units of all sequences.
DEVICE void number_units(Plan& plan) {
    plan.units = 0;
#pragma unroll
    for (int i = 0; i < SEQ_STEPS; ++i) {
        int end = plan.count(i);
#pragma unroll 1
        for (int step = 1; step < 32; step <<= 1) {
            const int other = __shfl_up_sync(FULL_WARP, end, step);
            if (lane_id() >= step) end += other;
        }
        plan.first_unit[i] = plan.units + end - plan.count(i);
        plan.units += __shfl_sync(FULL_WARP, end, 31);
    }
}

DEVICE Plan plan_all(const i64* positions, const u8* live, int num_seqs, int num_rows, int window) {
    Plan plan = {};
    count_leaves(plan, positions, live, num_seqs, num_rows, window);
    u32 total = 0, most = 0;
#pragma unroll
    for (int i = 0; i < SEQ_STEPS; ++i) {
        total += plan.leaves[i];
        most = max(most, static_cast<u32>(plan.leaves[i]));
    }
    total = __reduce_add_sync(FULL_WARP, total);
    most = __reduce_max_sync(FULL_WARP, most);
    // Small blocks of rows where that leaves no block idle that would have worked; otherwise keys are read once.
    plan.cut_rows(1, num_rows);
    if (total * plan.pairs > gridDim.x) plan.cut_rows(TILES, num_rows);
    while ((total * plan.pairs >> plan.shift) > gridDim.x && (most - 1) >> plan.shift) ++plan.shift;
    number_units(plan);
    // One round of blocks, where the sequences alone do not need more.
    while (num_seqs * plan.pairs <= gridDim.x && plan.units * plan.pairs > gridDim.x) {
        ++plan.shift;
        number_units(plan);
    }
    return plan;
}

DEVICE Unit find_unit(const Plan& plan, int unit) {
    Unit found = {};
#pragma unroll
    for (int i = 0; i < SEQ_STEPS; ++i) {
        const int index = unit - plan.first_unit[i], count = plan.count(i);
        const u32 here = __ballot_sync(FULL_WARP, index >= 0 && index < count);
        const int lane = max(0, __ffs(static_cast<int>(here)) - 1);
        const int its_index = __shfl_sync(FULL_WARP, index, lane), its_count = __shfl_sync(FULL_WARP, count, lane);
        if (here) found = {lane + 32 * i, its_index, its_count};
    }
    return found;
}

// What a block computes at once: some rows of a sequence, a key/value head, and the steps of one unit.
struct Piece {
    Unit unit;
    int kv, first_row, num_rows;  // of the block
    Rows rows;                    // of the sequence
    int first_pos, last_pos;      // of the block's rows
    int window, first_key, lowest_key;  // that a live row sees
    int begin, end;               // steps
    int new_begin, new_end;       // rows of the sequence whose keys are among the steps

    __device__ int lowest_visible(int position) const {
        return max(window ? position - window + 1 : 0, min(first_key, position));
    }
    // Whether not all rows see all of the keys `position` .. `position` + STEP.
    __device__ bool masked(int position) const {
        return position + STEP - 1 > first_pos || position < first_key ||
               (window && position < first_pos - window + 1 + num_rows);
    }
};

DEVICE Piece piece_of(const Plan& plan, int number, const i64* positions, const u8* live, int num_rows, int window,
                      int first_key) {
    Piece piece = {};
    piece.unit = find_unit(plan, number / plan.pairs);
    piece.kv = number % NUM_KV;
    piece.first_row = number % plan.pairs / NUM_KV * plan.block_size;
    piece.num_rows = min(plan.block_size, num_rows - piece.first_row);
    piece.rows = rows_of(piece.unit.seq, positions, live, num_rows);
    piece.first_pos = piece.rows.first + piece.first_row;
    piece.last_pos = min(piece.rows.last, piece.first_pos + piece.num_rows - 1);
    piece.window = window;
    piece.first_key = first_key;
    // Dead rows in front, which may stand at negative positions, need no keys.
    const int first_live =
        max(max(0, piece.first_pos), piece.rows.first + __ffs(static_cast<int>(piece.rows.live)) - 1);
    piece.lowest_key = piece.lowest_visible(first_live);
    piece.begin = piece.lowest_key / STEP;
    piece.end = piece.last_pos / STEP + 1;
    if (window == 0) {
        piece.begin = piece.unit.index * LEAF_STEPS << plan.shift;
        piece.end = min(piece.end, (piece.unit.index + 1) * LEAF_STEPS << plan.shift);
    } else if (WARPS < 8) {
        piece.begin &= ~(LEAF_STEPS - 1);  // a window meets more steps than there are warps
    }
    if (piece.last_pos < first_live) piece.end = piece.begin;
    piece.new_begin = max(0, piece.begin * STEP - piece.rows.first);
    piece.new_end = min(num_rows, piece.end * STEP - piece.rows.first);
    return piece;
}
