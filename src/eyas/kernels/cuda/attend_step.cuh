// What one warp does with 32 keys: copies them to shared memory, multiplies, and carries its softmax on.
//
// Matrix instructions: 16 row-heads (pairs of row and query head) times 8 keys for the scores, then probabilities
// (bf16; their sum is taken in fp32 before rounding) times 8 dimensions. Scores become the left operand without moving
// between lanes, as in FlashAttention-2 (Dao, 2023). All row-heads of a block share the copy of the keys, and the
// fragments that are read of it.
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

// The keys and values of a warp's steps of a piece, first, first + WARPS, ..: each step is two halves, in turn.
struct Stream {
    const u16 *k_cache, *v_cache;
    const i64* table;  // of the sequence
    u8* ring;          // DEPTH places of HALF_BYTES, WARPS * HALF_BYTES apart
    int first;
    int pages;  // ids, of this warp's steps 16 n + lane / 2

    __device__ u8* place(int half) const { return ring + half % DEPTH * (WARPS * HALF_BYTES); }

    __device__ const u16* page_of(const u16* cache, int lane) const {
        return cache + static_cast<i64>(__shfl_sync(FULL_WARP, pages, lane)) * (PAGE * TOKEN);
    }

    // Asks for what is in the cache before this launch, and for zeros instead of all else.
    __device__ void fetch(const Piece& piece, int half) {
        const int i = half >> 1, step = first + WARPS * i, lane = lane_id();
        if (step < piece.end) {
            if (half % 32 == 0) {
                const int page = 2 * (step + WARPS * (lane >> 1)) + (lane & 1);
                if (page < 2 * piece.end && page <= piece.last_pos / PAGE) pages = static_cast<int>(table[page]);
            }
            const int copy_row = lane >> 3, chunk = lane & 7;
            u8* const target = place(half) + copy_row * ROW_BYTES;
            u8* const targets[2] = {target + (chunk ^ swizzle(copy_row)) * 16,
                                    target + (chunk ^ swizzle(copy_row + 4)) * 16};
            const u16* const cache = (half & 1 ? v_cache : k_cache) + copy_row * TOKEN + piece.kv * D + chunk * 8;
            const u16* const sources[2] = {page_of(cache, i % 16 * 2), page_of(cache, i % 16 * 2 + 1)};
            auto copy = [&](u32 stored) {
#pragma unroll
                for (int r = 0; r < STEP; r += 4)
                    copy_async_16(targets[r / 4 % 2] + r * ROW_BYTES, sources[r / PAGE] + r % PAGE * TOKEN,
                                  stored >> r & 1);
            };
            const int position = step * STEP;
            if (position >= piece.lowest_key && position + STEP <= piece.rows.first) {
                copy(FULL_WARP);
            } else {
                const u32 stored = below(piece.last_pos + 1 - position) & ~below(piece.lowest_key - position);
                copy((stored & ~shifted(piece.rows.live, piece.rows.first - position)) >> copy_row);
            }
        }
        copy_async_commit();
    }
};

// A half is in shared memory, with the rows of this launch (bf16 [row][D]) put in their places.
DEVICE void complete(u8* half, const Piece& piece, int position, const u8* new_rows) {
    copy_async_wait<DEPTH - 1>();
    __syncwarp();
    if (position + STEP <= piece.rows.first) return;
    const int lane = lane_id();
#pragma unroll 1
    for (int r = max(0, position - piece.rows.first); r < min(piece.new_end, position + STEP - piece.rows.first); ++r) {
        const int row = piece.rows.first + r - position;
        if (lane < 8 && (piece.rows.live >> r & 1))
            *reinterpret_cast<uint4*>(half + row * ROW_BYTES + (lane ^ swizzle(row)) * 16) =
                *reinterpret_cast<const uint4*>(new_rows + r * ROW_BYTES + lane * 16);
    }
    __syncwarp();
}

// A warp's softmax of a tile, for row-heads g (side 0) and g + 8: acc[n] holds dimensions 16 t + n and 16 t + 8 + n.
struct Cell {
    float acc[8][4], peak[2], sum[2];
};

// s[tile][n]: scores of keys 8 n + 2 t and the next.
DEVICE void score(float (&s)[TILES][4][4], const u32* queries, const u8* keys) {
    const int lane = lane_id(), g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        u32 a[TILES][2][4];
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const uint4 words =
                    reinterpret_cast<const uint4*>(queries + tile * TILE_WORDS)[half * 64 + i * 32 + lane];
                a[tile][i][0] = words.x, a[tile][i][1] = words.y, a[tile][i][2] = words.z, a[tile][i][3] = words.w;
            }
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            const uint4 key =
                *reinterpret_cast<const uint4*>(keys + (n * 8 + g) * ROW_BYTES + ((4 * half + t) ^ swizzle(g)) * 16);
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile) {
                mma_bf16(s[tile][n], a[tile][0], key.x, key.y);
                mma_bf16(s[tile][n], a[tile][1], key.z, key.w);
            }
        }
    }
}

