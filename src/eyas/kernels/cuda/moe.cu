// The mixture of experts for a few rows: each distinct expert is read once, whatever the number of rows.
//
// Every block finds the top k of all rows from the logits, so all agree on the list of distinct experts; (expert, tile
// of 16 matrix rows) in that order are the items, of gate/up and then of down, and each block takes one contiguous
// share of both. One warp asks for the items in bulk copies, DEPTH ahead, and does not stop between the two matrices,
// where all blocks wait for each other's activations. 15 warps multiply: warp s owns SLICE units of 64 columns, keeps
// its fragments of the rows (B) while the expert stays the same, unpacks the weights (kernels/mxfp4_layout.py) and
// leaves a partial sum in shared memory. The one warp then adds the slices in order and finishes the item, and its
// place in the ring is free. More than 8 rows of one expert: more passes over the item while it is in shared memory.
//
// Row invariance: an output is a sum of slices in ascending order, each one chain of matrix instructions in ascending
// columns; the borders follow from the number of columns alone.
//
// Defines: UP_COLUMNS, DOWN_COLUMNS (of the matrices, multiples of 32), DEPTH (items a block has under way),
// NUM_EXPERTS, TOP_K.
#include "moe.cuh"

// ---- the stream of items -----------------------------------------------------------------------------------------

// Where a warp stands in the ring; one role's parities mean its current phase, the other's one bit for each stage.
struct Place {
    int stage;
    u32 parities;
};

// One warp: the share of this block of the items of both phases, so that all blocks have the same costs.
DEVICE void divide(const Shared& s) {
    const int distinct = *s.num_distinct, total = s.costs[distinct];
    const int tiles[2] = {s.phases[UP].num_tiles, s.phases[DOWN].num_tiles};
    int targets[4], d[4] = {-1, -1, -1, -1};  // the last expert that begins at or below the target
#pragma unroll
    for (int i = 0; i < 4; ++i) targets[i] = total * tiles[i >> 1] * (blockIdx.x + (i & 1)) / gridDim.x;
    for (int base = 0; base < distinct; base += 32) {
        const int index = base + lane_id(), cost = index < distinct ? s.costs[index] : 0;
#pragma unroll
        for (int i = 0; i < 4; ++i)
            d[i] += __popc(__ballot_sync(FULL_WARP, index < distinct && cost * tiles[i >> 1] <= targets[i]));
    }
    int items[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int begin = s.costs[max(d[i], 0)], cost = s.costs[max(d[i], 0) + 1] - begin;
        items[i] = d[i] < 0 ? 0 : d[i] * tiles[i >> 1] + (targets[i] - begin * tiles[i >> 1]) / cost;
    }
    if (lane_id() == 0) {
        s.phases[UP].begin = items[0], s.phases[UP].end = items[1];
        s.phases[DOWN].begin = items[2], s.phases[DOWN].end = items[3];
    }
    __syncwarp();
}

// The items of both phases as they are asked for. All lanes of a warp keep the same; one asks.
struct Stream {
    const u8 *words, *scales;  // of the next item
    int phase, d, left;        // its expert; items up to the expert's last

    __device__ void find(const Shared& s, int item) {
        const Phase& p = s.phases[phase];
        d = item / p.num_tiles;
        left = min(p.end, (d + 1) * p.num_tiles) - item;
        const i64 tile = static_cast<i64>(s.experts[d]) * p.num_tiles + (item - d * p.num_tiles);
        words = p.words + tile * p.units * UNIT_WORD_BYTES;
        scales = p.scales + tile * p.units * UNIT_SCALE_BYTES;
    }

    __device__ void start(const Shared& s) {
        phase = s.phases[UP].begin < s.phases[UP].end ? UP : DOWN;
        left = 0;
        if (s.phases[phase].begin < s.phases[phase].end) find(s, s.phases[phase].begin);
    }

    __device__ void ask(const Shared& s, int stage) {
        if (left == 0) return;
        const int units = EVEN || phase == UP ? UP_UNITS : DOWN_UNITS;
        const int word_bytes = units * UNIT_WORD_BYTES, scale_bytes = units * UNIT_SCALE_BYTES;
        if (lane_id() == 0) {
            u8* const place = s.ring + stage * ITEM_BYTES;
            u64* const full = s.full + stage;
            copy_barrier_expect(full, word_bytes + scale_bytes);
            copy_bulk(place, words, word_bytes, full);
            copy_bulk(place + word_bytes, scales, scale_bytes, full);
        }
        __syncwarp();
        words += word_bytes;
        scales += scale_bytes;
        if (--left > 0) return;
        const int next = (d + 1) * s.phases[phase].num_tiles;
        if (next < s.phases[phase].end) {
            find(s, next);
        } else if (phase == UP && s.phases[DOWN].begin < s.phases[DOWN].end) {
            phase = DOWN;
            find(s, s.phases[DOWN].begin);
        }
    }
};

