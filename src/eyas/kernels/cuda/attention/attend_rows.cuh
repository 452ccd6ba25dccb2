// From the slices of the QKV product to the queries of a piece and the keys and values of its new tokens: sums, norm,
// bias, RoPE, bf16.
//
// Defines: as in attend.cu.
#pragma once

#include "attention/attend_step.cuh"

constexpr int QUERY_TASKS = GROUP * 8 / 32;  // warps for the query heads of one row
constexpr int NUM_HEADS = NUM_KV * GROUP, NUM_FEATURES = (NUM_HEADS + 2 * NUM_KV) * D;
constexpr int SLICES_AT_ONCE = 2, PARTS_AT_ONCE = 6;
constexpr float SCALE = 0.125f * LOG2_E;  // scores come out with base 2

// The product as it comes, and what finishes it.
struct Product {
    const float* partials;
    int num_slices, num_tokens;
    const float* square_sums;
    int num_parts;
    float eps;
    int hidden_size;
    const float *bias, *cosines, *sines;
};

// Where finished rows go: queries as score() reads them, keys and values into shared memory, and into the cache by the
// block that has the row.
struct Finished {
    Queries queries;
    NewRows fresh;
    Cache cache;
    const i64* table;
};

// What 32 lanes of a warp make of the product: four pairs (d, d + 32) of features of a row's query head each; or, of
// its key (lanes 0 .. 7) and value (8 .. 15).
struct Task {
    int row, token, head, feature;  // `feature` of the product, its partner is D / 2 further
    bool is_query, is_value, alive, active;  // live row; lane with features
    float4 low_bias, high_bias, cosine, sine;
};

struct Loaded {
    float4 lows[SLICES_AT_ONCE], highs[SLICES_AT_ONCE];
    float parts[PARTS_AT_ONCE];
};

DEVICE int num_tasks(const Piece& piece) {
    return piece.num_rows * QUERY_TASKS + max(0, piece.new_end - piece.new_begin);
}

// Reads nothing that the kernel before this writes.
DEVICE Task make_task(const Product& product, const Piece& piece, int num_rows, int index) {
    const int lane = lane_id(), quad = lane % 8 * 4, query_tasks = piece.num_rows * QUERY_TASKS;
    Task task = {};
    task.is_query = index < query_tasks;
    task.row = task.is_query ? piece.first_row + index / QUERY_TASKS : piece.new_begin + index - query_tasks;
    task.token = piece.unit.seq * num_rows + task.row;
    task.head = task.is_query ? index % QUERY_TASKS * 4 + lane / 8 : 0;
    task.is_value = !task.is_query && lane / 8 == 1;
    task.alive = index < num_tasks(piece) && (piece.rows.live >> task.row & 1);
    task.active = task.alive && (task.is_query || lane < 16);
    task.feature = quad + D * (task.is_query ? piece.kv * GROUP + task.head
                                             : NUM_HEADS + piece.kv + (task.is_value ? NUM_KV : 0));
    if (task.active && product.bias != nullptr) {
        task.low_bias = read4(product.bias + task.feature);
        task.high_bias = read4(product.bias + task.feature + D / 2);
    }
    task.cosine = make_float4(1.f, 1.f, 1.f, 1.f);
    if (task.active && !task.is_value) {
        const i64 place = static_cast<i64>(piece.rows.first + task.row) * (D / 2) + quad;
        task.cosine = read4(product.cosines + place);
        task.sine = read4(product.sines + place);
    }
    return task;
}

DEVICE const float* slice_of(const Product& product, const Task& task, int slice) {
    return product.partials + (static_cast<i64>(slice) * product.num_tokens + task.token) * NUM_FEATURES + task.feature;
}

DEVICE Loaded load_product(const Product& product, const Task& task) {
    Loaded loaded = {};
    if (task.active) {
#pragma unroll
        for (int i = 0; i < SLICES_AT_ONCE; ++i) {
            if (i >= product.num_slices) break;
            loaded.lows[i] = read4(slice_of(product, task, i));
            loaded.highs[i] = read4(slice_of(product, task, i) + D / 2);
        }
    }
    if (product.square_sums != nullptr && task.alive) {
        const float* const parts = product.square_sums + static_cast<i64>(task.token) * product.num_parts;
#pragma unroll
        for (int i = 0; i < PARTS_AT_ONCE; ++i)
            if (lane_id() + 32 * i < product.num_parts) loaded.parts[i] = parts[lane_id() + 32 * i];
    }
    return loaded;
}

