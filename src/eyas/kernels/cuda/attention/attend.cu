// Attention of the decode path in one launch: sums of the QKV product, RoPE, cache write, split-KV attention, merge.
//
// Keys are dealt in leaves at absolute positions: CHAIN x WARPS steps of 32 keys, step by step to the warps in turn. A
// warp carries its softmax state (peak, sum, output) through its steps of a leaf and no further: the warps' states are
// added in order, and leaves are joined by a binary tree over their absolute numbers. A piece, the work of one block,
// is one aligned node of that tree, as large as the grid makes necessary. Where no block has two pieces, the blocks of a
// sequence's last eight join them by the same tree, some row-heads each; otherwise the block of the last one does. (One
// takes 3 us longer; 16 are no faster, and leave less room to the next kernel, which reads ahead.) They take states as
// they arrive, which their bits say, and leave their memory as it was. What they wait for comes, as all blocks run at once
// and have their pieces in ascending order. What a row does not see is the identity of each of these steps, so its bits
// depend on nothing but its position and its keys. In a layer with a window all that a row sees lies in steps of different
// warps.
//
// How work is cut is in attend_plan.cu and .cuh, how rows are finished in attend_rows.cuh, how keys are in
// attend_step.cuh.
//
// Defines: GROUP (query heads per key/value head, 4 or 8), NUM_KV, WARPS (8, or 4 where shared memory is small), TILES
// (of 16 row-heads, most in a block: 1, 2), DEPTH (halves of steps, keys or values, that a warp has under way), EARLY
// (of them asked for before rows are finished), RESIDENT (blocks per multiprocessor), KV_FP8 (keys and values in 8 bits).
#include "attention/attend_plan.cuh"
#include "attention/attend_rows.cuh"
#include "attention/attend_step.cuh"
#include "common.cuh"
#include "attention/softmax_tree.cuh"

constexpr int THREADS = 32 * WARPS;
constexpr int ITEMS = 256 / THREADS;               // (row-head, four dimensions) of a tile per thread
constexpr int TILE_STATE = 16 * STATE_WORDS;       // words of the states of a tile
constexpr int RING_BYTES = DEPTH * WARPS * HALF_BYTES;
constexpr int ROOM_BYTES = RING_BYTES + WARPS * TILE_STATE * 4;
constexpr int PIECE_STATE = TILES * TILE_STATE;    // words
constexpr int MOST_JOINERS = 8;                    // blocks that join the pieces of a sequence

struct Output {
    u16* out;
    const float* sinks;

    __device__ float sink(int head) const { return sinks == nullptr ? NEVER : __fmul_rn(sinks[head], LOG2_E); }

    // The state of a row's query head after all keys, four dimensions of it; zeros for rows that are not alive.
    __device__ void write(i64 token, bool alive, int head, int dim, const State& all, float sink) const {
        const float peak = fmaxf(all.peak, sink), weight = weight_of(all.peak, peak);
        const float scale = weight * fast_reciprocal(fmaf(all.sum, weight, fast_exp2(sink - peak)));
        uint2 packed = {0u, 0u};
        if (alive)
            packed = {pack_bf16(all.out.x * scale, all.out.y * scale),
                      pack_bf16(all.out.z * scale, all.out.w * scale)};
        *reinterpret_cast<uint2*>(out + (token * NUM_HEADS + head) * D + dim) = packed;
    }
};

// A warp's cell as states of row-heads, in memory.
DEVICE void hand_over(float* states, const Cell& cell, bool second) {
    const int g = lane_id() >> 2, t = lane_id() & 3;
#pragma unroll
    for (int side = 0; side < 2; ++side) {
        if (side == 1 && !second) break;
        float* const target = states + (g + 8 * side) * STATE_WORDS;
        if (t == 0) *reinterpret_cast<float2*>(target + D) = make_float2(cell.peak[side], cell.sum[side]);
#pragma unroll
        for (int odd = 0; odd < 2; ++odd)
#pragma unroll
            for (int n = 0; n < 8; n += 4)
                *reinterpret_cast<float4*>(target + 16 * t + 8 * odd + n) =
                    make_float4(cell.acc[n][2 * side + odd], cell.acc[n + 1][2 * side + odd],
                                cell.acc[n + 2][2 * side + odd], cell.acc[n + 3][2 * side + odd]);
    }
}

