// Causal attention of prompt rows over the pages of their sequences, on Hopper's matrix instruction of a warpgroup.
//
// A block has WARPGROUPS warpgroups of 64 rows, POSITIONS positions times the GROUP query heads of one key/value head,
// which share the stages of keys and values that other warps bring. A warpgroup's scores of the next keys are under way
// while it weighs these, and so is the product with the values before (Shah et al., "FlashAttention-3", 2024).
//
// Keys come in blocks at absolute multiples of BLOCK and a lane adds its weights in their order, so a row's bits depend
// on its own position and keys alone: not on the cuts of a prompt, nor on the rows beside it. Sums are multiplied
// by 1 where a row's peak stays, so that a warp may leave that out.
//
// Keys and values in 8 bits (KV_FP8, kernels/layouts/fp8_cache.py) are bf16 in a stage, the numbers that they mean.
//
// Defines: GROUP, NUM_KV, SINKS, KV_FP8, WARPGROUPS (1 to 3), DEPTH (stages, at least PLACES), PLACES (blocks of bytes
// under way in 8 bits).
#include "attention/pages.cuh"
#include "wgmma.cuh"

constexpr int BLOCK = 64, ROWS = 64, POSITIONS = ROWS / GROUP;
constexpr int HALF_BYTES = BLOCK * D * 2, STAGE_BYTES = 2 * HALF_BYTES;  // keys, then values
constexpr int MATH_WARPS = 4 * WARPGROUPS, OTHER_WARPS = 4, THREADS = 32 * (MATH_WARPS + OTHER_WARPS);
// Of a thread: what others give back of a launch's registers, those that multiply take. In 8 bits that leaves three
// warpgroups 152, with which ptxas has each product wait for the one before: still faster than widening with 32.
constexpr int MOST_REGISTERS = 232, COPY_REGISTERS = KV_FP8 ? 56 : 32;
constexpr int LAUNCH_REGISTERS = WARPGROUPS == 1 ? MOST_REGISTERS : 65536 / THREADS / 8 * 8;
constexpr int SHARED_REGISTERS = (LAUNCH_REGISTERS * THREADS / 32 - COPY_REGISTERS * OTHER_WARPS) / MATH_WARPS / 8 * 8;
constexpr int REGISTERS = SHARED_REGISTERS < MOST_REGISTERS ? SHARED_REGISTERS : MOST_REGISTERS;
constexpr int PAGES = BLOCK / PAGE;
// Of a block in 8 bits: keys, values, the bytes of their powers of two; warps that write them to stages.
constexpr int BLOCK_BYTES = 2 * BLOCK * (D + 1), WIDENING_WARPS = OTHER_WARPS - 1;
constexpr float NEVER = -1e30f;  // not -inf, whose difference with itself is NaN
static_assert(ROWS % GROUP == 0 && BLOCK % POSITIONS == 0 && DEPTH >= PLACES, "");

struct Shared {
    u8* stages;                         // [DEPTH][STAGE_BYTES]
    u64 *there, *full, *empty, *taken;  // copied, of stages or places; seen by products; read, of stages; of places

    __device__ u8* place(int number) const { return stages + DEPTH * STAGE_BYTES + number * BLOCK_BYTES; }  // in 8 bits
};

DEVICE Shared carve(u8* base) {
    constexpr int BYTES = DEPTH * STAGE_BYTES + KV_FP8 * PLACES * BLOCK_BYTES;
    u64* const barriers = reinterpret_cast<u64*>(base + BYTES);
    return {base, barriers, barriers + DEPTH, barriers + 2 * DEPTH, barriers + 3 * DEPTH};
}

// The rows of a block, of one sequence and one key/value head.
struct Work {
    i64 first_row;                 // of the sequence's rows in q and out
    int kv_head, first, num_rows;  // position of the first of these rows, and how many they are
    int start;                     // position of the first warpgroup's first row

    // Keys from here on are seen by no row of the block.
    __device__ int end() const { return max(min(start + WARPGROUPS * POSITIONS, first + num_rows), 1); }
    __device__ int num_blocks() const { return (end() + BLOCK - 1) / BLOCK; }
};

// ---- keys and values ---------------------------------------------------------------------------------------------

// The pages of a sequence in order, by way of a warp's registers.
struct Pages {
    const i64* table;
    int count, now, later;  // ids at column .. column + 31, a lane each, and behind them

    __device__ Pages(const i64* table, int count) : table(table), count(count), now(0), later(read(0)) {}

    __device__ int read(int column) const { return static_cast<int>(table[min(column + lane_id(), count - 1)]); }

