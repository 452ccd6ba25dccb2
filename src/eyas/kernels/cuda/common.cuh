// What every kernel here is written in: types, loads, bf16 arithmetic, the matrix instruction, reductions, PDL, tickets.
//
// Includes nothing of the CUDA toolkit, so NVRTC alone compiles it. With -DEYAS_EMULATE the same names come from
// emulate.h (tests/kernels/cuda/emulator), where g++ compiles them for fibers on a CPU; a kernel that keeps to these
// names and to CUDA's own __syncthreads, __shfl_*_sync, __ballot_sync, atomics and math functions runs on both.
#pragma once

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;

constexpr u32 FULL_WARP = 0xffffffffu;

#ifdef EYAS_EMULATE
#include "emulate.h"
#else

#define DEVICE __device__ __forceinline__

// Dynamic shared memory as T*, 128-byte aligned. Its size is the `shared` argument of Kernel.launch.
#define SHARED(T, name)                                          \
    extern __shared__ __align__(128) unsigned char eyas_shared[]; \
    T* const name = reinterpret_cast<T*>(eyas_shared)

// The same, 1,024-byte aligned for wgmma's rows. The size must be a multiple of that in the emulator.
#define SHARED_1024(T, name)                                           \
    extern __shared__ __align__(1024) unsigned char eyas_shared_1024[]; \
    T* const name = reinterpret_cast<T*>(eyas_shared_1024)

// ---- programmatic dependent launch -------------------------------------------------------------------------------
// Read what other kernels of the chain write only after pdl_wait(); every kernel must call it before it ends.

DEVICE void pdl_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

DEVICE void pdl_trigger() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// ---- loads of 4 bytes, and of 16 (aligned; zeros without touching memory where `valid` is false) ------------------

// What an earlier kernel wrote; the memory clobber keeps it behind pdl_wait() and barriers.
DEVICE uint4 load_16_if(const void* address, bool valid) {
    uint4 v = {0, 0, 0, 0};
    asm volatile(
        "{ .reg .pred p; setp.ne.u32 p, %5, 0;\n"
        "@p ld.global.v4.u32 {%0, %1, %2, %3}, [%4]; }"
        : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
        : "l"(address), "r"(static_cast<u32>(valid))
        : "memory");
    return v;
}

// What other blocks of this launch, or earlier kernels, wrote.
// Relaxed, as the compiler takes a weak load in a loop for one that always gives the same.
DEVICE u32 load_l2(const void* address) {
    u32 v;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(address) : "memory");
    return v;
}

DEVICE uint4 load_l2_16_if(const void* address, bool valid) {
    uint4 v = {0, 0, 0, 0};
    asm volatile(
        "{ .reg .pred p; setp.ne.u32 p, %5, 0;\n"
        "@p ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4]; }"
        : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
        : "l"(address), "r"(static_cast<u32>(valid))
        : "memory");
    return v;
}

DEVICE uint2 load_l2_8_if(const void* address, bool valid) {
    uint2 v = {0, 0};
    asm volatile(
        "{ .reg .pred p; setp.ne.u32 p, %3, 0;\n"
        "@p ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2]; }"
        : "+r"(v.x), "+r"(v.y)
        : "l"(address), "r"(static_cast<u32>(valid))
        : "memory");
    return v;
}

// ---- copies to shared memory that do not pass through registers --------------------------------------------------

DEVICE u32 shared_address(const void* pointer) { return static_cast<u32>(__cvta_generic_to_shared(pointer)); }

// 16 bytes; zeros where `valid` is false.
DEVICE void copy_async_16(void* shared, const void* global, bool valid = true) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global),
                 "r"(valid ? 16 : 0)
                 : "memory");
}

DEVICE void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most N of this thread's groups are under way; a barrier then shows the data to others.
template <int N>
DEVICE void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// ---- bulk copies to shared memory: one thread asks, a barrier in shared memory counts the bytes -------------------

// For `arrivals` calls of copy_barrier_expect per phase. Then copy_barrier_fence(), then a barrier of the users.
DEVICE void copy_barrier_init(u64* barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

DEVICE void copy_barrier_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// One arrival; the phase ends when all have arrived and their bytes are there.
DEVICE void copy_barrier_expect(u64* barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}

// Phases count 0, 1, 0, 1 ...: waits until the current phase of this parity has ended.
DEVICE void copy_barrier_wait(u64* barrier, u32 parity) {
    u32 done = 0;
    while (!done) {
        asm volatile(
            "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
            "selp.u32 %0, 1, 0, p; }"
            : "=r"(done)
            : "r"(shared_address(barrier)), "r"(parity)
            : "memory");
    }
}

// An arrival once all of this thread's copy_async_16 are there, of which none may be in a group.
DEVICE void copy_async_arrive(u64* barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// `bytes` (a multiple of 16) of data that is read once: the first to leave L2. Where the shared memory has been read
// before, whoever asks must know that the reads have their values: a barrier alone does not say so, and the copy then
// overtakes reads under load (seen on an H200, about one in 10^5).
DEVICE void copy_bulk(void* shared, const void* global, u32 bytes, u64* barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
            shared_address(shared)),
        "l"(global), "r"(bytes), "r"(shared_address(barrier)), "l"(0x12f0000000000000ull)  // evict_first
        : "memory");
}