// Takes a row-head's states in up to eight pieces, `stride` words apart in memory, four dimensions of them, once all are
// there, and joins them. A warp, with two row-heads or eights.
DEVICE State take_eight(float* states, int stride, int pieces, int dim) {
    uint4 outs[8];
    uint2 sums[8];
    while (true) {
        bool is_missing = false;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            outs[i] = load_l2_16_if(states + static_cast<i64>(i) * stride + dim, i < pieces);
            sums[i] = load_l2_8_if(states + static_cast<i64>(i) * stride + D, i < pieces);
        }
#pragma unroll
        for (int i = 0; i < 8; ++i)
            is_missing |= not_yet(outs[i]) || not_yet({sums[i].x, sums[i].y, 0u, 0u});
        if (!__any_sync(FULL_WARP, is_missing)) break;  // together, as they read the same sums
        look_again();
    }
    State nodes[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        nodes[i] = nothing();
        if (i >= pieces) continue;
        nodes[i] = {__uint_as_float(sums[i].x), __uint_as_float(sums[i].y),
                    make_float4(__uint_as_float(outs[i].x), __uint_as_float(outs[i].y), __uint_as_float(outs[i].z),
                                __uint_as_float(outs[i].w))};
        float* const taken = states + static_cast<i64>(i) * stride;
        *reinterpret_cast<uint4*>(taken + dim) = uint4{NOT_YET, NOT_YET, NOT_YET, NOT_YET};
        if (dim == 0) *reinterpret_cast<uint2*>(taken + D) = uint2{NOT_YET, NOT_YET};
    }
    return join_tree(nodes);
}