    // Before the pages of each block, in order.
    __device__ void go_to(int block) {
        if (block * PAGES % 32 != 0) return;
        now = later;
        later = read(block * PAGES + 32);
    }

    __device__ i64 operator[](int column) const { return __shfl_sync(FULL_WARP, now, column % 32); }
};

// One warp for keys, one for values: rows of 128 bytes whose piece p of 16 bytes goes to p ^ (row & 7), see wgmma.cuh.
DEVICE void bring(const Shared& s, const u16* cache, Pages pages, const Work& work, int half) {
    const int lane = lane_id(), piece = lane % 8, row = lane / 8, end = work.end();  // and every fourth row after it
    const u16* const mine = cache + (work.kv_head * PAGE + row) * D + piece * 8;
    u8* const targets[2] = {s.stages + half * HALF_BYTES + row * 128 + (piece ^ row) * 16,
                            s.stages + half * HALF_BYTES + row * 128 + (piece ^ row ^ 4) * 16};
    Place<DEPTH> place;
#pragma unroll 1
    for (int block = 0; block < work.num_blocks(); ++block, place.step()) {
        pages.go_to(block);
        if (block >= DEPTH) copy_barrier_wait(s.empty + place.number, place.parity ^ 1);
        __syncwarp();
#pragma unroll
        for (int p = 0; p < PAGES; ++p) {
            const u16* const from = mine + pages[block * PAGES + p] * PAGE_NUMBERS;
#pragma unroll
            for (int i = 0; i < PAGE; i += 4) {
                u8* const to = targets[i / 4 % 2] + place.number * STAGE_BYTES + (p * PAGE + i) * 128;
                copy_async_16(to, from + i * D, block * BLOCK + p * PAGE + i + row < end);
            }
        }
        copy_async_arrive(s.there + place.number);
    }
}

// In 8 bits one warp copies keys, values and their powers of two as they are.
DEVICE void bring_bytes(const Shared& s, const u8* keys, const u8* values, const u8* scales, Pages pages,
                        const Work& work) {
    const int lane = lane_id(), row = lane / 4, end = work.end();  // and every eighth row after it
    const i64 mine = (work.kv_head * PAGE + row) * D + lane % 4 * 16;
    const u8* const my_scales = scales + (2 * work.kv_head + lane / PAGES) * PAGE;  // of keys, or values: 2 * PAGES lanes
    Place<PLACES> place;
#pragma unroll 1
    for (int block = 0; block < work.num_blocks(); ++block, place.step()) {
        pages.go_to(block);
        if (block >= PLACES) copy_barrier_wait(s.taken + place.number, place.parity ^ 1);
        __syncwarp();
        u8* const to = s.place(place.number) + lane * 16;
#pragma unroll
        for (int p = 0; p < PAGES; ++p) {
            const i64 from = mine + pages[block * PAGES + p] * PAGE_NUMBERS;
#pragma unroll
            for (int i = 0; i < PAGE; i += 8) {
                const bool is_seen = block * BLOCK + p * PAGE + i + row < end;
                copy_async_16(to + (p * PAGE + i) * D, keys + from + i * D, is_seen);
                copy_async_16(to + (BLOCK + p * PAGE + i) * D, values + from + i * D, is_seen);
            }
        }
        const i64 page = pages[block * PAGES + lane % PAGES];
        if (lane < 2 * PAGES) copy_async_16(to + 2 * BLOCK * D, my_scales + page * (2 * NUM_KV * PAGE));
        copy_async_arrive(s.there + place.number);
    }
}

