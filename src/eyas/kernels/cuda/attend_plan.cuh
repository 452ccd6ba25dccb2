// How a launch of attend.cu is cut into pieces: by every warp for itself, from the positions on the device.
//
// Defines: as in attend.cu.
#pragma once

#include "common.cuh"

constexpr int D = 64;
constexpr int PAGE = 16;
constexpr int STEP = 32;          // keys of a warp in a leaf
constexpr int LEAF = STEP * WARPS;
constexpr int TILES = 4;          // of 16 row-heads, most in a block
constexpr int SEQ_STEPS = 2;      // each lane plans for as many sequences

// Live rows of a sequence: their bits, and the position of its row 0 and of the last live one (-1 without any).
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
    int leaves[SEQ_STEPS];  // of sequences lane + 32 i
};

struct Unit {
    int seq, index, count;  // `index` among the `count` units of `seq`
};

DEVICE Plan plan_all(const i64* positions, const u8* live, int num_seqs, int num_rows, int window) {
    Plan plan = {};
    u32 total = num_seqs, most = 1;
    plan.units = num_seqs;
    if (window == 0) {
        total = 0;
#pragma unroll
        for (int i = 0; i < SEQ_STEPS; ++i) {
            const int seq = lane_id() + 32 * i;
            if (seq < num_seqs) {
                const int first = static_cast<int>(positions[static_cast<i64>(seq) * num_rows]);
                u32 bits = 0;
#pragma unroll 1
                for (int r = 0; r < num_rows; ++r) bits |= live[seq * num_rows + r] ? 1u << r : 0u;
                plan.leaves[i] = max(0, last_live(bits, first)) / LEAF + 1;
            }
            total += plan.leaves[i];
            most = max(most, static_cast<u32>(plan.leaves[i]));
        }
        total = __reduce_add_sync(FULL_WARP, total);
        most = __reduce_max_sync(FULL_WARP, most);
    }
    // Small blocks of rows where that leaves no block idle that would have worked; otherwise keys are read once.
    for (int tiles = 1; tiles <= TILES; tiles += TILES - 1) {
        plan.block_size = 16 * tiles / GROUP;
        plan.pairs = (num_rows + plan.block_size - 1) / plan.block_size * NUM_KV;
        if (total * plan.pairs <= gridDim.x) break;
    }
    if (window) return plan;
    while ((total * plan.pairs >> plan.shift) > gridDim.x && (most - 1) >> plan.shift) ++plan.shift;
    for (;; ++plan.shift) {
        u32 units = 0;
#pragma unroll
        for (int i = 0; i < SEQ_STEPS; ++i) units += (plan.leaves[i] + (1 << plan.shift) - 1) >> plan.shift;
        plan.units = static_cast<int>(__reduce_add_sync(FULL_WARP, units));
        if (plan.units * plan.pairs <= static_cast<int>(gridDim.x) || (most - 1) >> plan.shift == 0) return plan;
    }
}

DEVICE Unit find_unit(const Plan& plan, int unit) {
    int before = 0;
#pragma unroll
    for (int i = 0; i < SEQ_STEPS; ++i) {
        const int count = (plan.leaves[i] + (1 << plan.shift) - 1) >> plan.shift;
        int end = count;
#pragma unroll
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

// What a block computes at once: some rows of a sequence, a key/value head, and the steps of one unit.
struct Piece {
    Unit unit;
    int kv, first_row, num_rows;  // of the block
    Rows rows;                    // of the sequence
    int first_pos, last_pos;      // of the block's rows
    int window, first_key;
    int lowest, lowest_key;       // keys that any row sees, and those of them that are not hidden by first_key
    int begin, end;               // steps
    int new_begin, new_end;       // rows of the sequence whose keys are among the steps

    // Whether not all rows see all of the keys `position` .. `position` + STEP.
    __device__ bool masked(int position) const {
        return position + STEP - 1 > first_pos || position < lowest + num_rows || position < first_key;
    }
};

DEVICE Piece piece_of(const Plan& plan, int number, const i64* positions, const u8* live, int num_rows, int window,
                      int first_key) {
    Piece piece = {};
    piece.unit = {number / plan.pairs, 0, 1};
    if (window == 0) piece.unit = find_unit(plan, number / plan.pairs);
    piece.kv = number % NUM_KV;
    piece.first_row = number % plan.pairs / NUM_KV * plan.block_size;
    piece.num_rows = min(plan.block_size, num_rows - piece.first_row);
    piece.rows = rows_of(piece.unit.seq, positions, live, num_rows);
    piece.first_pos = piece.rows.first + piece.first_row;
    piece.last_pos = min(piece.rows.last, piece.first_pos + piece.num_rows - 1);
    piece.window = window;
    piece.first_key = first_key;
    piece.lowest = window ? max(0, piece.first_pos - window + 1) : 0;
    piece.lowest_key = max(piece.lowest, min(first_key, piece.first_pos));
    piece.begin = piece.lowest_key / STEP;
    piece.end = piece.last_pos / STEP + 1;
    if (window == 0) {
        piece.begin = piece.unit.index * WARPS << plan.shift;
        piece.end = min(piece.end, (piece.unit.index + 1) * WARPS << plan.shift);
    }
    if (WARPS < 8) piece.begin &= ~(WARPS - 1);  // a window meets more steps than there are warps
    if (piece.last_pos < piece.first_pos) piece.end = piece.begin;
    piece.new_begin = max(0, piece.begin * STEP - piece.rows.first);
    piece.new_end = min(num_rows, piece.end * STEP - piece.rows.first);
    return piece;
}