DEVICE void init_barriers(const Shared& s) {
    for (int i = 0; i < DEPTH; ++i) {
        copy_barrier_init(s.full + i, 1);
        copy_barrier_init(s.done + i, SLICES);
    }
    copy_barrier_fence();
}

// ---- multiplying -------------------------------------------------------------------------------------------------

// c += the 16 x 32 weights of two words times a lane's 8 values of the rows.
DEVICE void multiply_block(float (&c)[4], u32 low_row, u32 high_row, u32 factors, const uint4& b) {
    constexpr u32 CODE = 0x81C081C0u, SIGN_EXPONENT = 0x81808180u, MANTISSA = 0x00400040u;
    const auto pair = [](u32 q, int p) {
        if (p == 0) return q & CODE;
        if (p == 1) return __funnelshift_r(q, q, 4) & CODE;
        if (p == 2) return (q << 6) & CODE;
        return (__funnelshift_r(q, q, 6) & SIGN_EXPONENT) | ((q << 2) & MANTISSA);
    };
    u32 a[4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int p = 0; p < 2; ++p) {
            a[2 * p] = mul_bf16x2_low(pair(low_row, 2 * half + p), factors);
            a[2 * p + 1] = mul_bf16x2_high(pair(high_row, 2 * half + p), factors);
        }
        mma_bf16(c, a, half ? b.z : b.x, half ? b.w : b.y);
    }
}


// One warp of SLICES. `rows`: of the batch, or in phase DOWN of their pairs.
DEVICE void multiply(const Shared& s, int phase, int num_tiles, const u16* rows, Place& place) {
    constexpr u32 FACTORS = 0x7F807F80u;
    const int lane = lane_id(), g = lane >> 2, t = lane & 3;
    const int slice = warp_id(), first_unit = slice * SLICE;
    const int units = phase == DOWN ? DOWN_UNITS : UP_UNITS, num_columns = phase == DOWN ? DOWN_COLUMNS : UP_COLUMNS;
    const u8* const my_words = s.ring + first_unit * UNIT_WORD_BYTES + lane * 16;
    const u8* const my_scales = s.ring + units * UNIT_WORD_BYTES + first_unit * UNIT_SCALE_BYTES + g * 4;
    float4* const my_partials = s.partials + slice * 32 + lane;
    const int end = s.phases[phase].end;
    for (int item = s.phases[phase].begin; item < end;) {
        const int d = item / num_tiles, stop = min(end, (d + 1) * num_tiles);
        const int first = s.first[d], count = s.first[d + 1] - first;
        uint4 b[2 * SLICE];
        const auto load_rows = [&](int pass) {
            const bool valid = pass + g < count;
            int row = valid ? s.pairs[first + pass + g] : 0;
            if (phase == UP) row /= TOP_K;
            const u16* const values = rows + static_cast<i64>(row) * num_columns + first_unit * 64 + 8 * t;
#pragma unroll
            for (int j = 0; j < 2 * SLICE; ++j)
                b[j] = load_l2_16_if(values + j * 32, valid && (2 * first_unit + j) * 32 < num_columns);
        };
        load_rows(0);
        for (; item < stop; ++item) {
            copy_barrier_wait(s.full + place.stage, place.parities);
            for (int pass = 0;;) {
                float c[4] = {0.f, 0.f, 0.f, 0.f};
                const u8* const words = my_words + place.stage * ITEM_BYTES;
                const u8* const scales = my_scales + place.stage * ITEM_BYTES;
#pragma unroll
                for (int u = 0; u < SLICE; ++u) {
                    if (EVEN || first_unit + u < units) {
                        const uint4 q = *reinterpret_cast<const uint4*>(words + u * UNIT_WORD_BYTES);
                        const u32 w = *reinterpret_cast<const u32*>(scales + u * UNIT_SCALE_BYTES);
                        multiply_block(c, q.x, q.y, w & FACTORS, b[2 * u]);
                        multiply_block(c, q.z, q.w, __funnelshift_l(w, w, 8) & FACTORS, b[2 * u + 1]);
                    }
                }
                my_partials[place.stage * SLICES * 32] = {c[0], c[1], c[2], c[3]};
                __syncwarp();  // no copy_bulk_fence(): the sums that are stored depend on all that was read
                if (lane == 0) copy_barrier_expect(s.done + place.stage, 0);
                if (count <= COLUMNS) break;
                const bool is_last = pass + COLUMNS >= count;
                if (!is_last) named_barrier(1, (SLICES + 1) * 32);  // until the partial sums are read
                pass = is_last ? 0 : pass + COLUMNS;
                load_rows(pass);
                if (is_last) break;
            }
            if (++place.stage == DEPTH) place = {0, place.parities ^ 1};
        }
    }
}

