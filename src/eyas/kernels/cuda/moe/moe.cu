// The mixture of experts for a few rows: each distinct expert is read once, whatever the number of rows.
//
// Every block finds the top k of all rows from the logits, so all agree on the list of groups: up to GROUP rows of one
// expert; where rows are many or their experts known, moe_route.cu has done it for all. (Group, tile of 16 matrix rows)
// in that order are the items, of gate/up and then of down; each block takes one contiguous share of both, in bulk
// copies, DEPTH ahead. Blocks do not meet between the two: an activation says by
// its bits whether it has arrived. 15 warps multiply: warp s owns SLICE units of 64 columns, keeps its fragments of the
// rows (B) while the group stays the same, unpacks the weights (kernels/layouts/mxfp4.py) and leaves a partial sum in
// shared memory. Finishers take turns: one adds an item's slices in order, asks for the item that takes its place, and
// finishes it. One finisher is too slow: 300 dependent instructions take longer than the item takes to come.
//
// Row invariance: an output is a sum of slices in ascending order, each one chain of matrix instructions in ascending
// columns; the borders follow from the number of columns alone.
//
// Defines: UP_COLUMNS, DOWN_COLUMNS (of the matrices, multiples of 32), COLUMN_TILES (of 8 rows in a group), DEPTH
// (items a block has under way), NUM_EXPERTS, TOP_K, ROUTED (0; 1 where moe_route.cu has written the tables),
// OUTPUTS (0; 1 where the experts' outputs are wanted as they are, not added).
#include "moe/moe.cuh"

// ---- the stream of items -----------------------------------------------------------------------------------------

using Stage = Place<DEPTH>;

// One lane: the block's item number `n`, those of both phases counted, comes to its stage, n % DEPTH.
DEVICE void ask(const Shared& s, const Matrix& up, const Matrix& down, int n, int stage) {
    const int num_up = s.end[UP] - s.begin[UP], phase = n < num_up ? UP : DOWN;
    const int item = phase == UP ? s.begin[UP] + n : s.begin[DOWN] + n - num_up;
    if (item >= s.end[phase]) return;
    const int group = group_of(phase, item), tiles = tiles_of(phase), units = units_of(phase);
    const i64 unit = static_cast<i64>(s.experts[group] * tiles + item - group * tiles) * units;
    const u8* const words = (phase == UP ? up.words : down.words) + unit * UNIT_WORD_BYTES;
    const u8* const scales = (phase == UP ? up.scales : down.scales) + unit * UNIT_SCALE_BYTES;
    u8* const place = s.ring + stage * ITEM_BYTES;
    u64* const full = s.full + stage;
    copy_barrier_expect(full, units * (UNIT_WORD_BYTES + UNIT_SCALE_BYTES));
    copy_bulk(place, words, units * UNIT_WORD_BYTES, full);
    copy_bulk(place + units * UNIT_WORD_BYTES, scales, units * UNIT_SCALE_BYTES, full);
}

DEVICE void init_barriers(const Shared& s) {
    for (int i = 0; i < DEPTH; ++i) {
        copy_barrier_init(s.full + i, 1);
        copy_barrier_init(s.done + i, SLICES);
    }
    copy_barrier_fence();
}

// ---- multiplying -------------------------------------------------------------------------------------------------

// c += the 16 x 32 weights of two words times a lane's 8 values of each tile of rows.
DEVICE void multiply_block(float (&c)[COLUMN_TILES][4], u32 low_row, u32 high_row, u32 factors,
                           const uint4 (&b)[COLUMN_TILES]) {
    u32 a[4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int p = 0; p < 2; ++p) {
            a[2 * p] = mul_bf16x2_low(mxfp4_pair(low_row, 2 * half + p), factors);
            a[2 * p + 1] = mul_bf16x2_high(mxfp4_pair(high_row, 2 * half + p), factors);
        }
#pragma unroll
        for (int i = 0; i < COLUMN_TILES; ++i) mma_bf16(c[i], a, half ? b[i].z : b[i].x, half ? b[i].w : b[i].y);
    }
}

// A warp's part of the rows that share an item: 8 values of each tile's row g for every 32 columns.
struct Fragments {
    uint4 values[2 * SLICE][COLUMN_TILES];

    // `row`: of tile i, -1 if there is none.
    __device__ void load(int i, const u16* rows, int row, int num_columns) {
        const int first_unit = warp_id() * SLICE;
        const i64 place = static_cast<i64>(max(row, 0)) * num_columns + first_unit * 64 + 8 * (lane_id() & 3);
#pragma unroll
        for (int j = 0; j < 2 * SLICE; ++j)
            values[j][i] = load_l2_16_if(rows + place + j * 32, row >= 0 && (2 * first_unit + j) * 32 < num_columns);
    }

