// Attention of the decode path in one launch: sums of the QKV product, RoPE, cache write, split-KV attention, merge.
//
// Keys are dealt in leaves of 32 WARPS at absolute positions, 32 to each warp. A warp carries no softmax state (peak,
// sum, output) from leaf to leaf: the warps' states are added in order, and leaves are joined by a binary tree over
// their absolute numbers. A piece, the work of one block, is one aligned node of that tree, as large as the grid makes
// necessary; the block that comes last joins the pieces by the same tree. What a row does not see is the identity of
// each of these steps, so its bits depend on nothing but its position and its keys.
//
// How work is cut is in attend_plan.cuh, how rows are finished in attend_rows.cuh, how keys are in attend_step.cuh.
//
// Defines: GROUP (query heads per key/value head, 4 or 8), NUM_KV, WARPS (8, or 4 where shared memory is small), STAGES
// (leaves under way), RESIDENT (blocks per multiprocessor).
#include "attend_plan.cuh"
#include "attend_rows.cuh"
#include "attend_step.cuh"
#include "common.cuh"
#include "softmax_tree.cuh"

constexpr int THREADS = 32 * WARPS;
constexpr int SPAN = 16;                       // pieces that a thread reads at once
constexpr int SUM_STRIDE = D + 4;              // floats; padded against bank conflicts
constexpr int ITEMS = 256 / THREADS;           // (row-head, four dimensions) of a tile per thread
constexpr int LEVELS = 16;

// A warp's cell in shared memory: outputs [16][SUM_STRIDE], peaks and sums [16].
DEVICE void hand_over(float* outs, float2* sums, const Cell& cell, bool second) {
    const int g = lane_id() >> 2, t = lane_id() & 3;
#pragma unroll
    for (int side = 0; side < 2; ++side) {
        if (side == 1 && !second) break;
        const int row = g + 8 * side;
        if (t == 0) sums[row] = make_float2(cell.peak[side], cell.sum[side]);
        float* const target = outs + row * SUM_STRIDE + 16 * t;
#pragma unroll
        for (int odd = 0; odd < 2; ++odd)
#pragma unroll
            for (int n = 0; n < 8; n += 4)
                *reinterpret_cast<float4*>(target + 8 * odd + n) =
                    make_float4(cell.acc[n][2 * side + odd], cell.acc[n + 1][2 * side + odd],
                                cell.acc[n + 2][2 * side + odd], cell.acc[n + 3][2 * side + odd]);
    }
}

// The warps' states of a row-head, added in order.
DEVICE State join_warps(const float* warp_outs, const float2 (&warp_sums)[WARPS][16], int row, int quad) {
    float2 sums[WARPS];
    State state = nothing();
#pragma unroll
    for (int w = 0; w < WARPS; ++w) {
        sums[w] = warp_sums[w][row];
        state.peak = fmaxf(state.peak, sums[w].x);
    }
#pragma unroll
    for (int w = 0; w < WARPS; ++w) {
        const float4 o = read4(warp_outs + (w * 16 + row) * SUM_STRIDE + quad);
        const float weight = weight_of(sums[w].x, state.peak);
        state.sum = fmaf(sums[w].y, weight, state.sum);
        state.out = make_float4(fmaf(o.x, weight, state.out.x), fmaf(o.y, weight, state.out.y),
                                fmaf(o.z, weight, state.out.z), fmaf(o.w, weight, state.out.w));
    }
    return state;
}