// The same of data that is read again soon.
DEVICE void copy_bulk_kept(void* shared, const void* global, u32 bytes, u64* barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(shared)),
                 "l"(global), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}

// ---- bf16, two to a word -----------------------------------------------------------------------------------------

// Rounds to nearest even; NaN becomes 0x7fff.
DEVICE u32 pack_bf16(float low, float high) {
    u32 packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

DEVICE u16 to_bf16(float value) {
    u16 bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

DEVICE float from_bf16(u16 bits) { return __uint_as_float(static_cast<u32>(bits) << 16); }

// Both halves, rounded to nearest even, subnormals kept.
DEVICE u32 mul_bf16x2(u32 a, u32 b) {
    u32 product;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
    return product;
}

// The same with one half of b for both.
DEVICE u32 mul_bf16x2_low(u32 a, u32 b) {
    u32 product;
    asm("{ .reg .b16 l, h; .reg .b32 f; mov.b32 {l, h}, %2; mov.b32 f, {l, l}; mul.rn.bf16x2 %0, %1, f; }"
        : "=r"(product)
        : "r"(a), "r"(b));
    return product;
}

DEVICE u32 mul_bf16x2_high(u32 a, u32 b) {
    u32 product;
    asm("{ .reg .b16 l, h; .reg .b32 f; mov.b32 {l, h}, %2; mov.b32 f, {h, h}; mul.rn.bf16x2 %0, %1, f; }"
        : "=r"(product)
        : "r"(a), "r"(b));
    return product;
}

// ---- e4m3 --------------------------------------------------------------------------------------------------------

// As __byte_perm, where 8 added to a digit of the selector means eight times the sign of that byte.
DEVICE u32 byte_perm_signs(u32 x, u32 y, u32 selector) {
    u32 picked;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(picked) : "r"(x), "r"(y), "r"(selector));
    return picked;
}

// Four to a word, the first in the lowest byte, rounded to nearest even; numbers up to 448.
DEVICE u32 pack_e4m3(float a, float b, float c, float d) {
    u32 packed;
    asm("{ .reg .b16 l, h; cvt.rn.satfinite.e4m3x2.f32 l, %2, %1; cvt.rn.satfinite.e4m3x2.f32 h, %4, %3;\n"
        "mov.b32 %0, {l, h}; }"
        : "=r"(packed)
        : "f"(a), "f"(b), "f"(c), "f"(d));
    return packed;
}

// The f16 of four e4m3, which holds them all.
DEVICE void unpack_e4m3(u32 four, u32& low, u32& high) {
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; cvt.rn.f16x2.e4m3x2 %0, l; cvt.rn.f16x2.e4m3x2 %1, h; }"
        : "=r"(low), "=r"(high)
        : "r"(four));
}

DEVICE u32 pack_f16(float low, float high) {
    u32 packed;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

// a b + c of both halves, f16.
DEVICE u32 fma_f16x2(u32 a, u32 b, u32 c) {
    u32 sum;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
    return sum;
}

DEVICE u32 mul_f16x2(u32 a, u32 b) {
    u32 product;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
    return product;
}

// ---- matrix instruction ------------------------------------------------------------------------------------------
// c[16][8] += a[16][16] b[16][8], bf16 in, fp32 out. Lane 4 g + t holds
//   a: {row g, k 2t 2t+1}, {row g+8, same k}, {row g, k 2t+8 2t+9}, {row g+8, same k};  b: k 2t 2t+1 | k 2t+8 2t+9 of column g
//   c: (row g, column 2t), (g, 2t+1), (g+8, 2t), (g+8, 2t+1).
// Which k of memory these sixteen are is free, as long as a and b agree.
DEVICE void mma_bf16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The same of f16.
DEVICE void mma_f16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The program's order is kept between the matrix instructions that made c and what follows.
DEVICE void keep_order(float (&c)[4]) {
    asm volatile("" : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])::"memory");
}

// ---- fast functions (relative error about 2^-22; exp2 flushes subnormals) ----------------------------------------

DEVICE float fast_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

DEVICE float fast_reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