// 1 / the row's root mean square; 1 for rows that are normed already.
DEVICE float row_scale(const Product& product, const Task& task, const Loaded& loaded) {
    if (product.square_sums == nullptr) return 1.f;
    const float* const parts = product.square_sums + static_cast<i64>(task.token) * product.num_parts;
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < PARTS_AT_ONCE; ++i) sum += loaded.parts[i];
#pragma unroll 1
    for (int i = lane_id() + 32 * PARTS_AT_ONCE; i < product.num_parts; i += 32) sum += parts[i];
    return fast_rsqrt(warp_sum(sum) / product.hidden_size + product.eps);
}

DEVICE void turn(float& a, float& b, float scale, float bias_a, float bias_b, float c, float s) {
    const float x = fmaf(a, scale, bias_a), y = fmaf(b, scale, bias_b);
    a = fmaf(-y, s, __fmul_rn(x, c));
    b = fmaf(x, s, __fmul_rn(y, c));
}

// The largest of numbers that 8 lanes share, as the bits of a bf16 without its sign. One warp.
DEVICE u32 largest_of(const u32 (&words)[4]) {
    u32 largest = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) largest = max(largest, max(words[i] & 0x7fffu, words[i] >> 16 & 0x7fffu));
#pragma unroll
    for (int step = 1; step < 8; step *= 2) largest = max(largest, __shfl_xor_sync(FULL_WARP, largest, step));
    return largest;
}

// bf16 in f16: times the power of two that brings the largest to 2^14 .. 2^15, the inverse of which, halved for KEY_UP,
// is returned.
DEVICE float to_f16(u32 (&words)[4]) {
    const u32 exponent = max(largest_of(words) >> 7, 16u);
    const float to_fit = __uint_as_float((268u - exponent) << 23);
#pragma unroll
    for (int i = 0; i < 4; ++i)
        words[i] = pack_f16(from_bf16(words[i] & 0xffff) * to_fit, from_bf16(words[i] >> 16) * to_fit);
    return __uint_as_float((exponent - 15u) << 23);
}

// In the order of the left operand: [tile][16 dimensions][lane][4 words].
DEVICE void put_query(const Queries& queries, int row_head, float4 low, float4 high) {
    const int lane = lane_id();
    u32* const target = queries.words + row_head / 16 * TILE_WORDS + lane % 2 * 128 +
                        (row_head % 8 * 4 + lane % 8 / 2) * 4 + row_head / 8 % 2;
    const float s = SCALE;
    u32 words[4] = {pack_bf16(low.x * s, low.y * s), pack_bf16(low.z * s, low.w * s),
                    pack_bf16(high.x * s, high.y * s), pack_bf16(high.z * s, high.w * s)};
    if (KV_FP8) {
        const float factor = to_f16(words);
        if (lane % 8 == 0) queries.factors[row_head] = factor;
    }
    target[0] = words[0], target[2] = words[1], target[256] = words[2], target[258] = words[3];
}

DEVICE bool finite(u32 pair) { return (pair & 0x7f80u) != 0x7f80u && (pair & 0x7f800000u) != 0x7f800000u; }

// Eight numbers of a row's key or value as the cache has them: four dimensions, four that are D / 2 further, and the
// byte of their power of two.
#if KV_FP8
constexpr int SMALLEST_SCALE = 10, LARGEST_SCALE = 134, BROKEN = 255;  // as in kernels/layouts/fp8_cache.py

struct Entry {
    u32 first, second;
    u8 scale;
};

// The power of two is that of the whole row, which 8 lanes share. Where a key or value has a number that does not fit,
// as in kernels/layouts/fp8_cache.py, the key is NaN and the value 0.
DEVICE Entry make_entry(const Task& task, float4 low, float4 high) {
    const u32 words[4] = {pack_bf16(low.x, low.y), pack_bf16(low.z, low.w), pack_bf16(high.x, high.y),
                          pack_bf16(high.z, high.w)};
    const int exponent = static_cast<int>(largest_of(words) + 0x20 >> 7) - 8;
    if (__any_sync(FULL_WARP, task.active && exponent > LARGEST_SCALE))
        return {task.is_value ? 0u : 0x7f7f7f7fu, task.is_value ? 0u : 0x7f7f7f7fu,
                static_cast<u8>(task.is_value ? SMALLEST_SCALE : BROKEN)};
    const u8 scale = max(exponent, SMALLEST_SCALE);
    const float to_fit = __uint_as_float((254u - scale) << 23);
    auto part = [&](u32 ab, u32 cd) {
        return pack_e4m3(from_bf16(ab & 0xffff) * to_fit, from_bf16(ab >> 16) * to_fit,
                         from_bf16(cd & 0xffff) * to_fit, from_bf16(cd >> 16) * to_fit);
    };
    return {part(words[0], words[1]), part(words[2], words[3]), scale};
}
#else
struct Entry {
    uint2 first, second;
};

