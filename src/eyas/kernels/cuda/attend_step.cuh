// What one warp does with 32 keys: copies them to shared memory, multiplies, and makes a softmax of a tile.
//
// Matrix instructions: 16 row-heads (pairs of row and query head) times 8 keys for the scores, then probabilities
// (bf16; their sum is taken in fp32 before rounding) times 8 dimensions. Scores become the left operand without moving
// between lanes, as in FlashAttention-2 (Dao, 2023). All row-heads of a block share the copy of the keys.
//
// Defines: as in attend.cu.
#pragma once

#include "attend_plan.cuh"
#include "softmax_tree.cuh"

constexpr int TOKEN = NUM_KV * D;              // elements from token to token in a cache
constexpr int ROW_BYTES = D * 2;
constexpr int HALF_BYTES = STEP * ROW_BYTES;   // keys, or values, of a step
constexpr int TILE_WORDS = 16 * D / 2;         // queries of 16 row-heads
static_assert(STEP == 2 * PAGE);

// 16-byte chunk c of row r stands at chunk c ^ swizzle(r): no bank conflicts for fragments of keys nor of values.
DEVICE int swizzle(int r) { return (r & 6) ^ ((r & 1) << 2); }

// The low `count` bits, any count; and bits moved up, or down.
DEVICE u32 below(int count) { return count >= 32 ? FULL_WARP : count <= 0 ? 0u : (1u << count) - 1; }
DEVICE u32 shifted(u32 bits, int up) { return up >= 32 || up <= -32 ? 0u : up >= 0 ? bits << up : bits >> -up; }

// The keys and values of a warp's steps of a piece, first, first + WARPS, ..: each step is two halves.
struct Stream {
    u16 *k_cache, *v_cache;
    const i64* table;  // of the sequence
    u8* stages;
    int first;
    int pages;  // ids, of this warp's steps 16 n + lane / 2

    __device__ u8* place(int i) const { return stages + i % STAGES * WARPS * 2 * HALF_BYTES; }

    // Asks for what is in the cache before this launch, and for zeros instead of all else.
    __device__ void fetch(const Piece& piece, int i, int half) {
        const int step = first + WARPS * i, lane = lane_id(), copy_row = lane >> 3, chunk = lane & 7;
        if (step < piece.end) {
            if (half == 0 && i % 16 == 0) {
                const int page = 2 * (step + WARPS * (lane >> 1)) + (lane & 1);
                if (page < 2 * piece.end && page <= piece.last_pos / PAGE) pages = static_cast<int>(table[page]);
            }
            u8* const stage = place(i) + half * HALF_BYTES + copy_row * ROW_BYTES;
            u8* const targets[2] = {stage + (chunk ^ swizzle(copy_row)) * 16,
                                    stage + (chunk ^ swizzle(copy_row + 4)) * 16};
            const u32 stored = below(piece.last_pos + 1 - step * STEP) & ~below(piece.lowest_key - step * STEP);
            const u32 mine = (stored & ~shifted(piece.rows.live, piece.rows.first - step * STEP)) >> copy_row;
            const u16* const cache = half ? v_cache : k_cache;
#pragma unroll
            for (int page = 0; page < 2; ++page) {
                const i64 id = __shfl_sync(FULL_WARP, pages, i % 16 * 2 + page);
                const u16* const source = cache + id * (PAGE * TOKEN) + copy_row * TOKEN + piece.kv * D + chunk * 8;
#pragma unroll
                for (int r = 0; r < PAGE; r += 4)
                    copy_async_16(targets[r / 4 % 2] + (page * PAGE + r) * ROW_BYTES, source + r * TOKEN,
                                  mine >> (page * PAGE + r) & 1);
            }
        }
        copy_async_commit();
    }
};

// Puts the rows of this launch (bf16 [row][D]) in their places among the keys, or values, from `position` on.
DEVICE void put_new(u8* half, const Piece& piece, int position, const u8* rows) {
    if (position + STEP <= piece.rows.first) return;
    const int lane = lane_id();
#pragma unroll 1
    for (int r = max(0, position - piece.rows.first); r < min(piece.new_end, position + STEP - piece.rows.first); ++r) {
        const int row = piece.rows.first + r - position;
        if (lane < 8 && (piece.rows.live >> r & 1))
            *reinterpret_cast<uint4*>(half + row * ROW_BYTES + (lane ^ swizzle(row)) * 16) =
                *reinterpret_cast<const uint4*>(rows + r * ROW_BYTES + lane * 16);
    }
    __syncwarp();
}

