// Dense products for few rows: the matrix streams through shared memory once, the rows stay in registers.
//
// A block keeps one share of K for all its tiles: warp w of 16 owns one slice of the share and multiplies it for one
// tile of 16 features after the other, so that the fragments of the rows are loaded once per launch. The matrix comes
// in bulk copies, asked for before pdl_wait(). Sums: ascending k within a slice (one chain of matrix instructions), then
// the slices of a group, the groups of a share's 16 slices, and the shares, each in order. None of the borders depends on
// the number of rows.
//
// Defines: COLUMN_TILES (n-tiles of 8 rows: 1, 2), NUM_BLOCKS (K / 32), SHARES, GROUPS (of a share: 1, 2, 4), CHUNK
// (blocks of a bulk copy), DEPTH (copies that a warp has under way), GATED (rows g and g + 8 of a tile are gate and up of
// one feature), FP8, BITS12 (then `plain` is the same matrix in bf16); INT8 and LISTED, of a screen
// (kernels/triton/rounds/screen.py): the rough product, in f16, which is left out where one of two numbers is not 0, and the
// exact one of the tiles in a list, which begins with their number.
#include "dense/linear.cuh"

constexpr int COLUMNS = 8 * COLUMN_TILES;
constexpr int PARTS = SHARES * SLICES;
constexpr int BLOCKS = (NUM_BLOCKS + PARTS - 1) / PARTS;  // of a slice: so many, or one less
constexpr int CHUNKS = (BLOCKS + CHUNK - 1) / CHUNK;      // copies per slice and tile
constexpr int CHUNK_BYTES = CHUNK * BLOCK_BYTES;
constexpr int FINISHERS = 4 * COLUMN_TILES;  // warps that add the slices of one tile
constexpr int PARTIAL = TILE * COLUMNS;      // floats
static_assert(SHARES == 1 || !LISTED, "partial sums are of all tiles");

// Blocks of a copy.
DEVICE int blocks_of(int chunk, bool whole) { return min(CHUNK, BLOCKS - chunk * CHUNK) - (chunk == CHUNKS - 1 && !whole); }

// c += the blocks of a copy times the rows' fragments b. `plain`: the same blocks in bf16, for those with MARKS.
template <bool MARKS>
DEVICE void multiply(float (&c)[COLUMN_TILES][4], const uint4 (&b)[COLUMN_TILES][BLOCKS], const u8* source,
                     const u8* plain, int chunk, int blocks) {
#pragma unroll
    for (int k = 0; k < CHUNK; ++k) {
        const int j = chunk * CHUNK + k;
        if (j >= BLOCKS || (j == BLOCKS - 1 && k >= blocks)) break;
        u32 first[4], second[4];
        load_block<MARKS>(source + k * BLOCK_BYTES, first, second, plain + k * PLAIN_BYTES);
#pragma unroll
        for (int n = 0; n < COLUMN_TILES; ++n) {
            multiply_tile(c[n], first, b[n][j].x, b[n][j].y);
            multiply_tile(c[n], second, b[n][j].z, b[n][j].w);
        }
    }
}

// Where (feature r, row c) of a slice's sums lies: stored as fragments, read by rows, both without bank conflicts.
DEVICE int partial_index(int r, int c) { return (c >> 3) * 128 + r * 8 + ((c & 7) ^ ((r >> 2) * 2)); }