// A value that is not finite is written as 0 under a key of NaN.
DEVICE Entry make_entry(const Task& task, float4 low, float4 high) {
    uint2 first = {pack_bf16(low.x, low.y), pack_bf16(low.z, low.w)};
    uint2 second = {pack_bf16(high.x, high.y), pack_bf16(high.z, high.w)};
    const bool good = finite(first.x) && finite(first.y) && finite(second.x) && finite(second.y);
    if (__any_sync(FULL_WARP, task.is_value && !good))
        first.x = first.y = second.x = second.y = task.is_value ? 0u : 0x7fff7fffu;
    return {first, second};
}
#endif

template <class Half>
DEVICE void put_halves(void* row, int eighth, Half first, Half second) {
    reinterpret_cast<Half*>(row)[eighth] = first;
    reinterpret_cast<Half*>(row)[eighth + 8] = second;
}

DEVICE void put_key_value(const Finished& finished, const Piece& piece, const Task& task, float4 low, float4 high) {
    const Entry entry = make_entry(task, low, high);
    if (!task.active) return;
    const int eighth = lane_id() % 8;
    const NewRows& fresh = finished.fresh;
    put_halves((task.is_value ? fresh.values : fresh.keys) + task.row * ROW_BYTES, eighth, entry.first, entry.second);
#if KV_FP8
    if (eighth == 0) (task.is_value ? fresh.value_scales : fresh.key_scales)[task.row] = entry.scale;
#endif
    if (task.row < piece.first_row || task.row >= piece.first_row + piece.num_rows) return;
    const int position = piece.rows.first + task.row;
    const i64 page = finished.table[position / PAGE];
    Element* const cache = task.is_value ? finished.cache.values : finished.cache.keys;
    put_halves(cache + page * PAGE_NUMBERS + (piece.kv * PAGE + position % PAGE) * D, eighth, entry.first, entry.second);
#if KV_FP8
    if (eighth == 0) finished.cache.scales_of(page, piece.kv, task.is_value)[position % PAGE] = entry.scale;
#endif
}

DEVICE void finish(const Product& product, const Finished& finished, const Piece& piece, const Task& task,
                   const Loaded& loaded) {
    if (!task.alive) return;
    const float scale = row_scale(product, task, loaded);
    float4 low = loaded.lows[0], high = loaded.highs[0];
#pragma unroll
    for (int i = 1; i < SLICES_AT_ONCE; ++i)
        if (i < product.num_slices) low = add4(low, loaded.lows[i]), high = add4(high, loaded.highs[i]);
#pragma unroll 1
    for (int i = SLICES_AT_ONCE; i < product.num_slices && task.active; ++i) {
        low = add4(low, read4(slice_of(product, task, i)));
        high = add4(high, read4(slice_of(product, task, i) + D / 2));
    }
    turn(low.x, high.x, scale, task.low_bias.x, task.high_bias.x, task.cosine.x, task.sine.x);
    turn(low.y, high.y, scale, task.low_bias.y, task.high_bias.y, task.cosine.y, task.sine.y);
    turn(low.z, high.z, scale, task.low_bias.z, task.high_bias.z, task.cosine.z, task.sine.z);
    turn(low.w, high.w, scale, task.low_bias.w, task.high_bias.w, task.cosine.w, task.sine.w);
    if (task.is_query)
        put_query(finished.queries, (task.row - piece.first_row) * GROUP + task.head, low, high);
    else
        put_key_value(finished, piece, task, low, high);
}

// All tasks of a piece, dealt to the warps. Waits for the kernel before this once it needs its results; `waited` says
// whether that has been done.
DEVICE void finish_rows(const Product& product, const Finished& finished, const Piece& piece, int num_rows,
                        bool& waited) {
#pragma unroll 1
    for (int index = warp_id(); index < num_tasks(piece) || !waited; index += WARPS) {
        const Task task = make_task(product, piece, num_rows, index);
        if (!waited) {
            pdl_wait();
            pdl_trigger();
            waited = true;
        }
        const Loaded loaded = load_product(product, task);
        finish(product, finished, piece, task, loaded);
    }
}
