// Dense products for few rows: the matrix streams through shared memory once, the rows stay in registers.
//
// A block keeps one share of K for all its tiles: warp w of 16 owns one slice of the share and multiplies it for one
// tile of 16 features after the other, so that the fragments of the rows are loaded once per launch. The matrix comes
// in bulk copies, asked for before pdl_wait(). Sums: ascending k within a slice (one chain of matrix instructions), then
// the 16 slices of a share, then the shares, each in order. None of the borders depends on the number of rows.
//
// Defines: COLUMN_TILES (n-tiles of 8 rows: 1, 2), BLOCKS (most 32-wide blocks of K in a slice), CHUNK (blocks a copy),
// DEPTH (copies a warp has under way), GATED (rows g and g + 8 of a tile are gate and up of one feature).
#include "linear.cuh"

constexpr int COLUMNS = 8 * COLUMN_TILES;
constexpr int CHUNKS = (BLOCKS + CHUNK - 1) / CHUNK;  // copies per slice and tile
constexpr int CHUNK_BYTES = CHUNK * BLOCK_BYTES;
constexpr int FINISHERS = 4 * COLUMN_TILES;  // warps that add the slices of one tile
constexpr int PARTIAL = TILE * COLUMNS;      // floats

// Where (feature r, row c) of a slice's sums lies: stored as fragments, read by rows, both without bank conflicts.
DEVICE int partial_index(int r, int c) { return (c >> 3) * 128 + r * 8 + ((c & 7) ^ ((r >> 2) * 2)); }

