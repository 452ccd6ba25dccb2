// Small kernels that use the helpers of common.cuh: the same tests run them in the emulator and on a GPU.
#include "common.cuh"

// c[16][8] = a[16][k] b[8][k]^T, one warp: the k order of the project (16 bytes a lane and k32 block).
extern "C" __global__ void multiply(float* c, const u16* a, const u16* b, int num_k) {
    const int g = lane_id() / 4, t = lane_id() % 4;
    float sum[4] = {};
    pdl_wait();
    for (int k = 0; k < num_k; k += 32) {
        const uint4 top = *reinterpret_cast<const uint4*>(a + g * num_k + k + 8 * t);
        const uint4 low = load_l2_16_if(a + (g + 8) * num_k + k + 8 * t, true);
        const uint4 right = load_16_if(b + g * num_k + k + 8 * t, true);
        const u32 first[4] = {top.x, low.x, top.y, low.y}, second[4] = {top.z, low.z, top.w, low.w};
        mma_bf16(sum, first, right.x, right.y);
        mma_bf16(sum, second, right.z, right.w);
    }
    pdl_trigger();
    for (int i = 0; i < 4; ++i) c[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = sum[i];
}

// Per thread: warp sum, ballot of odd values, neighbour's value, block sum, value of the lane reversed.
extern "C" __global__ void __launch_bounds__(256) reduce(float* out, const float* in) {
    SHARED(float, scratch);
    pdl_wait();
    const float v = in[threadIdx.x];
    float* row = out + threadIdx.x * 5;
    row[0] = warp_sum(v);
    row[1] = static_cast<float>(__popc(__ballot_sync(FULL_WARP, static_cast<int>(v) & 1)));
    row[2] = __shfl_up_sync(FULL_WARP, v, 1);
    row[3] = block_sum(v, scratch);
    row[4] = __shfl_sync(FULL_WARP, v, 31 - lane_id());
}

// Every block writes its number; the last one adds them in order. Twice, to see the counters return to zero.
extern "C" __global__ void ticket(float* total, float* parts, u32* counters) {
    pdl_wait();
    for (int round = 0; round < 2; ++round) {
        if (threadIdx.x == 0) parts[round * gridDim.x + blockIdx.x] = static_cast<float>(blockIdx.x + round);
        if (!arrive_last(counters + round, gridDim.x)) continue;
        float sum = 0.f;
        for (int i = 0; i < static_cast<int>(gridDim.x); ++i) sum += parts[round * gridDim.x + i];
        if (threadIdx.x == 0) total[round] = sum;
    }
}

// Asynchronous copies, dynamic shared memory beyond 48 KB, two groups of warps at barriers of their own.
extern "C" __global__ void stage(float* out, const float* in, int num_floats, i64 stride, float scale) {
    SHARED(float, buffer);
    pdl_wait();
    for (int i = 4 * threadIdx.x; i < num_floats; i += 4 * blockDim.x)
        copy_async_16(buffer + i, in + blockIdx.x * stride + i, i % 8 == 0);
    copy_async_commit();
    copy_async_wait<0>();
    const int half = static_cast<int>(blockDim.x) / 2, side = threadIdx.x / half;
    __syncthreads();
    named_barrier(1 + side, half);
    for (int i = threadIdx.x; i < num_floats; i += blockDim.x)
        out[blockIdx.x * stride + i] = scale * buffer[num_floats - 1 - i];
}

DEVICE float high_half(u32 packed) { return __uint_as_float(packed & 0xffff0000u); }

// bf16 words and fast functions, one row of eight outputs a thread.
extern "C" __global__ void convert(float* out, const float* in, int count) {
    pdl_wait();
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    const float v = in[i];
    const u32 pair = pack_bf16(v, -v);
    const u32 product = mul_bf16x2(pair, 0x40003f80u);  // times (1, 2)
    float* row = out + i * 8;
    row[0] = from_bf16(to_bf16(v));
    row[1] = high_half(pair);
    row[2] = from_bf16(static_cast<u16>(product));
    row[3] = high_half(product);
    row[4] = fast_exp2(v);
    row[5] = fast_exp(v);
    row[6] = fast_reciprocal(v);
    row[7] = fast_rsqrt(fabsf(v));
}

extern "C" __global__ void add_one(float* out, const float* in, int count) {
    pdl_wait();
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] = in[i] + 1.f;
    pdl_trigger();
}

// Two warps: one asks for chunks of 256 bytes in a ring of two places, the other adds them up and frees the place.
extern "C" __global__ void ring(float* out, const float* in, int num_chunks) {
    SHARED(float, places);  // [2][64], then 2 x 2 copy barriers
    u64* const full = reinterpret_cast<u64*>(places + 128);
    u64* const done = full + 2;
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; ++i) copy_barrier_init(full + i, 1), copy_barrier_init(done + i, 32);
        copy_barrier_fence();
    }
    __syncthreads();
    pdl_wait();
    if (warp_id() == 0) {
        for (int i = 0; i < num_chunks && lane_id() == 0; ++i) {
            copy_barrier_wait(done + i % 2, (i / 2 & 1) ^ 1);
            copy_barrier_expect(full + i % 2, 256);
            copy_bulk(places + i % 2 * 64, in + i * 64, 256, full + i % 2);
        }
        return;
    }
    float low = 0.f, high = 0.f;
    for (int i = 0; i < num_chunks; ++i) {
        copy_barrier_wait(full + i % 2, i / 2 & 1);
        low += places[i % 2 * 64 + lane_id()];
        high += places[i % 2 * 64 + 32 + lane_id()];
        copy_barrier_expect(done + i % 2, 0);
    }
    out[lane_id()] = low;
    out[32 + lane_id()] = high;
}

// All blocks write, and read what their neighbour wrote.
extern "C" __global__ void meet(float* out, float* scratch) {
    pdl_wait();
    const int neighbour = (blockIdx.x + 1) % gridDim.x;
    if (threadIdx.x == 0) scratch[blockIdx.x] = static_cast<float>(blockIdx.x);
    if (threadIdx.x != 32) return;
    u32 other;
    while ((other = load_l2(scratch + neighbour)) == NOT_YET) look_again();
    out[blockIdx.x] = __uint_as_float(other);
}

// The blocks of a cluster keep their inputs, meet, and read what each of them has; nobody ends before that.
extern "C" __cluster_dims__(1, 1, 4) __global__ void cluster(float* out, const float* in) {
    SHARED(float4, mine);
    pdl_wait();
    const int block = (blockIdx.y * gridDim.x + blockIdx.x) * 4 + blockIdx.z;
    mine[threadIdx.x] = reinterpret_cast<const float4*>(in)[block * blockDim.x + threadIdx.x];
    cluster_barrier();
    const float4 other = load_cluster_16(mine + (threadIdx.x ^ 1), threadIdx.x / 2 % 4);
    reinterpret_cast<float4*>(out)[block * blockDim.x + threadIdx.x] = other;
    cluster_barrier();
}