// The last warp. `finish(expert, tile, pair)` for the pairs of a lane's two columns, -1 where there is none, returns a
// function of the lane's sums (row g, column 2t), (g, 2t+1), (g+8, 2t), (g+8, 2t+1). `n`: items finished before.
template <class Finish>
DEVICE void finish_items(const Shared& s, const Phase& phase, Place& place, Stream& stream, Finish finish) {
    const int lane = lane_id(), t = lane & 3, num_tiles = phase.num_tiles, end = phase.end;
    for (int item = phase.begin; item < end;) {
        const int d = item / num_tiles, stop = min(end, (d + 1) * num_tiles);
        const int first = s.first[d], count = s.first[d + 1] - first, expert = s.experts[d];
        for (; item < stop; ++item) {
            for (int pass = 0; pass < count; pass += COLUMNS) {
                int pair[2];
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const int column = pass + 2 * t + i;
                    pair[i] = column < count ? s.pairs[first + column] : -1;
                }
                const auto last_step = finish(expert, item - d * num_tiles, pair);
                copy_barrier_wait(s.done + place.stage, place.parities >> place.stage & 1);
                place.parities ^= 1u << place.stage;
                float4 c = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
                for (int slice = 0; slice < SLICES; ++slice) {
                    const float4 part = s.partials[(place.stage * SLICES + slice) * 32 + lane];
                    c = {c.x + part.x, c.y + part.y, c.z + part.z, c.w + part.w};
                }
                if (pass + COLUMNS < count) {
                    named_barrier(1, (SLICES + 1) * 32);
                } else {
                    __syncwarp();
                    stream.ask(s, place.stage);
                }
                last_step(c);
            }
            if (++place.stage == DEPTH) place.stage = 0;
        }
    }
}

// ---- kernels -----------------------------------------------------------------------------------------------------

DEVICE float swiglu(float gate, float up, float limit) {
    gate = gate > limit ? limit : gate;  // NaN stays, which fminf would hide
    up = up > limit ? limit : up < -limit ? -limit : up;
    return gate * fast_reciprocal(1.f + fast_exp(-SWIGLU_ALPHA * gate)) * (up + 1.f);
}

// residual + the weighted outputs by rank, and the next norm, of 16 features of one row per half warp.
DEVICE void combine(const float* partials, const u8* live, int num_rows, const float* residual, const float* norm,
                    float* residual_out, u16* normed, float* square_sums, int num_tiles) {
    const int half = lane_id() >> 4, num_features = num_tiles * TILE;
    const int num_units = num_rows * num_tiles, step = gridDim.x * 2 * WARPS;
    for (int base = blockIdx.x + gridDim.x * 2 * warp_id(); base < num_units; base += step) {
        const int unit = base + gridDim.x * half, row = unit / num_tiles, tile = unit - row * num_tiles;
        const int feature = tile * TILE + (lane_id() & 15);
        const i64 place = static_cast<i64>(row) * num_features + feature;
        float value = 0.f;
        if (unit < num_units) {
            value = residual[place];
            if (live[row]) {
                float total = 0.f;
#pragma unroll
                for (int rank = 0; rank < TOP_K; ++rank) {
                    const float* const part = partials + (static_cast<i64>(row) * TOP_K + rank) * num_features + feature;
                    total += __uint_as_float(load_l2(part));
                }
                value += total;
            }
            residual_out[place] = value;
            normed[place] = to_bf16(value * norm[feature]);
        }
        float square = value * value;
#pragma unroll
        for (int flip = 8; flip > 0; flip >>= 1) square += __shfl_xor_sync(FULL_WARP, square, flip);
        if (unit < num_units && (lane_id() & 15) == 0) square_sums[unit] = square;
    }
}

