// What one warp does with 32 keys: copies them to shared memory, multiplies, and carries its softmax on.
//
// Matrix instructions: 16 row-heads (pairs of row and query head) times 8 keys for the scores, then probabilities
// (bf16; their sum is taken in fp32 before rounding) times 8 dimensions. Scores become the left operand without moving
// between lanes, as in FlashAttention-2 (Dao, 2023). All row-heads of a block share the copy of the keys, and the
// fragments that are read of it.
//
// In 8 bits (KV_FP8) keys and values are e4m3 with a power of two for each token and head, as
// kernels/layouts/fp8_cache.py has them. When they are read from shared memory values become bf16, all times 2^-120,
// which costs nothing. Keys become f16, which takes one instruction for two; queries are bf16 numbers in f16 then, with
// a power of two for each row-head. All powers of two are multiplied into scores and probabilities. Nothing is rounded
// or added in another place, so the bits are those of a bf16 cache with these numbers; but numbers of a query below
// 2^-32 of its largest lose bits.
//
// Defines: as in attend.cu.
#pragma once

#include "attention/attend_plan.cuh"
#include "attention/softmax_tree.cuh"

constexpr int ROW_BYTES = KV_FP8 ? D : D * 2;
constexpr int KEY_BYTES = STEP * ROW_BYTES;    // keys, or values, of a step
constexpr int HALF_BYTES = KEY_BYTES + (KV_FP8 ? STEP : 0);  // with the bytes of their powers of two
constexpr int ROW_CHUNKS = ROW_BYTES / 16;
constexpr int COPY_ROWS = 32 / ROW_CHUNKS;     // that a warp copies at once
constexpr int TILE_WORDS = 16 * D / 2;         // queries of 16 row-heads
static_assert(STEP == 2 * PAGE);

struct Cache {
    Element *keys, *values;
    u8* scales;  // null in 16 bits

    __device__ u8* scales_of(i64 page, int kv, int is_value) const {
        return scales + ((page * NUM_KV + kv) * 2 + is_value) * PAGE;
    }
};

// Where a half has its row r: no bank conflicts for fragments of keys nor of values. In 8 bits two rows share 128 bytes.
DEVICE int place_of(int r, int chunk) {
    if (KV_FP8) return (r >> 1) * 128 + (((r & 1) << 2 | chunk) ^ (r & 6)) * 16;
    return r * ROW_BYTES + (chunk ^ (r & 6) ^ ((r & 1) << 2)) * 16;
}

// Where it has dimensions 8 c .. 8 c + 7 of row r. Eight rows further they are 8 * ROW_BYTES further.
DEVICE int fragment_place(int r, int c) { return KV_FP8 ? place_of(r, c >> 1) + (c & 1) * 8 : place_of(r, c); }

// The low `count` bits, any count; and bits moved up, or down.
DEVICE u32 below(int count) { return count >= 32 ? FULL_WARP : count <= 0 ? 0u : (1u << count) - 1; }
DEVICE u32 shifted(u32 bits, int up) { return up >= 32 || up <= -32 ? 0u : up >= 0 ? bits << up : bits >> -up; }

// The keys and values of a warp's steps of a piece, first, first + WARPS, ..: each step is two halves, in turn.
struct Stream {
    Cache cache;
    const i64* table;  // of the sequence
    u8* ring;          // DEPTH places of HALF_BYTES, WARPS * HALF_BYTES apart
    float* factors;    // in 8 bits STEP words
    int first;
    int pages;  // ids, of this warp's steps 16 n + lane / 2

    __device__ u8* place(int half) const { return ring + half % DEPTH * (WARPS * HALF_BYTES); }

    __device__ i64 page_of(int lane) const { return __shfl_sync(FULL_WARP, pages, lane); }