// `count` pieces of a row-head, `stride` row-heads apart in memory, joined by the tree. `nodes`: room for LEVELS.
DEVICE State join_pieces(State* nodes, const float4* outs, const float2* sums, int first, int stride, int count,
                         int quad) {
    State all = nothing();
    for (int base = 0; base < count; base += SPAN) {
        State part[SPAN];
#pragma unroll
        for (int j = 0; j < SPAN; ++j) {
            part[j] = nothing();
            if (base + j >= count) continue;
            const int place = first + (base + j) * stride;
            const float2 both = sums[place];
            part[j] = {both.x, both.y, outs[place * 16 + quad / 4]};
        }
#pragma unroll
        for (int width = 1; width < SPAN; width *= 2)
#pragma unroll
            for (int j = 0; j < SPAN; j += 2 * width) part[j] = join(part[j], part[j + width]);
        all = part[0];
        if (count > SPAN) push(nodes, base / SPAN, all);
    }
    return count > SPAN ? root(nodes, (count + SPAN - 1) / SPAN) : all;
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, RESIDENT)
    attend(u16* out, const float* partials, int num_slices, const float* square_sums, int num_parts, float eps,
           int hidden_size, const float* bias, const float* cosines, const float* sines, u16* k_cache, u16* v_cache,
           const i64* table, int table_stride, const i64* positions, const u8* live, const float* sinks, int window,
           int first_key, int num_seqs, int num_rows, float4* piece_outs, float2* piece_sums, u32* tickets) {
    SHARED(u8, shared);
    float* const warp_outs = reinterpret_cast<float*>(shared + STAGES * WARPS * 2 * HALF_BYTES);  // [WARPS][16]
    u32* const queries = reinterpret_cast<u32*>(warp_outs + WARPS * 16 * SUM_STRIDE);
    __shared__ float2 warp_sums[WARPS][16];

    const int warp = warp_id(), item_row = threadIdx.x / 16, quad = threadIdx.x % 16 * 4;
    const Product product = {partials, num_slices, num_seqs * num_rows, square_sums, num_parts, eps,
                             hidden_size, bias, cosines, sines};
    const Plan plan = plan_all(positions, live, num_seqs, num_rows, window);
    const int pairs = plan.pairs, piece_tiles = (min(plan.block_size, num_rows) * GROUP + 15) / 16;

    bool waited = false;
    for (int number = blockIdx.x; number < plan.units * pairs; number += gridDim.x) {
        const Piece piece = piece_of(plan, number, positions, live, num_rows, window, first_key);
        const int num_tiles = (piece.num_rows * GROUP + 15) / 16, count = piece.unit.count;
        const int num_leaves = max(1, (piece.end - piece.begin + WARPS - 1) / WARPS);
        u8* const new_keys = reinterpret_cast<u8*>(queries + piece_tiles * TILE_WORDS);  // bf16 [num_rows][D]
        u8* const new_values = new_keys + num_rows * ROW_BYTES;
        const i64* const seq_table = table + static_cast<i64>(piece.unit.seq) * table_stride;
        Stream stream = {k_cache, v_cache, seq_table, shared + warp * 2 * HALF_BYTES,
                         piece.begin + ((warp - piece.begin) & (WARPS - 1)), 0};
        for (int i = 0; i < STAGES; ++i) {
            stream.fetch(piece, i, 0);
            stream.fetch(piece, i, 1);
        }
        const float sink =
            sinks == nullptr ? 0.f : __fmul_rn(sinks[piece.kv * GROUP + item_row % GROUP], LOG2_E);
        finish_rows(product, {queries, new_keys, new_values, k_cache, v_cache, seq_table}, piece, num_rows, waited);
        __syncthreads();

        auto write_out = [&](int row_head, const State& all) {
            const int r = piece.first_row + row_head / GROUP;
            float weight = 1.f, total = all.sum;
            if (sinks != nullptr) {
                const float peak = fmaxf(all.peak, sink);
                weight = weight_of(all.peak, peak);
                total = fmaf(all.sum, weight, fast_exp2(sink - peak));
            }
            weight *= fast_reciprocal(total);
            uint2 packed = {0u, 0u};
            if (piece.rows.live >> r & 1)
                packed = {pack_bf16(all.out.x * weight, all.out.y * weight),
                          pack_bf16(all.out.z * weight, all.out.w * weight)};
            const i64 head = (static_cast<i64>(piece.unit.seq) * num_rows + r) * NUM_HEADS + piece.kv * GROUP;
            *reinterpret_cast<uint2*>(out + (head + row_head % GROUP) * D + quad) = packed;
        };

        State nodes[TILES][ITEMS][LEVELS];
        for (int leaf = 0; leaf < num_leaves; ++leaf)
            for (int tile = 0; tile < num_tiles; ++tile) {
                const int num_row_heads = piece.num_rows * GROUP - 16 * tile;
                Cell cell = {{}, {NEVER, NEVER}, {}};
                if (stream.first + WARPS * leaf < piece.end)
                    take_step(cell, stream, piece, leaf, tile, num_tiles, queries, new_keys, new_values);
                if (leaf > 0 || tile > 0) __syncthreads();
                hand_over(warp_outs + warp * 16 * SUM_STRIDE, warp_sums[warp], cell, num_row_heads > 8);
                __syncthreads();
#pragma unroll
                for (int item = 0; item < ITEMS; ++item) {
                    const int row = item_row + item * (THREADS / 16);
                    if (row >= num_row_heads) continue;
                    State state = join_warps(warp_outs, warp_sums, row, quad);
                    if (num_leaves > 1) {
                        push(nodes[tile][item], leaf, state);
                        if (leaf < num_leaves - 1) continue;
                        state = root(nodes[tile][item], num_leaves);
                    }
                    if (count == 1) {
                        write_out(16 * tile + row, state);
                    } else {
                        const int place = (number * piece_tiles + tile) * 16 + row;
                        piece_outs[place * 16 + quad / 4] = state.out;
                        if (quad == 0) piece_sums[place] = make_float2(state.peak, state.sum);
                    }
                }
            }

        if (count > 1 && arrive_last(tickets + piece.unit.seq * pairs + number % pairs, count)) {
            const int first = (number - piece.unit.index * pairs) * piece_tiles * 16;
            for (int row_head = item_row; row_head < piece.num_rows * GROUP; row_head += THREADS / 16)
                write_out(row_head, join_pieces(nodes[0][0], piece_outs, piece_sums, first + row_head,
                                                pairs * piece_tiles * 16, count, quad));
        }
        __syncthreads();
    }
    if (!waited) {
        pdl_trigger();
        pdl_wait();
    }
}