// rows bf16 [T, H], square_sums [T, num_parts], logits [T, E], up_bias [E, 2 I] with gate and up alternating, act bf16
// [T, TOP_K, I], down_bias [E, H], residual [T, H], norm [H]; up_tiles = 2 I / 16, down_tiles = H / 16. Writes act (not
// of dead rows), residual_out [T, H], normed bf16 [T, H], out_square_sums [T, H / 16]; partials [T, TOP_K, H] and the
// barrier (0 at first) are its own; factors: 2^exponent of the packed experts. All blocks must be resident.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    moe(const u16* rows, const float* square_sums, int num_parts, float eps, const float* logits, const u8* live,
        int num_rows, const u8* up_words, const u8* up_scales, const float* up_bias, int up_tiles, float up_factor,
        float limit, u16* act, const u8* down_words, const u8* down_scales, const float* down_bias, int down_tiles,
        float down_factor, const float* residual, const float* norm, float* residual_out, u16* normed,
        float* out_square_sums, float* partials, u32* barrier) {
    SHARED(u8, shared);
    const Shared s = carve(shared, num_rows);
    const bool is_last_warp = warp_id() == MATH_WARPS;
    if (is_last_warp && lane_id() == 0) {
        init_barriers(s);
        s.phases[UP] = {up_words, up_scales, UP_UNITS, up_tiles, 0, 0};
        s.phases[DOWN] = {down_words, down_scales, DOWN_UNITS, down_tiles, 0, 0};
    }
    __syncwarp();
    pdl_trigger();
    pdl_wait();

    Stream stream;
    route(
        s, logits, live, num_rows,
        [&] {
            divide(s);
            stream.start(s);
#pragma unroll 1
            for (int stage = 0; stage < DEPTH; ++stage) stream.ask(s, stage);
        },
        [&] {
            for (int row = warp_id(); row < num_rows; row += MATH_WARPS) {
                const float* const parts = square_sums + static_cast<i64>(row) * num_parts;
                float sum = 0.f;
#pragma unroll 6
                for (int i = lane_id(); i < num_parts; i += 32) sum += parts[i];
                sum = warp_sum(sum);
                if (lane_id() == 0) s.row_scales[row] = fast_rsqrt(sum / UP_COLUMNS + eps) * up_factor;
            }
        });

    Place place = {0, 0};
    constexpr int WORKERS = (SLICES + 1) * 32;
    if (warp_id() < SLICES) {
#pragma unroll 1
        for (int phase = UP; phase <= DOWN; ++phase) {
            if (phase == DOWN) named_barrier(2, WORKERS);  // all activations are there
            multiply(s, phase, phase == DOWN ? down_tiles : up_tiles, phase == DOWN ? act : rows, place);
        }
    } else if (is_last_warp) {
        const int g = lane_id() >> 2, num_inner = up_tiles * 8, num_features = down_tiles * TILE;
        finish_items(s, s.phases[UP], place, stream, [&](int expert, int tile, const int(&pair)[2]) {
            const int feature = tile * 8 + g;
            const i64 at = 2 * (static_cast<i64>(expert) * num_inner + feature);
            const float2 b = *reinterpret_cast<const float2*>(up_bias + at);
            const int first = pair[0], second = pair[1];
            const float first_scale = first < 0 ? 0.f : s.row_scales[first / TOP_K];
            const float second_scale = second < 0 ? 0.f : s.row_scales[second / TOP_K];
            return [=](const float4& c) {
                const float x = swiglu(c.x * first_scale + b.x, c.z * first_scale + b.y, limit);
                const float y = swiglu(c.y * second_scale + b.x, c.w * second_scale + b.y, limit);
                if (first >= 0) act[static_cast<i64>(first) * num_inner + feature] = to_bf16(x);
                if (second >= 0) act[static_cast<i64>(second) * num_inner + feature] = to_bf16(y);
            };
        });
        __syncwarp();
        if (lane_id() == 0) grid_barrier(barrier);
        named_barrier(2, WORKERS);
        finish_items(s, s.phases[DOWN], place, stream, [&](int expert, int tile, const int(&pair)[2]) {
            const int feature = tile * TILE + 2 * g;
            const i64 at = static_cast<i64>(expert) * num_features + feature;
            const float2 b = *reinterpret_cast<const float2*>(down_bias + at);
            const int first = pair[0], second = pair[1];
            const float first_weight = first < 0 ? 0.f : s.weights[first];
            const float second_weight = second < 0 ? 0.f : s.weights[second];
            return [=](const float4& c) {
                const auto put = [&](int pair, float x, float y) {
                    if (pair < 0) return;
                    *reinterpret_cast<float2*>(partials + static_cast<i64>(pair) * num_features + feature) = {x, y};
                };
                put(first, (c.x * down_factor + b.x) * first_weight, (c.z * down_factor + b.y) * first_weight);
                put(second, (c.y * down_factor + b.x) * second_weight, (c.w * down_factor + b.y) * second_weight);
            };
        });
        __syncwarp();
    }
    if (is_last_warp && lane_id() == 0) grid_barrier(barrier);
    __syncthreads();
    combine(partials, live, num_rows, residual, norm, residual_out, normed, out_square_sums, down_tiles);
}
