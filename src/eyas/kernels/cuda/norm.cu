// Norms that no matrix product precedes: of embeddings and of given rows. They begin a chain, so they trigger after they
// waited: what was written before the chain (positions, page tables) may be read by all of it before its own pdl_wait().
#include "common.cuh"

constexpr int TILE = 16;  // features of one part of a row's square sum, as in linear.cuh

// Split norm of residual rows, or of embeddings, which become the residual. One thread per feature.
extern "C" __global__ void __launch_bounds__(256)
    prepare_norm(const i64* tokens, const u16* embed, const float* given, const float* norm, float* residual,
                 u16* normed, float* square_sums, int width) {
    const int feature = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
    const bool live = feature < width;
    const float weight = live ? norm[feature] : 0.f;
    pdl_wait();
    pdl_trigger();
    const i64 place = static_cast<i64>(row) * width + feature;
    float x = 0.f;
    if (live) {
        if (tokens == nullptr) {
            x = given[place];
        } else {
            x = from_bf16(embed[tokens[row] * width + feature]);
            residual[place] = x;
        }
        normed[place] = to_bf16(x * weight);
    }
    float square = x * x;
#pragma unroll
    for (int step = TILE / 2; step > 0; step >>= 1) square += __shfl_xor_sync(FULL_WARP, square, step);
    if (live && feature % TILE == 0) square_sums[place / TILE] = square;
}

// Whole norms of embeddings (blockIdx.x 0) and of hidden states (1), side by side; the latter also alone, as fp32.
// One block per half of a row.
extern "C" __global__ void __launch_bounds__(512)
    pair_norms(const i64* tokens, const u16* embed, const float* embed_norm, const float* hidden,
               const u16* hidden_bf16, const float* hidden_norm, u16* pair, float* alone, int width, float eps) {
    __shared__ float scratch[16];
    pdl_wait();
    pdl_trigger();
    const i64 row = blockIdx.y, start = row * width;
    const bool embedding = blockIdx.x == 0;
    const u16* const halves = embedding ? embed + tokens[row] * width : hidden_bf16 + start;
    auto load = [&](int i) { return embedding || hidden == nullptr ? from_bf16(halves[i]) : hidden[start + i]; };
    float square = 0.f;
    for (int i = threadIdx.x; i < width; i += blockDim.x) square += load(i) * load(i);
    const float scale = fast_rsqrt(block_sum(square, scratch) / width + eps);
    const float* const norm = embedding ? embed_norm : hidden_norm;
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        const u16 value = to_bf16(load(i) * scale * norm[i]);
        pair[(2 * row + blockIdx.x) * width + i] = value;
        if (!embedding) alone[start + i] = from_bf16(value);
    }
}