    // Asks for what is in the cache before this launch, and for zeros instead of all else.
    __device__ void fetch(const Piece& piece, int half) {
        const int i = half >> 1, step = first + WARPS * i, lane = lane_id();
        if (step < piece.end) {
            if (half % 32 == 0) {
                const int page = 2 * (step + WARPS * (lane >> 1)) + (lane & 1);
                if (page < 2 * piece.end && page <= piece.last_pos / PAGE) pages = static_cast<int>(table[page]);
            }
            const int copy_row = lane / ROW_CHUNKS, chunk = lane % ROW_CHUNKS;
            // What follows is at the same chunk every 8 rows.
            u8* const targets[2] = {place(half) + place_of(copy_row, chunk),
                                    place(half) + place_of(copy_row + 4, chunk) - 4 * ROW_BYTES};
            const i64 pages_here[2] = {page_of(i % 16 * 2), page_of(i % 16 * 2 + 1)};
            const Element* const source =
                (half & 1 ? cache.values : cache.keys) + (piece.kv * PAGE + copy_row) * D + chunk * (D / ROW_CHUNKS);
            const Element* const sources[2] = {source + pages_here[0] * PAGE_NUMBERS,
                                               source + pages_here[1] * PAGE_NUMBERS};
            auto copy = [&](u32 stored, u32 mine) {
#pragma unroll
                for (int r = 0; r < STEP; r += COPY_ROWS)
                    copy_async_16(targets[r / 4 % 2] + r * ROW_BYTES, sources[r / PAGE] + r % PAGE * D,
                                  mine >> r & 1);
#if KV_FP8
                if (lane < 2)
                    copy_async_16(place(half) + KEY_BYTES + lane * PAGE,
                                  cache.scales_of(lane ? pages_here[1] : pages_here[0], piece.kv, half & 1),
                                  (stored >> lane * PAGE & 0xffffu) != 0);
#endif
            };
            const int position = step * STEP;
            if (position >= piece.lowest_key && position + STEP <= piece.rows.first) {
                copy(FULL_WARP, FULL_WARP);
            } else {
                const u32 seen = below(piece.last_pos + 1 - position) & ~below(piece.lowest_key - position);
                const u32 stored = seen & ~shifted(piece.rows.live, piece.rows.first - position);
                copy(stored, stored >> copy_row);
            }
        }
        copy_async_commit();
    }
};

// A half is in shared memory, with the rows of this launch ([row][D], then in 8 bits their scales) put in their places.
DEVICE void complete(u8* half, const Piece& piece, int position, const u8* new_rows, const u8* new_scales) {
    copy_async_wait<DEPTH - 1>();
    __syncwarp();
    if (position + STEP <= piece.rows.first) return;
    const int lane = lane_id();
#pragma unroll 1
    for (int r = max(0, position - piece.rows.first); r < min(piece.new_end, position + STEP - piece.rows.first); ++r) {
        const int row = piece.rows.first + r - position;
        if (!(piece.rows.live >> r & 1)) continue;
        if (lane < ROW_CHUNKS)
            *reinterpret_cast<uint4*>(half + place_of(row, lane)) =
                *reinterpret_cast<const uint4*>(new_rows + r * ROW_BYTES + lane * 16);
        if (KV_FP8 && lane == 31) half[KEY_BYTES + row] = new_scales[r];
    }
    __syncwarp();
}

// What scores, or probabilities, of a step are multiplied with, for keys 8 n + 2 t and the next of a lane.
struct Factors {
#if KV_FP8
    float2 pairs[4];

    __device__ float operator()(int n, int j) const { return j ? pairs[n].y : pairs[n].x; }
#else
    __device__ float operator()(int, int) const { return 1.f; }
#endif
};

// 2^up times what the bytes of a half mean, by way of `room`, STEP words of the warp's own. `most` is what larger bytes
// give: NaN for keys, as theirs are broken, and a number for values, so that what was never written counts as 0 with a
// weight of 0. KEY_UP makes NaN of 255.
constexpr u32 ANY_KEY = 0x7fffffff, ANY_VALUE = 0x7f000000;
constexpr int KEY_UP = 1, VALUE_UP = 120;

