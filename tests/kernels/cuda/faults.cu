// Kernels that do what no kernel may: the emulator must say so.
#include "common.cuh"
#include "wgmma.cuh"

extern "C" __global__ void past_the_end(float* out, int count) {
    pdl_wait();
    out[count + threadIdx.x] = 1.f;
}

extern "C" __global__ void past_shared() {
    SHARED(float, buffer);
    pdl_wait();
    buffer[32 + threadIdx.x] = 1.f;
}

extern "C" __global__ void unwritten_shared(float* out) {
    SHARED(float, buffer);
    __shared__ float other[32];
    pdl_wait();
    out[threadIdx.x] = buffer[threadIdx.x] + other[threadIdx.x];
}

extern "C" __global__ void missing_barrier(float* out) {
    SHARED(float, buffer);
    pdl_wait();
    buffer[threadIdx.x] = 1.f;
    out[threadIdx.x] = buffer[threadIdx.x ^ 63];
}

extern "C" __global__ void half_a_warp(float* out) {
    pdl_wait();
    if (threadIdx.x < 16) out[threadIdx.x] = warp_sum(1.f);
}

extern "C" __global__ void two_operations(float* out) {
    pdl_wait();
    out[threadIdx.x] = threadIdx.x < 16 ? warp_sum(1.f) : static_cast<float>(__ballot_sync(FULL_WARP, 1));
}

extern "C" __global__ void no_wait(float* out) { out[threadIdx.x] = 1.f; }

extern "C" __global__ void early_read(float* out, const float* in) {
    const uint4 v = load_16_if(in, true);
    pdl_wait();
    out[threadIdx.x] = __uint_as_float(v.x);
}

extern "C" __global__ void misaligned(float* out, const float* in) {
    pdl_wait();
    out[threadIdx.x] = __uint_as_float(load_16_if(in + 1, true).x);
}

extern "C" __global__ void no_wgmma_wait() {
    SHARED(u8, rows);
    float sums[8] = {};
    const u32 factors[4] = {};
    pdl_wait();
    wgmma(sums, factors, wgmma_rows(wgmma_begin(rows + (-reinterpret_cast<u64>(rows) & 1023)), 0, 0));
    wgmma_commit();
}

extern "C" __global__ void misaligned_store(float* out) {
    pdl_wait();
    *reinterpret_cast<uint4*>(out + 2 * threadIdx.x) = {0, 0, 0, 0};
}