DEVICE float fast_rsqrt(float x) {
    float y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// ---- barriers and tickets ----------------------------------------------------------------------------------------

// A barrier of `threads` threads (a multiple of 32) of a block; ids 1 .. 15 (0 is __syncthreads).
DEVICE void named_barrier(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

// Adds one to a counter that returns to 0 after `expected` calls. True for the last of them, which then sees what
// the others wrote before theirs.
DEVICE bool take_ticket(u32* counter, u32 expected) {
    u32 before;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(counter), "r"(expected - 1)
                 : "memory");
    return before == expected - 1;
}

// In a loop that loads what another block is to write, after each load that came too early.
DEVICE void look_again() {}

// ---- clusters: blocks that differ in blockIdx.z alone, by __cluster_dims__(1, 1, n) -------------------------------

// Every thread of every block of the cluster: what they wrote before, shared memory too, is seen after.
DEVICE void cluster_barrier() {
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

// The same in two: what was written before the first is seen by all after their second.
DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.aligned;" ::: "memory"); }

DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }

// 16 bytes where block `z` of the cluster has what this block has at `shared`.
DEVICE float4 load_cluster_16(const void* shared, u32 z) {
    float4 v;
    asm volatile(
        "{ .reg .u32 address; mapa.shared::cluster.u32 address, %4, %5;\n"
        "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [address]; }"
        : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
        : "r"(shared_address(shared)), "r"(z)
        : "memory");
    return v;
}

#endif  // EYAS_EMULATE

// Where one stands in a ring: the place, and the parity of its phase.
template <int SIZE>
struct Place {
    int number = 0;
    u32 parity = 0;

    __device__ void step() {
        if (++number == SIZE) number = 0, parity ^= 1;
    }

    __device__ void skip(int count) {
        number += count;
        while (number >= SIZE) number -= SIZE, parity ^= 1;
    }
};

// ---- values that blocks of a launch hand to each other -----------------------------------------------------------
// The memory has the bits of NOT_YET before the launch, and again before the next. They are a NaN that arithmetic does
// not give: its own are 0x7fffffff, and 0x7fff as bf16.

constexpr u32 NOT_YET = 0xffffffffu;

// Whether one of four words is not there yet.
DEVICE bool not_yet(const uint4& v) { return v.x == NOT_YET || v.y == NOT_YET || v.z == NOT_YET || v.w == NOT_YET; }

// Not 0 if one of a word's two bf16 is not there yet.
DEVICE u32 halves_not_yet(u32 word) { return (~word - 0x00010001u) & word & 0x80008000u; }

// ---- built on the above ------------------------------------------------------------------------------------------

// Two e4m3, bytes `low` and `high` of two words (4 .. 7: of the second), as bf16. Their bits at the end of those of a
// bf16 are the numbers times 2^-120, subnormals too. Each byte comes with a byte of its sign in front of it, so that one
// shift and one mask bring both parts to their places.
DEVICE u32 widen_e4m3(u32 first, u32 second, u32 low, u32 high) {
    const u32 selector = low | (low | 8) << 4 | high << 8 | (high | 8) << 12;
    return byte_perm_signs(first, second, selector) << 4 & 0x87f087f0u;
}

constexpr float LOG2_E = 1.4426950408889634f;

DEVICE float fast_exp(float x) { return fast_exp2(x * LOG2_E); }

DEVICE int lane_id() { return threadIdx.x & 31; }
DEVICE int warp_id() { return threadIdx.x >> 5; }

// Over all lanes, in one fixed order; every lane gets the result.
DEVICE float warp_sum(float v) {
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) v += __shfl_xor_sync(FULL_WARP, v, step);
    return v;
}

DEVICE u32 warp_sum(u32 v) { return __reduce_add_sync(FULL_WARP, v); }

// Sum over the block's warps in the order of their numbers. `scratch`: one number per warp, in shared memory, free
// again when the function returns. Every thread of the block calls it.
template <typename T>
DEVICE T block_sum(T v, T* scratch) {
    v = warp_sum(v);
    if (lane_id() == 0) scratch[warp_id()] = v;
    __syncthreads();
    T total = 0;
    for (int w = 0; w < static_cast<int>(blockDim.x) / 32; ++w) total += scratch[w];
    __syncthreads();
    return total;
}

// Every thread of `expected` blocks calls it once, after the writes that the last block is to read. True in the block
// that came last; the counter is 0 again then. Counters start at 0 and belong to one launch at a time.
DEVICE bool arrive_last(u32* counter, u32 expected) {
    __shared__ bool last;
    __syncthreads();
    if (threadIdx.x == 0) last = take_ticket(counter, expected);
    __syncthreads();
    return last;
}