// The others write them to the stages as bf16, eight rows at a time. Each in turn has them once more than others. A
// power of two of 255 makes NaN of a key, which is broken, and a number of a value, which was never written.
DEVICE void widen(const Shared& s, const Work& work, int warp) {
    constexpr int STRIDE = 8 * WIDENING_WARPS, TIMES = (2 * BLOCK + STRIDE - 1) / STRIDE;
    const int lane = lane_id(), piece = lane % 4, row = lane / 4;
    int turn = warp;  // 0: the one with more
    Place<PLACES> from;
    Place<DEPTH> to;
#pragma unroll 1
    for (int block = 0; block < work.num_blocks(); ++block, from.step(), to.step()) {
        copy_barrier_wait(s.there + from.number, from.parity);
        if (block >= DEPTH) copy_barrier_wait(s.empty + to.number, to.parity ^ 1);
        const u8* const bytes = s.place(from.number) + turn * 8 * D + lane * 16;
        const u8* const powers = s.place(from.number) + 2 * BLOCK * D + turn * 8 + row;
        u8* const stage = s.stages + to.number * STAGE_BYTES + (turn * 8 + row) * 128;
        uint4 of_16[TIMES];
        u32 factors[TIMES];
#pragma unroll
        for (int i = 0; i < TIMES; ++i) {
            if (turn * 8 + i * STRIDE >= 2 * BLOCK) continue;
            of_16[i] = *reinterpret_cast<const uint4*>(bytes + i * STRIDE * D);
            // The power of two in bf16, times the 2^120 that widen_e4m3 leaves out.
            const u32 most = turn * 8 + i * STRIDE < BLOCK ? 0x7fffu : 0x7f00u;
            factors[i] = min((powers[i * STRIDE] + 120u) << 7, most) * 0x10001u;
        }
#pragma unroll
        for (int i = 0; i < TIMES; ++i) {
            if (turn * 8 + i * STRIDE >= 2 * BLOCK) continue;
            const auto two = [&](u32 a, u32 low) { return mul_bf16x2(widen_e4m3(a, a, low, low + 1), factors[i]); };
            const auto eight = [&](u32 a, u32 b) { return uint4{two(a, 0), two(a, 2), two(b, 0), two(b, 2)}; };
            u8* const target = stage + i * STRIDE * 128;
            *reinterpret_cast<uint4*>(target + (2 * piece ^ row) * 16) = eight(of_16[i].x, of_16[i].y);
            *reinterpret_cast<uint4*>(target + (2 * piece + 1 ^ row) * 16) = eight(of_16[i].z, of_16[i].w);
        }
        async_fence();
        __syncwarp();
        if (lane == 0) copy_barrier_expect(s.full + to.number, 0), copy_barrier_expect(s.taken + from.number, 0);
        turn = turn == 0 ? WIDENING_WARPS - 1 : turn - 1;
    }
}

// One warp, which has no copies under way that a fence might wait for.
DEVICE void show(const Shared& s, const Work& work) {
    Place<DEPTH> place;
#pragma unroll 1
    for (int block = 0; block < work.num_blocks(); ++block, place.step()) {
        copy_barrier_wait(s.there + place.number, place.parity);
        async_fence();
        __syncwarp();
        if (lane_id() == 0) copy_barrier_expect(s.full + place.number, 0);
    }
}

// ---- rows --------------------------------------------------------------------------------------------------------

// Of a warp's 16 rows a lane has rows lane / 4 and that + 8, h = 0 and 1: of scores and sums, number i belongs to
// h = i / 2 % 2 and to column i / 4 * 8 + lane % 4 * 2 + i % 2.
struct Attention {
    const Shared& s;
    float scale;              // includes log2(e)
    u32 q[4][4], p[4][4];     // operands: queries, weights
    float sums[32];
    float peak[2], total[2];  // in powers of 2; the total of the lane's own weights
    WgmmaRows rows;
    Place<DEPTH> ahead;       // stage of the scores that are asked for next
    int number;               // and of those asked for last

    __device__ __forceinline__ void wait_for_keys() { copy_barrier_wait(s.full + ahead.number, ahead.parity); }

    __device__ __forceinline__ void ask_scores(float (&scores)[32]) {
        wgmma_fence();
        const int bytes = ahead.number * STAGE_BYTES;
        wgmma_first(scores, q[0], wgmma_rows(rows, bytes, 0));
#pragma unroll
        for (int i = 1; i < 4; ++i) wgmma(scores, q[i], wgmma_rows(rows, bytes, i));
        wgmma_commit();
        ahead.step();
    }

    // Scores become weights, which `added` counts. `last`: the lane's last column that is seen, by h.
    template <bool MASKED>
    __device__ __forceinline__ void weigh(float (&scores)[32], float (&added)[2], const int (&last)[2]) {
        if constexpr (MASKED) {
#pragma unroll
            for (int i = 0; i < 32; ++i)
                if (i / 4 * 8 + i % 2 > last[i / 2 % 2]) scores[i] = __uint_as_float(0xff800000u);
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float most = fmaxf(scores[2 * h], scores[2 * h + 1]);
#pragma unroll
            for (int i = 2 * h + 4; i < 32; i += 4) most = fmaxf(most, fmaxf(scores[i], scores[i + 1]));
            most = fmaxf(most, __shfl_xor_sync(FULL_WARP, most, 1));
            most = fmaxf(most, __shfl_xor_sync(FULL_WARP, most, 2));
            peak[h] = fmaxf(peak[h], most * scale);
        }
#pragma unroll
        for (int i = 0; i < 32; ++i) {
            const int h = i / 2 % 2;
            scores[i] = fast_exp2(__fmaf_rn(scores[i], scale, -peak[h]));
            added[h] = i < 4 && i % 2 == 0 ? scores[i] : added[h] + scores[i];
        }
    }