// Scores of keys below `low` and above `high` count for nothing. SIDE as in Cell.
template <int SIDE>
DEVICE void mask(float (&s)[4][4], int position, int low, int high) {
#pragma unroll
    for (int n = 0; n < 4; ++n)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const int key = position + 8 * n + 2 * (lane_id() & 3) + j;
            if (key > high || key < low) s[n][2 * SIDE + j] = NEVER;
        }
}

// Scores to probabilities `p`, relative to the new peak, to which the cell is brought too. No keys change nothing.
template <int SIDE>
DEVICE void soften(Cell& cell, u32 (&p)[2][4], const float (&s)[4][4]) {
    float peak = NEVER;
#pragma unroll
    for (int n = 0; n < 4; ++n) peak = fmaxf(peak, fmaxf(s[n][2 * SIDE], s[n][2 * SIDE + 1]));
    peak = fmaxf(peak, __shfl_xor_sync(FULL_WARP, peak, 1));
    peak = fmaxf(peak, __shfl_xor_sync(FULL_WARP, peak, 2));
    peak = fmaxf(peak, cell.peak[SIDE]);
    const float reference = peak == NEVER ? 0.f : peak, weight = weight_of(cell.peak[SIDE], peak);
    float total = 0.f;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
        const float x = fast_exp2(s[n][2 * SIDE] - reference), y = fast_exp2(s[n][2 * SIDE + 1] - reference);
        p[n / 2][SIDE + n % 2 * 2] = pack_bf16(x, y);
        total += x + y;
    }
    total += __shfl_xor_sync(FULL_WARP, total, 1);
    total += __shfl_xor_sync(FULL_WARP, total, 2);
    cell.peak[SIDE] = peak;
    cell.sum[SIDE] = fmaf(cell.sum[SIDE], weight, total);
#pragma unroll
    for (int n = 0; n < 8; ++n) cell.acc[n][2 * SIDE] *= weight, cell.acc[n][2 * SIDE + 1] *= weight;
}

DEVICE void add_values(Cell (&cells)[TILES], const u32 (&p)[TILES][2][4], const u8* values) {
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
                const u32 low = __byte_perm(word(value[0]), word(value[1]), pick);
                const u32 high = __byte_perm(word(value[2]), word(value[3]), pick);
#pragma unroll
                for (int tile = 0; tile < TILES; ++tile)
                    mma_bf16(cells[tile].acc[2 * j + odd], p[tile][page], low, high);
            }
        }
    }
}

// Hides from a tile's scores what its rows do not see.
DEVICE void mask_tile(float (&s)[4][4], const Piece& piece, int tile, int position) {
    const int row_head = 16 * tile + (lane_id() >> 2);
    const int first = piece.first_pos + row_head / GROUP, second = piece.first_pos + (row_head + 8) / GROUP;
    mask<0>(s, position, piece.lowest_visible(first), first);
    mask<1>(s, position, piece.lowest_visible(second), second);
}

// Step i of the stream; `queries` as score() reads them, new keys and values as complete() does.
DEVICE void add_step(Cell (&cells)[TILES], Stream& stream, const Piece& piece, int i, const u32* queries,
                     const u8* new_keys, const u8* new_values) {
    const int position = (stream.first + WARPS * i) * STEP;
    u8 *const keys = stream.place(2 * i), *const values = stream.place(2 * i + 1);
    complete(keys, piece, position, new_keys);
    float s[TILES][4][4] = {};
    score(s, queries, keys);
    __syncwarp();
    stream.fetch(piece, 2 * i + DEPTH);
    if (piece.masked(position)) {
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) mask_tile(s[tile], piece, tile, position);
    }
    u32 p[TILES][2][4] = {};
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
        soften<0>(cells[tile], p[tile], s[tile]);
        // No branch where there are two tiles: it would keep the instructions of their sides apart.
        if (TILES > 1 || piece.num_rows * GROUP > 8) soften<1>(cells[tile], p[tile], s[tile]);
    }
    complete(values, piece, position, new_values);
    add_values(cells, p, values);
    __syncwarp();
    stream.fetch(piece, 2 * i + 1 + DEPTH);
}