    // Rows of the batch, or in phase DOWN of their pairs: then waits until they are there.
    __device__ void load_group(const Shared& s, int phase, int group, const u16* rows) {
        const int first = s.first[group] + (lane_id() >> 2), end = s.first[group + 1];
        for (;;) {
#pragma unroll
            for (int i = 0; i < COLUMN_TILES; ++i) {
                const int pair = first + 8 * i < end ? s.pairs[first + 8 * i] : -1;
                if (phase == UP)
                    load(i, rows, pair < 0 ? -1 : pair / TOP_K, UP_COLUMNS);
                else
                    load(i, rows, pair, DOWN_COLUMNS);
            }
            if (phase == UP || is_there()) break;
            look_again();
        }
        __syncwarp();
    }

    __device__ bool is_there() const {
        u32 not_yet = 0;
#pragma unroll
        for (int i = 0; i < COLUMN_TILES; ++i) {
#pragma unroll
            for (int j = 0; j < 2 * SLICE; ++j) {
                const uint4& v = values[j][i];
                not_yet |= halves_not_yet(v.x) | halves_not_yet(v.y) | halves_not_yet(v.z) | halves_not_yet(v.w);
            }
        }
        return not_yet == 0;
    }
};

// `count` items of one group. One warp of SLICES.
DEVICE void multiply_items(const Shared& s, int phase, int count, const Fragments& rows, Stage& stage) {
    const int lane = lane_id(), slice = warp_id(), first_unit = slice * SLICE, units = units_of(phase);
    const u8* const my_words = s.ring + first_unit * UNIT_WORD_BYTES + lane * 16;
    const u8* const my_scales = s.ring + units * UNIT_WORD_BYTES + first_unit * UNIT_SCALE_BYTES + (lane >> 2) * 4;
    float4* const my_partials = s.partials + slice * 32 + lane;
    for (; count > 0; --count) {
        copy_barrier_wait(s.full + stage.number, stage.parity);
        float c[COLUMN_TILES][4] = {};
        const u8* const words = my_words + stage.number * ITEM_BYTES;
        const u8* const scales = my_scales + stage.number * ITEM_BYTES;
#pragma unroll
        for (int u = 0; u < SLICE; ++u) {
            if (EVEN || first_unit + u < units) {
                const uint4 q = *reinterpret_cast<const uint4*>(words + u * UNIT_WORD_BYTES);
                const u32 w = *reinterpret_cast<const u32*>(scales + u * UNIT_SCALE_BYTES);
                multiply_block(c, q.x, q.y, w & MXFP4_FACTORS, rows.values[2 * u]);
                multiply_block(c, q.z, q.w, __funnelshift_l(w, w, 8) & MXFP4_FACTORS, rows.values[2 * u + 1]);
            }
        }
#pragma unroll
        for (int i = 0; i < COLUMN_TILES; ++i)
            my_partials[(stage.number * COLUMN_TILES + i) * SLICES * 32] = {c[i][0], c[i][1], c[i][2], c[i][3]};
        __syncwarp();  // the sums that are stored depend on all that was read, so the copy overtakes nothing
        if (lane == 0) copy_barrier_expect(s.done + stage.number, 0);
        stage.step();
    }
}

// This block's items of a phase. `rows` has those of the first group of phase UP.
DEVICE void multiply(const Shared& s, int phase, const u16* values, Fragments& rows, Stage& stage) {
    const int end = s.end[phase];
    for (int item = s.begin[phase]; item < end;) {
        const int group = group_of(phase, item), stop = min(end, (group + 1) * tiles_of(phase));
        if (phase == DOWN || item > s.begin[UP]) rows.load_group(s, phase, group, values);
        multiply_items(s, phase, stop - item, rows, stage);
        item = stop;
    }
}

