// Which experts the rows go to: the top k of a row, and the rows of each expert in groups.
//
// Defines: UP_COLUMNS (of the rows), COLUMN_TILES (of 8 rows in a group), NUM_EXPERTS, TOP_K.
#pragma once

#include "common.cuh"

constexpr int GROUP = 8 * COLUMN_TILES;  // rows of an expert that share an item
constexpr int LOGITS_PER_LANE = (NUM_EXPERTS + 31) / 32;
constexpr int NUM_PARTS = UP_COLUMNS / 16, PARTS_PER_LANE = (NUM_PARTS + 31) / 32;  // of a row's square sum

// In shared memory, or in the device's, as moe_route.cu leaves them.
struct Tables {
    int* begins;           // of all experts: counts of pairs, then where their pairs begin
    int* num_groups;
    int *experts, *first;  // of groups: their expert, where their pairs begin
    float* row_scales;     // [T]: inverse rms times 2^exponent of gate/up
    float* weights;        // [T k]
    u16* pairs;            // [T k]: row * k + rank, by expert
    short* ids;            // [T k]

    __device__ void place_tables(u8* base, int num_rows) {
        const int most_groups = NUM_EXPERTS + num_rows * TOP_K / GROUP;
        begins = reinterpret_cast<int*>(base);
        num_groups = begins + NUM_EXPERTS;
        experts = num_groups + 1;
        first = experts + most_groups;
        row_scales = reinterpret_cast<float*>(first + most_groups + 1);
        weights = row_scales + num_rows;
        pairs = reinterpret_cast<u16*>(weights + num_rows * TOP_K);
        ids = reinterpret_cast<short*>(pairs + (num_rows * TOP_K + 1) / 2 * 2);
    }
};

struct Choice {
    int id;        // of rank lane_id()
    float weight;  // softmax over the chosen
};

// What the rows come with.
struct Rows {
    const float *logits, *square_sums;  // [T, NUM_EXPERTS], [T, NUM_PARTS]
    const u8* live;
    int count;
};

// A row's logits, LOGITS_PER_LANE in each lane.
struct Logits {
    u32 bits[LOGITS_PER_LANE];
    bool is_live;
};

// One warp. Not live where there is no such row.
DEVICE Logits load_logits(const Rows& rows, int row) {
    Logits all = {};
    if (row >= rows.count) return all;
#pragma unroll
    for (int i = 0; i < LOGITS_PER_LANE; ++i) {
        const int id = lane_id() * LOGITS_PER_LANE + i;
        if (id < NUM_EXPERTS) all.bits[i] = load_l2(rows.logits + static_cast<i64>(row) * NUM_EXPERTS + id);
    }
    all.is_live = rows.live[row];
    return all;
}

// The parts of a row's square sum, some in each lane.
struct SquareSum {
    float parts[PARTS_PER_LANE];

    __device__ void load(const Rows& rows, int row) {
#pragma unroll
        for (int i = 0; i < PARTS_PER_LANE; ++i) {
            const int part = lane_id() + 32 * i;
            const bool is_there = row < rows.count && part < NUM_PARTS;
            parts[i] = is_there ? rows.square_sums[static_cast<i64>(row) * NUM_PARTS + part] : 0.f;
        }
    }

    __device__ float inverse_rms(float eps) const {
        float sum = 0.f;
#pragma unroll
        for (int i = 0; i < PARTS_PER_LANE; ++i) sum += parts[i];
        return fast_rsqrt(warp_sum(sum) / UP_COLUMNS + eps);
    }
};

// The experts of a row by falling logit, the lower id first where logits are equal. One warp; lanes of rank < TOP_K.
DEVICE Choice choose(const Logits& logits) {
    u32 keys[LOGITS_PER_LANE];  // order of floats as order of integers; 0 is below all
#pragma unroll
    for (int i = 0; i < LOGITS_PER_LANE; ++i) {
        const u32 bits = logits.bits[i];
        const bool is_there = lane_id() * LOGITS_PER_LANE + i < NUM_EXPERTS;
        keys[i] = is_there ? max(bits >> 31 ? ~bits : bits | 0x80000000u, 1u) : 0;
    }
    Choice mine = {0, 0.f};
    float best = 0.f, sum = 0.f;
#pragma unroll
    for (int rank = 0; rank < TOP_K; ++rank) {
        u32 key = keys[0];
        int which = 0;
#pragma unroll
        for (int i = 1; i < LOGITS_PER_LANE; ++i) {
            which = keys[i] > key ? i : which;
            key = max(keys[i], key);
        }
        const u32 top = __reduce_max_sync(FULL_WARP, key);
        const int winner = __ffs(__ballot_sync(FULL_WARP, key == top)) - 1;
        const int id = winner * LOGITS_PER_LANE + __shfl_sync(FULL_WARP, which, winner);
        const float logit = __uint_as_float(top >> 31 ? top & 0x7fffffffu : ~top);
        if (rank == 0) best = logit;
        const float weight = fast_exp(logit - best);
        sum += weight;
        if (lane_id() == rank) mine = {id, weight};
#pragma unroll
        for (int i = 0; i < LOGITS_PER_LANE; ++i)
            if (lane_id() == winner && i == which) keys[i] = 0;
    }
    mine.weight *= fast_reciprocal(sum);
    return mine;
}

// Cuts the experts that have rows into groups, in ascending order, and says where their pairs begin. One warp;
// s.begins holds the counts.
DEVICE void list_groups(const Tables& s) {
    int counts[LOGITS_PER_LANE], mine = 0;  // groups in the high half, pairs in the low half
#pragma unroll
    for (int i = 0; i < LOGITS_PER_LANE; ++i) {
        const int id = lane_id() * LOGITS_PER_LANE + i;
        counts[i] = id < NUM_EXPERTS ? s.begins[id] : 0;
        mine += (counts[i] + GROUP - 1) / GROUP << 16 | counts[i];
    }
    int end = mine;  // inclusive sum over the lanes
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const int below = __shfl_up_sync(FULL_WARP, end, step);
        if (lane_id() >= step) end += below;
    }
    int group = (end - mine) >> 16, begin = (end - mine) & 0xffff;
#pragma unroll
    for (int i = 0; i < LOGITS_PER_LANE; ++i) {
        const int id = lane_id() * LOGITS_PER_LANE + i;
        if (counts[i] > 0) s.begins[id] = begin;
        for (int at = 0; at < counts[i]; at += GROUP, ++group) {
            s.experts[group] = id;
            s.first[group] = begin + at;
        }
        begin += counts[i];
    }
    if (lane_id() == 31) {
        s.first[group] = begin;
        *s.num_groups = group;
    }
    __syncwarp();
}