// The states of row-heads `joiner`, `joiner` + `joiners`, .. of a block in `count` pieces, `stride` words apart in memory,
// each sum given to `visit(row-head, first of four dimensions, state)`. `room`: ROOM_BYTES of shared memory.
template <class Visit>
DEVICE void join_pieces(float* room, float* states, int stride, int count, int num_row_heads, int joiner, int joiners,
                        float sink, Visit visit) {
    constexpr int TAKERS = THREADS / 16, EIGHTS = 4, SPAN = 8 * EIGHTS;
    static_assert(TILES * 16 * EIGHTS * STATE_WORDS * 4 <= ROOM_BYTES);
    const int taker = threadIdx.x / 16, dim = threadIdx.x % 16 * 4;
    const int mine = (num_row_heads - joiner + joiners - 1) / joiners;
    State nodes[TILES * ITEMS][LEVELS];
    for (int base = 0; base < count; base += SPAN) {
        const int eights = min(EIGHTS, (count - base + 7) / 8);
        __syncthreads();
#pragma unroll 1
        for (int first = 0; first < mine * eights; first += TAKERS) {
            const int task = first + taker, piece = base + task % eights * 8;
            float* const source = states + static_cast<i64>(piece) * stride +
                                  (joiner + task / eights * joiners) * STATE_WORDS;
            const State node = take_eight(source, stride, task < mine * eights ? count - piece : 0, dim);
            if (task < mine * eights) write_state(room + task * STATE_WORDS, dim, node);
        }
        __syncthreads();
#pragma unroll 1
        for (int i = taker; i < mine; i += TAKERS) {
            State* const levels = nodes[i / TAKERS];
            State all = join_as_tree<EIGHTS>(room + i * eights * STATE_WORDS, STATE_WORDS, dim, eights);
            if (count > SPAN) {
                push(levels, base / SPAN, all);
                if (base + SPAN < count) continue;
                all = root(levels, (count + SPAN - 1) / SPAN);
            }
            visit(joiner + i * joiners, dim, all, sink);
        }
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, RESIDENT)
    attend(u16* out, const float* partials, int num_slices, const float* square_sums, int num_parts, float eps,
           int hidden_size, const float* bias, const float* cosines, const float* sines, Element* k_cache,
           Element* v_cache, u8* scales, const i64* table, int table_stride, const i64* positions, const u8* live,
           const float* sinks, int window, int first_key, int num_seqs, int num_rows, int tiles, const uint4* units,
           float* piece_states) {
    __shared__ uint4 plan_words[2];
    SHARED(u8, shared);
    float* const warp_states = reinterpret_cast<float*>(shared + RING_BYTES);  // [WARPS] tiles
    u32* const query_words = reinterpret_cast<u32*>(warp_states + WARPS * TILE_STATE);
    float* const factors = reinterpret_cast<float*>(query_words + TILES * TILE_WORDS);  // in 8 bits [WARPS][STEP]
    const Queries queries = {query_words, factors + KV_FP8 * WARPS * STEP};             // and [TILES][16]
    u8* const new_keys = reinterpret_cast<u8*>(queries.factors + KV_FP8 * TILES * 16);
    u8* const new_scales = new_keys + 2 * num_rows * ROW_BYTES;
    const NewRows fresh = {new_keys, new_keys + num_rows * ROW_BYTES, new_scales, new_scales + num_rows};
    const Cache cache = {k_cache, v_cache, scales};

    const int warp = warp_id(), dim = threadIdx.x % 16 * 4;
    const Product product = {partials, num_slices, num_seqs * num_rows, square_sums, num_parts, eps,
                             hidden_size, bias, cosines, sines};
    const Output output = {out, sinks};
    Plan plan = {};
    plan.read(units, plan_words, num_seqs, num_rows, tiles);

    bool waited = false;
    for (int number = blockIdx.x; number < plan.num_units * plan.pairs; number += gridDim.x) {
        const Piece piece = piece_of(plan, number, positions, live, num_rows, window, first_key);
        const int num_leaves = max(1, (piece.end - piece.begin + LEAF_STEPS - 1) / LEAF_STEPS);
        const i64* const seq_table = table + static_cast<i64>(piece.unit.seq) * table_stride;
        Stream stream = {cache, seq_table, shared + warp * HALF_BYTES, factors + warp * STEP,
                         piece.begin + ((warp - piece.begin) & (WARPS - 1)), 0};
#pragma unroll 1
        for (int half = 0; half < EARLY; ++half) stream.fetch(piece, half);
        const float sink = output.sink(piece.kv * GROUP + threadIdx.x / 16 % GROUP);
        finish_rows(product, {queries, fresh, cache, seq_table}, piece, num_rows, waited);
#pragma unroll 1
        for (int half = EARLY; half < DEPTH; ++half) stream.fetch(piece, half);
        __syncthreads();

        auto write_out = [&](int row_head, int four, const State& all, float sink) {
            const int row = piece.first_row + row_head / GROUP;
            output.write(static_cast<i64>(piece.unit.seq) * num_rows + row, piece.rows.live >> row & 1,
                         piece.kv * GROUP + row_head % GROUP, four, all, sink);
        };

        State nodes[TILES][ITEMS][LEVELS];
        for (int leaf = 0; leaf < num_leaves; ++leaf) {
            Cell cells[TILES] = {};
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile) cells[tile].peak[0] = cells[tile].peak[1] = NEVER;
#pragma unroll 1
            for (int i = CHAIN * leaf; i < CHAIN * (leaf + 1) && stream.first + WARPS * i < piece.end; ++i)
                add_step(cells, stream, piece, i, queries, fresh);
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile) {
                const int num_row_heads = piece.num_rows * GROUP - 16 * tile;
                if (num_row_heads <= 0) break;
                if (leaf > 0 || tile > 0) __syncthreads();
                hand_over(warp_states + warp * TILE_STATE, cells[tile], num_row_heads > 8);
                __syncthreads();
#pragma unroll
                for (int item = 0; item < ITEMS; ++item) {
                    const int row_head = threadIdx.x / 16 + item * (THREADS / 16);
                    if (row_head >= num_row_heads) continue;
                    State state = join_in_order<WARPS>(warp_states + row_head * STATE_WORDS, TILE_STATE, dim);
                    if (num_leaves > 1) {
                        push(nodes[tile][item], leaf, state);
                        if (leaf < num_leaves - 1) continue;
                        state = root(nodes[tile][item], num_leaves);
                    }
                    if (piece.unit.count == 1)
                        write_out(16 * tile + row_head, dim, state, sink);
                    else
                        write_state(piece_states + static_cast<i64>(number) * PIECE_STATE + tile * TILE_STATE +
                                        row_head * STATE_WORDS, dim, state);
                }
            }
        }

        if (piece.unit.count > 1) {
            // They wait for blocks with higher numbers, so there are many only where no block has two pieces.
            const bool all_run = plan.num_units * plan.pairs <= static_cast<int>(gridDim.x);
            const int joiners = all_run ? min(MOST_JOINERS, piece.unit.count) : 1;
            const int joiner = piece.unit.count - 1 - piece.unit.index;
            const int first_number = number - piece.unit.index * plan.pairs;  // of this sequence, rows and head
            if (joiner < joiners)
                join_pieces(reinterpret_cast<float*>(shared),
                            piece_states + static_cast<i64>(first_number) * PIECE_STATE, plan.pairs * PIECE_STATE,
                            piece.unit.count, piece.num_rows * GROUP, joiner, joiners,
                            output.sink(piece.kv * GROUP + (joiner + threadIdx.x / 16 * joiners) % GROUP), write_out);
        }
        __syncthreads();
    }
    if (!waited) {
        pdl_trigger();
        pdl_wait();
    }
}
