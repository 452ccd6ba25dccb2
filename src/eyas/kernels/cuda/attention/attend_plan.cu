// How the launches of attend.cu are cut in layers without a window, once for all layers of a pass: one block, a thread
// for each sequence.
//
// Writes `units`: first {number of units, leaves of a unit as a power of two, tiles of a block}, then for each unit what
// `Unit` of attend_plan.cuh is made of. A unit is all leaves of a sequence, or 2^shift of them.
//
// - Where every pair of sequence and key/value head gets a block, units become as small as one round of blocks allows.
// - Where there are more of them, block b has the pieces b, b + grid, .. of a list in which long sequences stand first.
//   If it then ends within a quarter of the time that equal shares would take, sequences stay whole. Otherwise they are
//   cut so that no piece is more than half of a block's share, nor less than a quarter where that cuts it.
//
// Units of cut sequences stand first, so that their number bounds the memory for partial results, whatever the number
// of sequences: with P = 2^shift, a sequence of n > P leaves has fewer than 2 n / P units, and all leaves together are
// fewer than (4 grid + 1) P pieces, so 8 grid + 1 pieces are enough (`MOST_PIECES` in attend_plan.py).
//
// No defines: it compiles once. Bits depend on nothing of this.
#include "common.cuh"

constexpr int MOST_SEQS = 512, WARPS = MOST_SEQS / 32;
constexpr u32 SHARES = 4;  // pieces of a block, at least, where sequences are cut though they alone fill the grid

struct Sequence {
    int number, leaves;  // no leaves where there is none
    u32 live;            // bits of its rows
    int first;           // position of row 0
};

DEVICE Sequence read_sequence(const i64* positions, const u8* live, int num_seqs, int num_rows, int leaf_keys) {
    const int number = threadIdx.x;
    Sequence sequence = {number, 0, 0u, 0};
    if (number >= num_seqs) return sequence;
    sequence.first = static_cast<int>(positions[static_cast<i64>(number) * num_rows]);
#pragma unroll 8
    for (int r = 0; r < num_rows; ++r) sequence.live |= live[number * num_rows + r] ? 1u << r : 0u;
    const int last = sequence.live ? sequence.first + 31 - __clz(static_cast<int>(sequence.live)) : -1;
    sequence.leaves = max(0, last) / leaf_keys + 1;
    return sequence;
}

// positions i64 and live [num_seqs, num_rows]; grid: blocks of attend; pairs: (row block, key/value head) pairs with
// one tile of 16 row-heads in a block, and with `large_tiles`. One thread for each sequence, in whole warps.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
    attend_plan(uint4* units, const i64* positions, const u8* live, int num_seqs, int num_rows, int leaf_keys,
                int grid, int small_pairs, int large_pairs, int large_tiles) {
    __shared__ u32 scratch[WARPS];
    __shared__ int sizes[MOST_SEQS];
    __shared__ Sequence sorted[MOST_SEQS];
    pdl_trigger();
    pdl_wait();

    const int place = threadIdx.x;
    const Sequence read = read_sequence(positions, live, num_seqs, num_rows, leaf_keys);
    sizes[place] = read.leaves;
    __syncthreads();
    int rank = 0;
#pragma unroll 8
    for (int other = 0; other < num_seqs; ++other)
        rank += sizes[other] > read.leaves || (sizes[other] == read.leaves && other < place);
    if (place < num_seqs) sorted[rank] = read;
    __syncthreads();
    const Sequence mine = place < num_seqs ? sorted[place] : read;

    const u32 most = sorted[0].leaves, blocks = grid, total = block_sum(static_cast<u32>(mine.leaves), scratch);
    // Small blocks of rows where that leaves no block idle that would have worked; otherwise keys are read once.
    const bool small = total * small_pairs <= blocks;
    const u32 pairs = small ? small_pairs : large_pairs, all = total * pairs;
    int shift = 0;
    auto cut_to = [&](u32 pieces) {
        while (all >> shift > pieces && (most - 1) >> shift) ++shift;
    };
    auto count = [&] { return (mine.leaves + (1 << shift) - 1) >> shift; };
    if (num_seqs * pairs <= blocks) {
        cut_to(blocks);
        while (block_sum(static_cast<u32>(count()), scratch) * pairs > blocks) ++shift;
    } else {
        u32 time = 0;  // of block 0, which has the most to do, if all sequences stay whole
        for (u32 piece = place * blocks; piece < num_seqs * pairs; piece += blockDim.x * blocks)
            time += sorted[piece / pairs].leaves;
        time = block_sum(time, scratch);
        cut_to(time * blocks <= all + all / 4 ? 0 : SHARES * blocks);
    }

    int end = count();  // of this sequence's units
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const int below = __shfl_up_sync(FULL_WARP, end, step);
        if (lane_id() >= step) end += below;
    }
    if (lane_id() == 31) scratch[warp_id()] = end;
    __syncthreads();
    for (int w = 0; w < warp_id(); ++w) end += scratch[w];
    for (int i = 0; i < count(); ++i)
        units[1 + end - count() + i] = {static_cast<u32>(mine.number), static_cast<u32>(i | count() << 16), mine.live,
                                        static_cast<u32>(mine.first)};
    if (place == static_cast<int>(blockDim.x) - 1)
        units[0] = {static_cast<u32>(end), static_cast<u32>(shift), small ? 1u : static_cast<u32>(large_tiles), 0u};
}