DEVICE Factors factors_of(float* room, const u8* half, int up, u32 most) {
    Factors factors;
#if KV_FP8
    room[lane_id()] = __uint_as_float(min(static_cast<u32>(half[KEY_BYTES + lane_id()] + up) << 23, most));
    __syncwarp();
#pragma unroll
    for (int n = 0; n < 4; ++n) factors.pairs[n] = *reinterpret_cast<const float2*>(room + 8 * n + 2 * (lane_id() & 3));
#endif
    return factors;
}

// A fragment of keys: eight dimensions, bf16; from 8 bits f16.
DEVICE uint4 load_key(const u8* fragment) {
#if KV_FP8
    const uint2 bytes = *reinterpret_cast<const uint2*>(fragment);
    uint4 key;
    unpack_e4m3(bytes.x, key.x, key.y);
    unpack_e4m3(bytes.y, key.z, key.w);
    return key;
#else
    return *reinterpret_cast<const uint4*>(fragment);
#endif
}

// Eight dimensions of two rows of values, bf16: of each dimension, the two rows.
DEVICE void load_values(u32 (&pairs)[8], const u8* first_row, const u8* second_row) {
#if KV_FP8
    const uint2 first = *reinterpret_cast<const uint2*>(first_row);
    const uint2 second = *reinterpret_cast<const uint2*>(second_row);
    const u32 lows[2] = {first.x, first.y}, highs[2] = {second.x, second.y};
#pragma unroll
    for (int dim = 0; dim < 8; ++dim)
        pairs[dim] = widen_e4m3(lows[dim / 4], highs[dim / 4], dim % 4, 4 + dim % 4);
#else
    const uint4 first = *reinterpret_cast<const uint4*>(first_row);
    const uint4 second = *reinterpret_cast<const uint4*>(second_row);
    const u32 lows[4] = {first.x, first.y, first.z, first.w}, highs[4] = {second.x, second.y, second.z, second.w};
#pragma unroll
    for (int dim = 0; dim < 8; ++dim)
        pairs[dim] = __byte_perm(lows[dim / 2], highs[dim / 2], dim & 1 ? 0x7632u : 0x5410u);
#endif
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
        const u8* const fragments = keys + fragment_place(g, 4 * half + t);
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
            const uint4 key = load_key(fragments + n * 8 * ROW_BYTES);
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile) {
                const auto mma = KV_FP8 ? mma_f16 : mma_bf16;
                mma(s[tile][n], a[tile][0], key.x, key.y);
                mma(s[tile][n], a[tile][1], key.z, key.w);
            }
        }
    }
}

template <int SIDE>
DEVICE void scale(float (&s)[4][4], const Factors& factors) {
#pragma unroll
    for (int n = 0; n < 4; ++n)
#pragma unroll
        for (int j = 0; j < 2; ++j) s[n][2 * SIDE + j] *= factors(n, j);
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

// Scores, times `of_query` in 8 bits, to probabilities `p`, relative to the new peak, to which the cell is brought too;
// times `factors`, which their sum is without. No keys change nothing.
template <int SIDE>
DEVICE void soften(Cell& cell, u32 (&p)[2][4], const float (&s)[4][4], float of_query, const Factors& factors) {
    float peak = NEVER;
#pragma unroll
    for (int n = 0; n < 4; ++n) peak = fmaxf(peak, fmaxf(s[n][2 * SIDE], s[n][2 * SIDE + 1]));
    peak = fmaxf(peak, __shfl_xor_sync(FULL_WARP, peak, 1));
    peak = fmaxf(peak, __shfl_xor_sync(FULL_WARP, peak, 2));
    peak = fmaxf(KV_FP8 ? peak * of_query : peak, cell.peak[SIDE]);
    const float reference = peak == NEVER ? 0.f : peak, weight = weight_of(cell.peak[SIDE], peak);
    float total = 0.f;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
        const float first = s[n][2 * SIDE], second = s[n][2 * SIDE + 1];
        const float x = fast_exp2(KV_FP8 ? fmaf(first, of_query, -reference) : first - reference);
        const float y = fast_exp2(KV_FP8 ? fmaf(second, of_query, -reference) : second - reference);
        p[n / 2][SIDE + n % 2 * 2] = pack_bf16(x * factors(n, 0), y * factors(n, 1));
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
    const u8 *const first = values + fragment_place(2 * t, g), *const second = values + fragment_place(2 * t + 1, g);
#pragma unroll
    for (int page = 0; page < 2; ++page) {
        u32 low[8], high[8];
        load_values(low, first + page * PAGE * ROW_BYTES, second + page * PAGE * ROW_BYTES);
        load_values(high, first + (page * PAGE + 8) * ROW_BYTES, second + (page * PAGE + 8) * ROW_BYTES);
#pragma unroll
        for (int n = 0; n < 8; ++n)
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile) mma_bf16(cells[tile].acc[n], p[tile][page], low[n], high[n]);
    }
}