// A finisher: every FINISHERSth item of a phase, from the one after `skip` others. `factor(pair)` is what a pair's sums
// are to be multiplied by; `finish(pair, factor, tile, sums, bias)` gets those of rows g and g + 8 of the tile, and
// `refill(n, stage)` asks for item n. Returns how many items of the next phase are to be skipped.
template <int PHASE, class Factor, class Finish, class Refill>
DEVICE int finish_items(const Shared& s, const float* biases, Stage& stage, int skip, Factor factor, Finish finish,
                        Refill refill) {
    constexpr int TILES = PHASE == UP ? UP_TILES : DOWN_TILES;
    const int lane = lane_id(), g = lane >> 2, t = lane & 3, end = s.end[PHASE];
    const int number = (PHASE == UP ? 0 : s.end[UP] - s.begin[UP]) - s.begin[PHASE];  // of item 0
    int item = s.begin[PHASE] + skip;
    while (item < end) {
        const int group = item / TILES, stop = min(end, (group + 1) * TILES);
        const int first = s.first[group], count = s.first[group + 1] - first;
        int pairs[COLUMN_TILES][2];  // of the lane's columns, -1 where there is none
        float factors[COLUMN_TILES][2];
#pragma unroll
        for (int i = 0; i < COLUMN_TILES; ++i) {
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const int column = 8 * i + 2 * t + j;
                pairs[i][j] = column < count ? s.pairs[first + column] : -1;
                factors[i][j] = column < count ? factor(pairs[i][j]) : 0.f;
            }
        }
        const float2* const my_biases = reinterpret_cast<const float2*>(biases) + 8 * s.experts[group] * TILES + g;
        float2 bias = my_biases[8 * (item - group * TILES)];
        for (; item < stop; item += FINISHERS) {
            const int tile = item - group * TILES;
            const float2 next_bias = my_biases[8 * min(tile + FINISHERS, TILES - 1)];
            copy_barrier_wait(s.done + stage.number, stage.parity);
            float4 sums[COLUMN_TILES];
#pragma unroll
            for (int i = 0; i < COLUMN_TILES; ++i) {
                float4 c = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
                for (int slice = 0; slice < SLICES; ++slice) {
                    const float4 part = s.partials[((stage.number * COLUMN_TILES + i) * SLICES + slice) * 32 + lane];
                    c = {c.x + part.x, c.y + part.y, c.z + part.z, c.w + part.w};
                }
                sums[i] = c;
            }
            __syncwarp();
            if (lane == 0) refill(number + item + DEPTH, stage.number);
            __syncwarp();
#pragma unroll
            for (int i = 0; i < COLUMN_TILES; ++i) {
                if (pairs[i][0] >= 0) finish(pairs[i][0], factors[i][0], tile, float2{sums[i].x, sums[i].z}, bias);
                if (pairs[i][1] >= 0) finish(pairs[i][1], factors[i][1], tile, float2{sums[i].y, sums[i].w}, bias);
            }
            stage.skip(FINISHERS);
            bias = next_bias;
        }
    }
    return item - end;
}

// ---- kernels -----------------------------------------------------------------------------------------------------

// Activations that are no longer needed become NOT_YET. `count`: a multiple of 8. MATH_WARPS.
DEVICE void clear(u16* act, int count) {
    const int step = gridDim.x * MATH_WARPS * 32;
    uint4* const words = reinterpret_cast<uint4*>(act);
    for (int i = blockIdx.x * MATH_WARPS * 32 + threadIdx.x; i < count / 8; i += step)
        words[i] = {NOT_YET, NOT_YET, NOT_YET, NOT_YET};
}

// residual + the weighted outputs by rank, and the next norm, of 16 features of one row per half warp.
DEVICE void combine(float* partials, const u8* live, int num_rows, const float* residual, const float* norm,
                    float* residual_out, u16* normed, float* square_sums) {
    constexpr int NUM_FEATURES = UP_COLUMNS;
    const int half = lane_id() >> 4, num_units = num_rows * DOWN_TILES, step = gridDim.x * 2 * WARPS;
    for (int base = blockIdx.x + gridDim.x * 2 * warp_id(); base < num_units; base += step) {
        const int unit = base + gridDim.x * half, row = unit / DOWN_TILES, tile = unit - row * DOWN_TILES;
        const int feature = tile * TILE + (lane_id() & 15);
        const i64 place = static_cast<i64>(row) * NUM_FEATURES + feature;
        float value = 0.f;
        if (unit < num_units) {
            value = residual[place];
            const float scale = norm[feature];
            if (live[row]) {
                u32* const parts =
                    reinterpret_cast<u32*>(partials) + static_cast<i64>(row) * TOP_K * NUM_FEATURES + feature;
                u32 bits[TOP_K];
                for (bool all = false; !all;) {
                    all = true;
#pragma unroll
                    for (int rank = 0; rank < TOP_K; ++rank) bits[rank] = load_l2(parts + rank * NUM_FEATURES);
#pragma unroll
                    for (int rank = 0; rank < TOP_K; ++rank) all &= bits[rank] != NOT_YET;
                    if (!all) look_again();
                }
                float total = 0.f;
#pragma unroll
                for (int rank = 0; rank < TOP_K; ++rank) {
                    total += __uint_as_float(bits[rank]);
                    parts[rank * NUM_FEATURES] = NOT_YET;
                }
                value += total;
            }
            residual_out[place] = value;
            normed[place] = to_bf16(value * scale);
        }
        __syncwarp();
        float square = value * value;
#pragma unroll
        for (int flip = 8; flip > 0; flip >>= 1) square += __shfl_xor_sync(FULL_WARP, square, flip);
        if (unit < num_units && (lane_id() & 15) == 0) square_sums[unit] = square;
    }
}