extern "C" __global__ void __launch_bounds__(SLICES * 32, 1)
    linear(const u16* rows, i64 row_stride, const u8* matrix, int num_rows, int num_tiles, const float* square_sums,
           int num_parts, float eps, const float* bias, const float* residual, const float* norm, float* out,
           u16* out_bf16, u16* normed, float* out_square_sums, float* partials, u32* tickets, const float* factors,
           const u8* plain, const int* list) {
    SHARED(u8, shared);
    float* const sums = reinterpret_cast<float*>(shared + SLICES * DEPTH * CHUNK_BYTES);  // [2][SLICES][PARTIAL]
    float* const scales = sums + 2 * SLICES * PARTIAL;                                    // [COLUMNS]
    const int warp = warp_id(), lane = lane_id(), g = lane >> 2, t = lane & 3;
    u64* const barriers = reinterpret_cast<u64*>(scales + COLUMNS) + warp * DEPTH;
    u8* const ring = shared + warp * DEPTH * CHUNK_BYTES;

    const int share = blockIdx.x % SHARES, first_tile = blockIdx.x / SHARES, stride = gridDim.x / SHARES;
    const int begin = (share * SLICES + warp) * NUM_BLOCKS / PARTS;
    const bool whole = (share * SLICES + warp + 1) * NUM_BLOCKS / PARTS - begin == BLOCKS;  // or one block less
#if INT8
    if ((list[0] | list[1]) != 0) {  // older than the chain
        pdl_trigger();
        pdl_wait();
        return;
    }
#endif
#if LISTED
    pdl_wait();  // for the list
    const int num_wanted = list[0];
    // Tile number n of those that are wanted; a list of all is not read.
    auto tile_at = [&](int n) { return num_wanted < num_tiles ? list[1 + n] : n; };
#else
    const int num_wanted = num_tiles;
    auto tile_at = [](int n) { return n; };
#endif

    auto copy = [&](int place, int tile, int chunk) {
        const int blocks = blocks_of(chunk, whole);
        copy_barrier_expect(barriers + place, blocks * BLOCK_BYTES);
        if (blocks > 0)
            copy_bulk(ring + place * CHUNK_BYTES,
                      matrix + (static_cast<i64>(tile) * NUM_BLOCKS + begin + chunk * CHUNK) * BLOCK_BYTES,
                      blocks * BLOCK_BYTES, barriers + place);
    };
    if (lane == 0) {
#pragma unroll
        for (int i = 0; i < DEPTH; ++i) copy_barrier_init(barriers + i, 1);
        copy_barrier_fence();
#pragma unroll
        for (int i = 0; i < DEPTH; ++i) {
            const int n = first_tile + i / CHUNKS * stride;
            if (n < num_wanted) copy(i, tile_at(n), i % CHUNKS);
        }
    }
    __syncwarp();
    pdl_trigger();
    pdl_wait();

    const int first_row = blockIdx.y * COLUMNS;
    uint4 b[COLUMN_TILES][BLOCKS];
#pragma unroll
    for (int n = 0; n < COLUMN_TILES; ++n) {
        const int row = first_row + n * 8 + g;
        const u16* const source = rows + row * row_stride + begin * 32 + 8 * t;
#pragma unroll
        for (int j = 0; j < BLOCKS; ++j)
            b[n][j] = load_16_if(source + j * 32, row < num_rows && (j < BLOCKS - 1 || whole));
    }
    if (square_sums != nullptr)
        for (int column = warp; column < min(COLUMNS, num_rows - first_row); column += SLICES) {
            const float* const parts = square_sums + static_cast<i64>(first_row + column) * num_parts;
            const float scale = inverse_rms(sum_of_lane(parts, num_parts), NUM_BLOCKS * 32, eps);
            if (lane == 0) scales[column] = scale;
        }

#if INT8
    float2 units[COLUMN_TILES];  // of the sums of columns 2t and 2t + 1 of a tile of rows
#pragma unroll
    for (int n = 0; n < COLUMN_TILES; ++n) {
        const float unit = to_f16(b[n]);
        units[n] = {__shfl_sync(FULL_WARP, unit, 8 * t), __shfl_sync(FULL_WARP, unit, 8 * t + 4)};
    }
#endif

    const Output output = {bias, residual, norm, out, out_bf16, normed};
    const int num_features = num_tiles * TILE, r = lane & 15;
    // The end of feature r of `tile` and one row, in a warp for two rows.
    auto finish = [&](float value, float addend, float factor, int tile, int column, bool live) {
        const int row = first_row + column;
        value = __fmaf_rn(value, live && square_sums != nullptr ? scales[column] : 1.f, addend);
#if GATED
        const float up = __shfl_xor_sync(FULL_WARP, value, 8);
        if (live && r < 8)
            out_bf16[static_cast<i64>(row) * (num_features / 2) + tile * 8 + r] = to_bf16(silu_times(value, up));
#else
        if (live) output.write(value, factor, static_cast<i64>(row) * num_features + tile * TILE + r);
        if (out_square_sums != nullptr) {
            float square = __fmul_rn(value, value);
#pragma unroll
            for (int step = 8; step > 0; step >>= 1) square += __shfl_xor_sync(FULL_WARP, square, step);
            if (live && r == 0) out_square_sums[static_cast<i64>(row) * num_tiles + tile] = square;
        }
#endif
    };

    for (int i = 0, order = first_tile; order < num_wanted; ++i, order += stride) {
        const int tile = tile_at(order);
        // FINISHERS warps finish this tile, others the next.
        const int finisher = (warp + i * FINISHERS) % SLICES, column = finisher * 2 + (lane >> 4);
        const bool live = finisher < FINISHERS && first_row + column < num_rows;
        const int feature = tile * TILE + r;
        const i64 place = static_cast<i64>(first_row + column) * num_features + feature;
        const float weight_factor = (FP8 || INT8) && live ? factors[feature] : 1.f;
        const float addend = SHARES == 1 && live ? output.addend(feature, place) : 0.f;
        const float factor = SHARES == 1 && live && norm != nullptr ? norm[feature] : 0.f;

        float c[COLUMN_TILES][4] = {};
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
            const int number = i * CHUNKS + chunk, place_in_ring = number % DEPTH;
            copy_barrier_wait(barriers + place_in_ring, number / DEPTH & 1);
            const u8* const source = ring + place_in_ring * CHUNK_BYTES;
            const u8* const same = plain + (static_cast<i64>(tile) * NUM_BLOCKS + begin + chunk * CHUNK) * PLAIN_BYTES;
            const int blocks = blocks_of(chunk, whole);
            bool marks = false;
#pragma unroll
            for (int k = 0; k < CHUNK; ++k) marks |= k < blocks && has_marks(source + k * BLOCK_BYTES);
            if (marks) multiply<true>(c, b, source, same, chunk, blocks);
            else multiply<false>(c, b, source, same, chunk, blocks);
            // A copy must not overtake the reads of what it overwrites: the products need their results.
            issued_before(c);
            __syncwarp();
            const int next = order + (chunk + DEPTH) / CHUNKS * stride;
            if (lane == 0 && next < num_wanted) copy(place_in_ring, tile_at(next), (chunk + DEPTH) % CHUNKS);
        }
        float* const tile_sums = sums + (i & 1) * SLICES * PARTIAL;
#pragma unroll
        for (int n = 0; n < COLUMN_TILES; ++n) {
#if INT8
            c[n][0] *= units[n].x, c[n][1] *= units[n].y, c[n][2] *= units[n].x, c[n][3] *= units[n].y;
#endif
            float* const mine = tile_sums + warp * PARTIAL;
            *reinterpret_cast<float2*>(mine + partial_index(g, n * 8 + 2 * t)) = {c[n][0], c[n][1]};
            *reinterpret_cast<float2*>(mine + partial_index(g + 8, n * 8 + 2 * t)) = {c[n][2], c[n][3]};
        }
        __syncthreads();
        if (finisher >= FINISHERS) continue;
        float value = 0.f;
#pragma unroll
        for (int w = 0; w < SLICES; w += SLICES / GROUPS) {
            float group = 0.f;
#pragma unroll
            for (int i = w; i < w + SLICES / GROUPS; ++i) group += tile_sums[i * PARTIAL + partial_index(r, column)];
            value += group;
        }
        value *= weight_factor;
#if SHARES > 1
        if (live) partials[static_cast<i64>(share) * num_rows * num_features + place] = value;
#else
        finish(value, addend, factor, tile, column, live);
#endif
    }