    // The sums so far, in units of other peaks than before; where these stay, the same numbers.
    __device__ __forceinline__ void fade(const float (&before)[2]) {
        if (!__any_sync(FULL_WARP, before[0] != peak[0] || before[1] != peak[1])) return;
        const float by[2] = {fast_exp2(before[0] - peak[0]), fast_exp2(before[1] - peak[1])};
#pragma unroll
        for (int h = 0; h < 2; ++h) total[h] = __fmul_rn(total[h], by[h]);
#pragma unroll
        for (int i = 0; i < 32; ++i) sums[i] *= by[i / 2 % 2];
    }

    // One block of keys, whose scores were asked for; in all but the last the scores of the next are. After it come
    // `left` more.
    template <bool LAST>
    __device__ __forceinline__ void step(float (&scores)[32], float (&next)[32], int left, bool is_first,
                                         const int (&last)[2]) {
        const int here = number;
        number = ahead.number;
        if constexpr (!LAST) ask_scores(next);
        wgmma_wait<LAST ? 1 : 2>();
        wgmma_done(scores);
        const float before[2] = {peak[0], peak[1]};
        float added[2];
        weigh<LAST>(scores, added, last);
        // The compiler would wait for the product with values before it weighs, was this not one block of code.
        settle(added[0] + added[1]);
        if (!LAST && left > 1) wait_for_keys();
        wgmma_wait<LAST ? 0 : 1>();
        wgmma_done(sums);
        if (lane_id() == 0 && !is_first) copy_barrier_expect(s.empty + (here == 0 ? DEPTH - 1 : here - 1), 0);
        __syncwarp();
        fade(before);
#pragma unroll
        for (int h = 0; h < 2; ++h) total[h] = __fadd_rn(total[h], added[h]);
#pragma unroll
        for (int i = 0; i < 32; i += 2) p[i / 8][i / 2 % 4] = pack_bf16(scores[i], scores[i + 1]);
        wgmma_ready(p);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 4; ++i)
            wgmma_over_rows(sums, p[i], wgmma_sixteen(rows, here * STAGE_BYTES + HALF_BYTES, i));
        wgmma_commit();
    }

    // `whole` blocks of keys that all rows see, and one more.
    __device__ __forceinline__ void run(int whole, const int (&last)[2]) {
        float even[32], odd[32];
        number = 0;
        wait_for_keys();
        ask_scores(even);
        wgmma_wait<0>();
        if (whole > 0) wait_for_keys();
        int left = whole;
#pragma unroll 1
        for (; left > 1; left -= 2) {
            step<false>(even, odd, left, left == whole, last);
            step<false>(odd, even, left - 1, false, last);
        }
        if (left > 0) {
            step<false>(even, odd, 1, left == whole, last);
            step<true>(odd, even, 0, false, last);
        } else {
            step<true>(even, odd, 0, whole == 0, last);
        }
        wgmma_wait<0>();
        wgmma_done(sums);
    }
};

// A warp that multiplies: rows 16 `warp` % 4 .. of its warpgroup.
DEVICE void attend(const Shared& s, const u16* q, const float* sinks, u16* out, float scale, const Work& work) {
    const int warp = warp_id(), g = lane_id() / 4, t = lane_id() % 4;
    const int start = work.start + warp / 4 * POSITIONS;
    int whole = min(max(start, 0) / BLOCK, work.num_blocks() - 1);
    whole = __shfl_sync(FULL_WARP, whole, 0);
    Attention attention = {s, scale};
    attention.rows = wgmma_begin(s.stages);
    int last[2];
    i64 place[2];  // of a row and head in q and out
    bool is_inside[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int m = warp % 4 * 16 + g + 8 * h, position = start + m / GROUP, row = position - work.first;
        const int head = work.kv_head * GROUP + m % GROUP;
        is_inside[h] = row >= 0 && row < work.num_rows;
        last[h] = max(position, 0) - whole * BLOCK - 2 * t;
        place[h] = ((work.first_row + row) * (NUM_KV * GROUP) + head) * D + 2 * t;
        attention.peak[h] = SINKS ? sinks[head] * LOG2_E : NEVER;
        attention.total[h] = SINKS && t == 0 ? 1.f : 0.f;
#pragma unroll
        for (int i = 0; i < 8; ++i)
            attention.q[i / 2][h + i % 2 * 2] = is_inside[h] ? *reinterpret_cast<const u32*>(q + place[h] + i * 8) : 0;
    }
#pragma unroll
    for (int i = 0; i < 32; ++i) attention.sums[i] = 0.f;
    wgmma_ready(attention.q);
    wgmma_done(attention.sums);
    attention.run(whole, last);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        float total = attention.total[h];
        total += __shfl_xor_sync(FULL_WARP, total, 1);
        total += __shfl_xor_sync(FULL_WARP, total, 2);
        const float inverse = 1.f / total;
        if (!is_inside[h]) continue;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const float* const pair = attention.sums + 4 * i + 2 * h;
            *reinterpret_cast<u32*>(out + place[h] + i * 8) = pack_bf16(pair[0] * inverse, pair[1] * inverse);
        }
    }
}