extern "C" __global__ void __launch_bounds__(SLICES * 32, 1)
    linear(const u16* rows, i64 row_stride, const u8* matrix, int num_rows, int num_tiles, int num_blocks,
           int num_shares, const float* square_sums, int num_parts, float eps, const float* bias, const float* residual,
           const float* norm, float* out, u16* out_bf16, u16* normed, float* out_square_sums, float* partials,
           u32* tickets) {
    SHARED(u8, shared);
    __shared__ bool came_last[SLICES / FINISHERS];
    float* const sums = reinterpret_cast<float*>(shared + SLICES * DEPTH * CHUNK_BYTES);  // [2][SLICES][PARTIAL]
    float* const scales = sums + 2 * SLICES * PARTIAL;                                    // [COLUMNS]
    u64* const barriers = reinterpret_cast<u64*>(scales + COLUMNS) + warp_id() * DEPTH;
    u8* const ring = shared + warp_id() * DEPTH * CHUNK_BYTES;
    const Output output = {bias, residual, norm, out, out_bf16, normed};

    const int warp = warp_id(), lane = lane_id(), g = lane >> 2, t = lane & 3;
    const int first_row = blockIdx.y * COLUMNS;
    const int share = blockIdx.x % num_shares, first_tile = blockIdx.x / num_shares, stride = gridDim.x / num_shares;
    const Range slice = part_of(share * SLICES + warp, num_shares * SLICES, num_blocks);
    const int size = slice.end - slice.begin;
    const int num_copies = (num_tiles - first_tile + stride - 1) / stride * CHUNKS;

    auto copy = [&](int i) {
        const int tile = first_tile + i / CHUNKS * stride, begin = i % CHUNKS * CHUNK;
        const int bytes = max(0, min(CHUNK, size - begin)) * BLOCK_BYTES;
        const u8* const source = matrix + (static_cast<i64>(tile) * num_blocks + slice.begin + begin) * BLOCK_BYTES;
        copy_barrier_expect(barriers + i % DEPTH, bytes);
        if (bytes > 0) copy_bulk(ring + i % DEPTH * CHUNK_BYTES, source, bytes, barriers + i % DEPTH);
    };
    if (lane == 0) {
        for (int i = 0; i < DEPTH; ++i) copy_barrier_init(barriers + i, 1);
        copy_barrier_fence();
        for (int i = 0; i < min(DEPTH, num_copies); ++i) copy(i);
    }
    __syncwarp();
    pdl_trigger();
    pdl_wait();

    uint4 b[COLUMN_TILES][BLOCKS];
#pragma unroll
    for (int n = 0; n < COLUMN_TILES; ++n) {
        const int row = first_row + n * 8 + g;
        const u16* const source = rows + row * row_stride + slice.begin * 32 + 8 * t;
#pragma unroll
        for (int j = 0; j < BLOCKS; ++j) b[n][j] = load_16_if(source + j * 32, row < num_rows && j < size);
    }
    if (square_sums != nullptr)
        for (int column = warp; column < min(COLUMNS, num_rows - first_row); column += SLICES) {
            const float* const parts = square_sums + static_cast<i64>(first_row + column) * num_parts;
            const float scale = inverse_rms(parts, num_parts, num_blocks * 32, eps);
            if (lane == 0) scales[column] = scale;
        }

    const int num_features = num_tiles * TILE;
    for (int i = 0, tile = first_tile; tile < num_tiles; ++i, tile += stride) {
        // FINISHERS warps finish this tile, others the next.
        const int finisher = (warp + i * FINISHERS) % SLICES;
        const int r = lane & 15, column = finisher * 2 + (lane >> 4), row = first_row + column;
        const int feature = tile * TILE + r;
        const i64 place = static_cast<i64>(row) * num_features + feature;
        const bool live = finisher < FINISHERS && row < num_rows;
        const float addend = live ? output.addend(feature, place) : 0.f;
        const float factor = live && norm != nullptr ? norm[feature] : 0.f;

        float c[COLUMN_TILES][4] = {};
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
            const int number = i * CHUNKS + chunk, place_in_ring = number % DEPTH;
            copy_barrier_wait(barriers + place_in_ring, number / DEPTH & 1);
            uint4 low[CHUNK], high[CHUNK];
#pragma unroll
            for (int k = 0; k < CHUNK; ++k) {
                const u8* const source = ring + place_in_ring * CHUNK_BYTES + k * BLOCK_BYTES + lane * 16;
                low[k] = *reinterpret_cast<const uint4*>(source);
                high[k] = *reinterpret_cast<const uint4*>(source + BLOCK_BYTES / 2);
            }
            copy_bulk_fence();
            __syncwarp();
            if (lane == 0 && number + DEPTH < num_copies) copy(number + DEPTH);
#pragma unroll
            for (int k = 0; k < CHUNK; ++k) {
                const int j = chunk * CHUNK + k;
                if (j >= BLOCKS || j >= size) break;
                const u32 first[4] = {low[k].x, high[k].x, low[k].y, high[k].y};
                const u32 second[4] = {low[k].z, high[k].z, low[k].w, high[k].w};
#pragma unroll
                for (int n = 0; n < COLUMN_TILES; ++n) {
                    mma_bf16(c[n], first, b[n][j].x, b[n][j].y);
                    mma_bf16(c[n], second, b[n][j].z, b[n][j].w);
                }
            }
        }
        float* const tile_sums = sums + (i & 1) * SLICES * PARTIAL;
#pragma unroll
        for (int n = 0; n < COLUMN_TILES; ++n) {
            float* const mine = tile_sums + warp * PARTIAL;
            *reinterpret_cast<float2*>(mine + partial_index(g, n * 8 + 2 * t)) = {c[n][0], c[n][1]};
            *reinterpret_cast<float2*>(mine + partial_index(g + 8, n * 8 + 2 * t)) = {c[n][2], c[n][3]};
        }
        __syncthreads();
        if (finisher >= FINISHERS) continue;
        float value = 0.f;
#pragma unroll
        for (int w = 0; w < SLICES; ++w) value += tile_sums[w * PARTIAL + partial_index(r, column)];

        if (num_shares > 1) {
            const i64 plane = static_cast<i64>(num_rows) * num_features;
            if (live) partials[share * plane + place] = value;
            if (tickets == nullptr) continue;
            const int group = warp / FINISHERS;
            named_barrier(1 + group, FINISHERS * 32);
            if (finisher == 0 && lane == 0)
                came_last[group] = take_ticket(tickets + tile * gridDim.y + blockIdx.y, num_shares);
            named_barrier(1 + group, FINISHERS * 32);
            if (!came_last[group]) continue;
            value = 0.f;
            if (live)
                for (int s = 0; s < num_shares; ++s) value += partials[s * plane + place];
        }
        value = __fmaf_rn(value, live && square_sums != nullptr ? scales[column] : 1.f, addend);
#if GATED
        const float up = __shfl_xor_sync(FULL_WARP, value, 8);
        if (live && r < 8)
            out_bf16[static_cast<i64>(row) * (num_features / 2) + tile * 8 + r] = to_bf16(silu_times(value, up));
#else
        if (live) output.write(value, factor, place);
        if (out_square_sums != nullptr) {
            float square = __fmul_rn(value, value);
#pragma unroll
            for (int step = 8; step > 0; step >>= 1) square += __shfl_xor_sync(FULL_WARP, square, step);
            if (live && r == 0) out_square_sums[static_cast<i64>(row) * num_tiles + tile] = square;
        }
#endif
    }
}