// Hides from a tile's scores what its rows do not see.
DEVICE void mask_tile(float (&s)[4][4], const Piece& piece, int tile, int position) {
    const int row_head = 16 * tile + (lane_id() >> 2);
    const int first = piece.first_pos + row_head / GROUP, second = piece.first_pos + (row_head + 8) / GROUP;
    mask<0>(s, position, piece.lowest_visible(first), first);
    mask<1>(s, position, piece.lowest_visible(second), second);
}

// Keys and values of this launch's tokens in shared memory, as complete() reads them; scales in 8 bits.
struct NewRows {
    u8 *keys, *values;  // [row of the sequence][D]
    u8 *key_scales, *value_scales;
};

// Queries of a piece in shared memory, as score() reads them; in 8 bits the powers of two of its row-heads.
struct Queries {
    u32* words;
    float* factors;
};

// Step i of the stream.
DEVICE void add_step(Cell (&cells)[TILES], Stream& stream, const Piece& piece, int i, const Queries& queries,
                     const NewRows& fresh) {
    const int position = (stream.first + WARPS * i) * STEP;
    u8 *const keys = stream.place(2 * i), *const values = stream.place(2 * i + 1);
    complete(keys, piece, position, fresh.keys, fresh.key_scales);
    float s[TILES][4][4] = {};
    // No branch where there are two tiles: it would keep the instructions of their sides apart.
    const bool second = TILES > 1 || piece.num_rows * GROUP > 8;
    const Factors of_keys = factors_of(stream.factors, keys, KEY_UP, ANY_KEY);
    score(s, queries.words, keys);
    if (KV_FP8) {
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
            scale<0>(s[tile], of_keys);
            if (second) scale<1>(s[tile], of_keys);
        }
    }
    __syncwarp();
    stream.fetch(piece, 2 * i + DEPTH);
    if (piece.masked(position)) {
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) mask_tile(s[tile], piece, tile, position);
    }
    if (KV_FP8) complete(values, piece, position, fresh.values, fresh.value_scales);
    const Factors of_values = factors_of(stream.factors, values, VALUE_UP, ANY_VALUE);
    u32 p[TILES][2][4] = {};
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
        const float* const of_query = queries.factors + 16 * tile + (lane_id() >> 2);
        soften<0>(cells[tile], p[tile], s[tile], KV_FP8 ? of_query[0] : 1.f, of_values);
        if (second) soften<1>(cells[tile], p[tile], s[tile], KV_FP8 ? of_query[8] : 1.f, of_values);
    }
    if (!KV_FP8) complete(values, piece, position, fresh.values, fresh.value_scales);
    add_values(cells, p, values);
    __syncwarp();
    stream.fetch(piece, 2 * i + 1 + DEPTH);
}