// Whether `count` sequences from `sequence` on are one: their rows follow each other, and so do their pages. Rows of a
// pass are in pages of their own, or in pages that are shared with all that come before, so tables that agree on a page
// agree on those before it.
DEVICE bool are_one(const i64* positions, const i64* table, int num_pages, int sequence, int count, int num_rows) {
    for (int i = sequence + 1; i < sequence + count; ++i) {
        const i64 first = positions[static_cast<i64>(i) * num_rows];
        const i64 before = positions[static_cast<i64>(i - 1) * num_rows];
        if (before < 0 || before % POSITIONS != 0 || first != before + num_rows) return false;
        const i64* const pages = table + static_cast<i64>(i) * num_pages + (first - 1) / PAGE;
        if (pages[0] != pages[-num_pages]) return false;
    }
    return true;
}

// Blocks: (blocks of WARPGROUPS * POSITIONS positions of the sequences, key/value heads); the last ones, whose rows see
// the most keys, start first. A sequence has `num_blocks`. Where its rows do not fill them, `together` sequences that
// are one have as many blocks as their rows fill; the others of theirs have nothing to do. q and out: [sequences, rows,
// NUM_KV * GROUP, D] bf16.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    flash(const u16* q, const Element* keys, const Element* values, const u8* scales, const i64* table, int num_pages,
          const i64* positions, const float* sinks, u16* out, int num_seqs, int num_rows, int num_blocks, int together,
          float scale) {
    SHARED_1024(u8, shared);
    const Shared s = carve(shared);
    if (threadIdx.x == 0) {
        for (int i = 0; i < DEPTH; ++i) {
            copy_barrier_init(s.there + i, KV_FP8 ? 32 : 64);
            copy_barrier_init(s.full + i, KV_FP8 ? WIDENING_WARPS : 1);
            copy_barrier_init(s.taken + i, WIDENING_WARPS);
            copy_barrier_init(s.empty + i, MATH_WARPS);
        }
        copy_barrier_fence();
    }
    __syncthreads();
    pdl_wait();
    const int index = static_cast<int>(gridDim.x) - 1 - static_cast<int>(blockIdx.x);
    int sequence = index / (together * num_blocks) * together, number = index % (together * num_blocks);
    const bool is_one = together > 1 && sequence + together <= num_seqs &&
                        are_one(positions, table, num_pages, sequence, together, num_rows);
    if (!is_one) {
        sequence += number / num_blocks;
        number %= num_blocks;
        if (sequence >= num_seqs) return;
    }
    const i64 first_row = static_cast<i64>(sequence) * num_rows;
    const int first = static_cast<int>(positions[first_row]), all_rows = is_one ? together * num_rows : num_rows;
    const int start = (first & -POSITIONS) + number * (WARPGROUPS * POSITIONS);
    const Work work = {first_row, static_cast<int>(blockIdx.y), first, all_rows, start};
    if (start >= first + all_rows) return;
    const int warp = warp_id();
    if (warp < MATH_WARPS) {
        take_registers<REGISTERS>();
        attend(s, q, sinks, out, scale, work);
        return;
    }
    give_registers<COPY_REGISTERS>();
    const Pages pages(table + static_cast<i64>(is_one ? sequence + together - 1 : sequence) * num_pages, num_pages);
#if KV_FP8
    if (warp == MATH_WARPS) bring_bytes(s, keys, values, scales, pages, work);
    else widen(s, work, warp - MATH_WARPS - 1);
#else
    if (warp == MATH_WARPS) bring(s, keys, pages, work, 0);
    if (warp == MATH_WARPS + 1) bring(s, values, pages, work, 1);
    if (warp == MATH_WARPS + 2) show(s, work);
#endif
}
