// What the blocks of attend.cu have to do: how the launch is cut, and the pieces of it.
//
// Defines: as in attend.cu.
#pragma once

#include "attention/pages.cuh"

constexpr int STEP = 32;                   // keys that a warp takes at once
constexpr int CHAIN = 2;                   // steps of a warp in a leaf
constexpr int LEAF_STEPS = WARPS * CHAIN;
static_assert(RESIDENT == 1 || TILES == 1);

// Live rows of a sequence: their bits, and the position of its row 0 and of the last live one (-1 without any). Rows
// that stand before the start of the sequence, at negative positions, are dead.
struct Rows {
    u32 live;
    int first, last;
};

DEVICE Rows make_rows(u32 live, int first) {
    return {live, first, live ? first + 31 - __clz(static_cast<int>(live)) : -1};
}

DEVICE Rows rows_of(int seq, const i64* positions, const u8* live, int num_rows) {
    const int first = static_cast<int>(positions[static_cast<i64>(seq) * num_rows]);
    return make_rows(__ballot_sync(FULL_WARP, lane_id() < num_rows && live[seq * num_rows + lane_id()]), first);
}

struct Unit {
    int seq, index, count;  // `index` among the `count` units of `seq`
};

// How the launch is cut: rows in blocks, and leaves in units of 2^shift. A piece is a unit of one of the `pairs` of row
// block and key/value head.
struct Plan {
    const uint4* units;  // as attend_plan.cu writes them; null in layers with a window, where a sequence is a unit
    uint4 first;         // the unit of this block's first piece
    int shift, num_units, pairs, block_size;

    __device__ void cut_rows(int tiles, int num_rows) {
        block_size = 16 * tiles / GROUP;
        pairs = (num_rows + block_size - 1) / block_size * NUM_KV;
    }

    // `tiles`: of a block, where there are no `planned` units or no more than one. `room`: for two entries, in shared
    // memory. One warp of a block reads the plan: all warps of all blocks would read one place in L2 thousands of times.
    __device__ void read(const uint4* planned, uint4* room, int num_seqs, int num_rows, int tiles) {
        units = planned, shift = 0, num_units = num_seqs;
        cut_rows(tiles, num_rows);
        if (units == nullptr) return;
        if (warp_id() == 0) {
            // The first unit is asked for before it is known which of two it is.
            const uint4 header = load_l2_16_if(units, true);
            cut_rows(TILES, num_rows);
            const uint4 large = load_l2_16_if(units + 1 + blockIdx.x / pairs, true);
            cut_rows(1, num_rows);
            const uint4 small = load_l2_16_if(units + 1 + blockIdx.x / pairs, TILES > 1);
            if (lane_id() == 0) room[0] = header, room[1] = TILES > 1 && header.z == 1 ? small : large;
        }
        __syncthreads();
        num_units = room[0].x, shift = room[0].y, first = room[1];
        cut_rows(room[0].z, num_rows);
    }
};

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
    const int unit = number / plan.pairs;
    if (plan.units == nullptr) {
        piece.unit = {unit, 0, 1};
        piece.rows = rows_of(unit, positions, live, num_rows);
    } else {
        const bool is_first = number == static_cast<int>(blockIdx.x);
        const uint4 words = is_first ? plan.first : load_l2_16_if(plan.units + 1 + unit, true);
        piece.unit = {static_cast<int>(words.x), static_cast<int>(words.y & 0xffff), static_cast<int>(words.y >> 16)};
        piece.rows = make_rows(words.z, static_cast<int>(words.w));
    }
    piece.kv = number % NUM_KV;
    piece.first_row = number % plan.pairs / NUM_KV * plan.block_size;
    piece.num_rows = min(plan.block_size, num_rows - piece.first_row);
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
