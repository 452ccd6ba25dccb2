// The routing of many rows, once for all blocks of moe.cu: each would take longer over it than the launch of this.
//
// A warp chooses for a row; the block that comes last sorts the pairs of row and rank by expert, in ascending order: its
// warps count the pairs of a contiguous part each, the counts are added up in the order of the parts, and the warps go
// through their parts again and know each pair's place. All that moe.cu reads is in device memory then (`Tables` of
// moe_route.cuh), with the bits that its own blocks would have found. `moe_sort` does the second half for rows whose
// experts are known.
//
// Defines: as in moe_route.cuh.
#include "moe/moe_route.cuh"

constexpr int WARPS = 16, THREADS = 32 * WARPS;

struct Sorting {
    u32 *ids, *pairs;  // two to a word
    int *counts;       // [WARPS][NUM_EXPERTS]: pairs of a part, then of the parts before it, then the next place
    int num_pairs, part;  // pairs of a warp, a multiple of 32

    __device__ int id_of(int pair) const {
        return pair < num_pairs ? reinterpret_cast<const short*>(ids)[pair] : -1;
    }
};

// What other blocks of this launch have chosen.
DEVICE void count_pairs(const Sorting& sorting, const short* ids) {
    for (int i = threadIdx.x; i < (sorting.num_pairs + 1) / 2; i += THREADS) {
        sorting.ids[i] = load_l2(reinterpret_cast<const u32*>(ids) + i);
        sorting.pairs[i] = 0;
    }
    for (int i = threadIdx.x; i < WARPS * NUM_EXPERTS; i += THREADS) sorting.counts[i] = 0;
    __syncthreads();
    for (int i = 0; i < sorting.part; i += 32) {
        const int id = sorting.id_of(warp_id() * sorting.part + i + lane_id());
        if (id >= 0) atomicAdd(sorting.counts + warp_id() * NUM_EXPERTS + id, 1);
    }
    __syncthreads();
}

// Counts of all parts together to `totals`; those of each part become those of the parts before it.
DEVICE void add_counts(const Sorting& sorting, int* totals) {
    for (int id = threadIdx.x; id < NUM_EXPERTS; id += THREADS) {
        int total = 0;
        for (int part = 0; part < WARPS; ++part) {
            int& count = sorting.counts[part * NUM_EXPERTS + id];
            const int mine = count;
            count = total;
            total += mine;
        }
        totals[id] = total;
    }
    __syncthreads();
}

DEVICE void place_pairs(const Sorting& sorting, const int* begins) {
    int* const places = sorting.counts + warp_id() * NUM_EXPERTS;
    u16* const pairs = reinterpret_cast<u16*>(sorting.pairs);
    for (int i = 0; i < sorting.part; i += 32) {
        const int pair = warp_id() * sorting.part + i + lane_id(), id = sorting.id_of(pair);
        const u32 same = __match_any_sync(FULL_WARP, id), before = same & ((1u << lane_id()) - 1);
        const int place = id < 0 ? 0 : begins[id] + places[id] + __popc(before);
        __syncwarp();
        if (id >= 0) {
            pairs[place] = pair;
            if (before == 0) places[id] += __popc(same);
        }
        __syncwarp();
    }
    __syncthreads();
}

// Pairs by expert, and the groups, from the ids in `tables`. A block, THREADS; shared memory: see moe_route.
DEVICE void sort_rows(Tables tables, u32* shared, int num_rows) {
    const int num_pairs = num_rows * TOP_K, words = (num_pairs + 1) / 2;
    const Sorting sorting = {shared, shared + words, reinterpret_cast<int*>(shared + 2 * words), num_pairs,
                             (num_pairs + THREADS - 1) / THREADS * 32};
    tables.begins = sorting.counts + WARPS * NUM_EXPERTS;
    count_pairs(sorting, tables.ids);
    add_counts(sorting, tables.begins);
    if (warp_id() == 0) list_groups(tables);
    __syncthreads();
    place_pairs(sorting, tables.begins);
    for (int i = threadIdx.x; i < words; i += THREADS) reinterpret_cast<u32*>(tables.pairs)[i] = sorting.pairs[i];
}

// logits [T, NUM_EXPERTS], square_sums [T, NUM_PARTS], live [T]; up_factor: 2^exponent of gate/up. Shared memory: ids
// and pairs [T TOP_K] in 16 bits, rounded up to words, and WARPS + 1 numbers for each expert.
extern "C" __global__ void __launch_bounds__(THREADS)
    moe_route(u8* memory, const float* logits, const float* square_sums, const u8* live, int num_rows, float eps,
              float up_factor, u32* ticket) {
    SHARED(u32, shared);
    Tables tables;
    tables.place_tables(memory, num_rows);
    pdl_trigger();
    pdl_wait();

    const Rows rows = {logits, square_sums, live, num_rows};
    const int row = blockIdx.x * WARPS + warp_id();
    SquareSum sum;
    sum.load(rows, row);
    const Logits mine = load_logits(rows, row);
    const Choice choice = choose(mine);
    const float scale = sum.inverse_rms(eps) * up_factor;
    if (row < num_rows) {
        if (lane_id() == 0) tables.row_scales[row] = scale;
        if (lane_id() < TOP_K) {
            tables.ids[row * TOP_K + lane_id()] = mine.is_live ? choice.id : -1;
            tables.weights[row * TOP_K + lane_id()] = choice.weight;
        }
    }
    if (!arrive_last(ticket, gridDim.x)) return;

    sort_rows(tables, shared, num_rows);
}

// ids [T, TOP_K] (-1: a dead row), inverse_rms [T]; up_factor and shared memory as for moe_route. One block.
extern "C" __global__ void __launch_bounds__(THREADS)
    moe_sort(u8* memory, const int* ids, const float* inverse_rms, int num_rows, float up_factor) {
    SHARED(u32, shared);
    Tables tables;
    tables.place_tables(memory, num_rows);
    pdl_trigger();
    pdl_wait();
    for (int pair = threadIdx.x; pair < num_rows * TOP_K; pair += THREADS) tables.ids[pair] = ids[pair];
    for (int row = threadIdx.x; row < num_rows; row += THREADS) tables.row_scales[row] = inverse_rms[row] * up_factor;
    __syncthreads();
    sort_rows(tables, shared, num_rows);
}