// rows bf16 [T, H], square_sums [T, NUM_PARTS], logits [T, E], up_bias [E, 2 I] with gate and up alternating, act bf16
// [2, act_rows, TOP_K, I], down_bias [E, H], residual [T, H], norm [H]. Writes residual_out [T, H], normed bf16 [T, H],
// out_square_sums [T, H / 16]; act, partials [T, TOP_K, H] and state are those of `Workspace` in moe.py; factors:
// 2^exponent of the packed experts. With OUTPUTS it writes the outputs of live rows, bf16 [T, TOP_K, H], to normed and
// nothing else, and takes neither weights nor what is added. All blocks must be resident.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    moe(const u16* rows, const float* square_sums, float eps, const float* logits, const u8* live, int num_rows,
        const u8* up_words, const u8* up_scales, const float* up_bias, float up_factor, float limit, u16* act,
        int act_rows, const u8* down_words, const u8* down_scales, const float* down_bias, float down_factor,
        const float* residual, const float* norm, float* residual_out, u16* normed, float* out_square_sums,
        float* partials, u32* state, u8* tables) {
    constexpr int NUM_INNER = DOWN_COLUMNS, NUM_FEATURES = UP_COLUMNS;
    SHARED(u8, shared);
    const Shared s = carve(shared, num_rows, tables);
    const int finisher = warp_id() - MATH_WARPS, g = lane_id() >> 2;
    if (threadIdx.x == MATH_WARPS * 32) init_barriers(s);
    pdl_trigger();
    pdl_wait();

    const auto refill = [&](int n, int stage) {
        ask(s, {up_words, up_scales}, {down_words, down_scales}, n, stage);
    };
    Fragments fragments;
    route(
        s, {logits, square_sums, live, num_rows}, eps, up_factor, state,
        [&] {
            if (warp_id() >= SLICES) return;
            if (num_rows > 1) {
                if (s.begin[UP] < s.end[UP]) fragments.load_group(s, UP, group_of(UP, s.begin[UP]), rows);
                return;
            }
#pragma unroll
            for (int i = 0; i < COLUMN_TILES; ++i) fragments.load(i, rows, 8 * i + g == 0 ? 0 : -1, UP_COLUMNS);
        },
        [&] {
            if (lane_id() == 0)
                for (int stage = finisher; stage < DEPTH; stage += FINISHERS) refill(stage, stage);
            __syncwarp();
        });

    const i64 act_values = static_cast<i64>(act_rows) * TOP_K * NUM_INNER;
    u16* const act_before = act + (*s.turn ^ 1) * act_values;
    act += *s.turn * act_values;
    Stage stage;
    if (finisher < 0) {
        clear(act_before, *s.rows_before * TOP_K * NUM_INNER);
        if (warp_id() < SLICES) {
#pragma unroll 1
            for (int phase = UP; phase <= DOWN; ++phase)
                multiply(s, phase, phase == DOWN ? act : rows, fragments, stage);
        }
    } else {
        if (finisher == FINISHERS - 1 && lane_id() == 0 && atomicInc(state, gridDim.x - 1) == gridDim.x - 1) {
            state[1] = *s.turn ^ 1;  // all blocks know whose turn it is
            state[2] = num_rows;
        }
        __syncwarp();
        stage.skip(finisher);
        const int skip = finish_items<UP>(
            s, up_bias, stage, finisher, [&](int pair) { return s.row_scales[pair / TOP_K]; },
            [&](int pair, float scale, int tile, float2 sums, float2 bias) {
                const float value = swiglu(__fmaf_rn(sums.x, scale, bias.x), __fmaf_rn(sums.y, scale, bias.y), limit);
                act[static_cast<i64>(pair) * NUM_INNER + tile * 8 + g] = to_bf16(value);
            },
            refill);
        finish_items<DOWN>(
            s, down_bias, stage, skip, [&](int pair) { return OUTPUTS ? 1.f : s.weights[pair]; },
            [&](int pair, float weight, int tile, float2 sums, float2 bias) {
                const i64 feature = static_cast<i64>(pair) * NUM_FEATURES + tile * TILE + 2 * g;
                const float2 out = {sums.x * down_factor + bias.x, sums.y * down_factor + bias.y};
                if (OUTPUTS)
                    *reinterpret_cast<u32*>(normed + feature) = pack_bf16(out.x, out.y);
                else
                    *reinterpret_cast<float2*>(partials + feature) = {out.x * weight, out.y * weight};
            },
            refill);
    }
    if (!OUTPUTS) combine(partials, live, num_rows, residual, norm, residual_out, normed, out_square_sums);
}