// A warp's softmax of a tile, for row-heads g (side 0) and g + 8: acc[n] holds dimensions 16 t + n and 16 t + 8 + n.
struct Cell {
    float acc[8][4], peak[2], sum[2];
};

// s[n]: scores of keys 8 n + 2 t and the next.
DEVICE void score(float (&s)[4][4], const u32* queries, const u8* keys) {
    const int lane = lane_id(), g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const uint4* const rows_of_tile = reinterpret_cast<const uint4*>(queries) + half * 64 + lane;
        const uint4 low = rows_of_tile[0], high = rows_of_tile[32];
        const u32 a[4] = {low.x, low.y, low.z, low.w}, b[4] = {high.x, high.y, high.z, high.w};
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            const uint4 key =
                *reinterpret_cast<const uint4*>(keys + (n * 8 + g) * ROW_BYTES + ((4 * half + t) ^ swizzle(g)) * 16);
            mma_bf16(s[n], a, key.x, key.y);
            mma_bf16(s[n], b, key.z, key.w);
        }
    }
}

// Hides from the scores of a side what its rows do not see.
DEVICE void mask(float (&s)[4][4], const Piece& piece, int tile, int side, int position) {
    const int at = piece.first_pos + (16 * tile + (lane_id() >> 2) + 8 * side) / GROUP;
    const int low = max(piece.window ? at - piece.window + 1 : 0, min(piece.first_key, at));
#pragma unroll
    for (int n = 0; n < 4; ++n)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const int key = position + 8 * n + 2 * (lane_id() & 3) + j;
            if (key > at || key < low) s[n][2 * side + j] = NEVER;
        }
}

// Scores of a side to probabilities `p` relative to their peak.
DEVICE void soften(Cell& cell, u32 (&p)[2][4], const float (&s)[4][4], int side) {
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
    cell.peak[side] = high;
    cell.sum[side] = total;
}

DEVICE void add_values(Cell& cell, const u32 (&p)[2][4], const u8* values) {
    const int lane = lane_id(), g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int page = 0; page < 2; ++page) {
        uint4 value[4];
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            const int row = 2 * t + (n & 1);
            value[n] = *reinterpret_cast<const uint4*>(values + (page * PAGE + (n & 2) * 4 + row) * ROW_BYTES +
                                                       (g ^ swizzle(row)) * 16);
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            auto word = [j](uint4 v) { return j == 0 ? v.x : j == 1 ? v.y : j == 2 ? v.z : v.w; };
#pragma unroll
            for (int odd = 0; odd < 2; ++odd) {
                const u32 pick = odd ? 0x7632u : 0x5410u;
                mma_bf16(cell.acc[2 * j + odd], p[page], __byte_perm(word(value[0]), word(value[1]), pick),
                         __byte_perm(word(value[2]), word(value[3]), pick));
            }
        }
    }
}

// Step i of the stream for one tile after the other of `num_tiles`: waits for the copies with the first, asks for later
// ones with the last. `queries` as score() reads them, new keys and values as put_new() does.
DEVICE void take_step(Cell& cell, Stream& stream, const Piece& piece, int i, int tile, int num_tiles,
                      const u32* queries, const u8* new_keys, const u8* new_values) {
    const int position = (stream.first + WARPS * i) * STEP;
    u8* const keys = stream.place(i);
    if (tile == 0) {
        copy_async_wait<2 * STAGES - 1>();
        __syncwarp();
        put_new(keys, piece, position, new_keys);
    }
    float s[4][4] = {};
    score(s, queries + tile * TILE_WORDS, keys);
    if (tile == num_tiles - 1) {
        __syncwarp();
        stream.fetch(piece, i + STAGES, 0);
    }
    u32 p[2][4] = {};
    const bool masked = piece.masked(position), second = piece.num_rows * GROUP - 16 * tile > 8;
    if (masked) mask(s, piece, tile, 0, position);
    soften(cell, p, s, 0);
    if (second) {
        if (masked) mask(s, piece, tile, 1, position);
        soften(cell, p, s, 1);
    }
    if (tile == 0) {
        // Where a tile is the last one too, keys of a later step were asked for already.
        if (num_tiles == 1)
            copy_async_wait<2 * STAGES - 1>();
        else
            copy_async_wait<2 * STAGES - 2>();
        __syncwarp();
        put_new(keys + HALF_BYTES, piece, position, new_values);
    }
    add_values(cell, p, keys + HALF_BYTES);
    if (tile == num_tiles - 1) {
        __syncwarp();
        stream.fetch(piece, i + STAGES, 1);
    }
}