#if SHARES > 1
    if (tickets == nullptr) return;
    bool* const came_last = reinterpret_cast<bool*>(shared);  // the ring is empty
    __syncthreads();
    for (int tile = first_tile + threadIdx.x * stride; tile < num_tiles; tile += SLICES * 32 * stride)
        came_last[(tile - first_tile) / stride] = take_ticket(tickets + tile * gridDim.y + blockIdx.y, SHARES);
    __syncthreads();
    for (int i = warp / FINISHERS, tile; (tile = first_tile + i * stride) < num_tiles; i += SLICES / FINISHERS) {
        if (!came_last[i]) continue;
        const int column = warp % FINISHERS * 2 + (lane >> 4), feature = tile * TILE + r;
        const bool live = first_row + column < num_rows;
        const i64 place = static_cast<i64>(first_row + column) * num_features + feature;
        float value = 0.f, addend = 0.f, factor = 0.f;
        if (live) {
            float slices[SHARES];
#pragma unroll
            for (int s = 0; s < SHARES; ++s) slices[s] = partials[static_cast<i64>(s) * num_rows * num_features + place];
            addend = output.addend(feature, place);
            factor = norm == nullptr ? 0.f : norm[feature];
#pragma unroll
            for (int s = 0; s < SHARES; ++s) value += slices[s];
        }
        finish(value, addend, factor, tile, column, live);
    }
#endif
}
