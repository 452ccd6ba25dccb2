// CUDA's words and common.cuh's, for g++: see fibers.h for how threads run.
//
// Errors, with the place where they happened: an access past the end of a tensor or of shared memory, one that is not
// aligned to its type, lanes that meet in different warp operations, a barrier that no thread can complete, load_16_if
// before pdl_wait(), a block that ends without pdl_wait() or with bulk copies or matrix instructions under way. Shared
// memory starts as NaN.
// Not here: warp operations on part of a warp, blocks that wait for others except by look_again and cluster_barrier,
// atomics on floats.
#pragma once

#include "fibers.h"

struct uint2 { u32 x, y; } __attribute__((aligned(8)));
struct uint4 { u32 x, y, z, w; } __attribute__((aligned(16)));
struct int2 { int x, y; } __attribute__((aligned(8)));
struct int4 { int x, y, z, w; } __attribute__((aligned(16)));
struct float2 { float x, y; } __attribute__((aligned(8)));
struct float4 { float x, y, z, w; } __attribute__((aligned(16)));
static inline uint2 make_uint2(u32 x, u32 y) { return {x, y}; }
static inline uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
static inline int2 make_int2(int x, int y) { return {x, y}; }
static inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

// ---- CUDA's words ------------------------------------------------------------------------------------------------

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ inline
#define __shared__ static __attribute__((section("eyas_shared")))
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define DEVICE static inline
#define SHARED(T, name) T* const name = reinterpret_cast<T*>(emulate::state.here->shared)
#define SHARED_1024(T, name) SHARED(T, name); emulate::check_aligned<1024>(name)

#define threadIdx (emulate::state.current->thread)
#define blockIdx (emulate::state.here->index)
#define blockDim (emulate::state.block)
#define gridDim (emulate::state.grid)

static inline void __syncthreads() { emulate::barrier(0, emulate::state.num_threads, "__syncthreads"); }
static inline void __syncwarp(u32 mask = 0xffffffffu) {
    emulate::check_mask(mask);
    emulate::collective("__syncwarp", 0, [](int*) {});
}
static inline void __threadfence() {}
static inline void __threadfence_block() {}

template <class T>
static inline T __shfl_sync(u32 mask, T value, int source, int width = 32) {
    const int lane = emulate::state.current->number % 32;
    return emulate::exchange("__shfl_sync", mask, value, lane / width * width + source % width);
}
template <class T>
static inline T __shfl_xor_sync(u32 mask, T value, int flip, int width = 32) {
    const int lane = emulate::state.current->number % 32, source = lane ^ flip;
    return emulate::exchange("__shfl_xor_sync", mask, value, source / width > lane / width ? lane : source);
}
template <class T>
static inline T __shfl_up_sync(u32 mask, T value, int delta, int width = 32) {
    const int lane = emulate::state.current->number % 32;
    return emulate::exchange("__shfl_up_sync", mask, value, lane % width < delta ? lane : lane - delta);
}
template <class T>
static inline T __shfl_down_sync(u32 mask, T value, int delta, int width = 32) {
    const int lane = emulate::state.current->number % 32;
    return emulate::exchange("__shfl_down_sync", mask, value, lane % width + delta >= width ? lane : lane + delta);
}
static inline u32 __ballot_sync(u32 mask, int predicate) {
    emulate::check_mask(mask);
    return emulate::collective("__ballot_sync", u32(predicate != 0), [](u32* all) {
        u32 bits = 0;
        for (int lane = 0; lane < 32; ++lane) bits |= all[lane] << lane;
        std::fill(all, all + 32, bits);
    });
}
static inline u32 __match_any_sync(u32 mask, u32 value) {
    emulate::check_mask(mask);
    return emulate::collective("__match_any_sync", value, [](u32* all) {
        u32 bits[32] = {};
        for (int lane = 0; lane < 32; ++lane)
            for (int other = 0; other < 32; ++other) bits[lane] |= u32(all[other] == all[lane]) << other;
        std::copy(bits, bits + 32, all);
    });
}
static inline int __any_sync(u32 mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
static inline int __all_sync(u32 mask, int predicate) { return __ballot_sync(mask, predicate) == 0xffffffffu; }
template <class F>
static inline u32 emulated_reduce(const char* kind, u32 mask, u32 value, F f) {
    emulate::check_mask(mask);
    return emulate::collective(kind, value, [f](u32* all) {
        u32 total = all[0];
        for (int lane = 1; lane < 32; ++lane) total = f(total, all[lane]);
        std::fill(all, all + 32, total);
    });
}
static inline u32 __reduce_add_sync(u32 mask, u32 v) {
    return emulated_reduce("__reduce_add_sync", mask, v, [](u32 a, u32 b) { return a + b; });
}
static inline u32 __reduce_max_sync(u32 mask, u32 v) {
    return emulated_reduce("__reduce_max_sync", mask, v, [](u32 a, u32 b) { return a > b ? a : b; });
}
static inline u32 __reduce_min_sync(u32 mask, u32 v) {
    return emulated_reduce("__reduce_min_sync", mask, v, [](u32 a, u32 b) { return a < b ? a : b; });
}
static inline u32 __reduce_or_sync(u32 mask, u32 v) {
    return emulated_reduce("__reduce_or_sync", mask, v, [](u32 a, u32 b) { return a | b; });
}

template <class T>
static inline T atomicAdd(T* address, T value) {
    static_assert(std::is_integral<T>::value, "no floating-point atomics: their order is not fixed");
    const T before = *address;
    *address = before + value;
    return before;
}
template <class T>
static inline T atomicMax(T* address, T value) { const T before = *address; if (value > before) *address = value; return before; }
template <class T>
static inline T atomicMin(T* address, T value) { const T before = *address; if (value < before) *address = value; return before; }
template <class T>
static inline T atomicOr(T* address, T value) { const T before = *address; *address = before | value; return before; }
template <class T>
static inline T atomicExch(T* address, T value) { const T before = *address; *address = value; return before; }
template <class T>
static inline T atomicCAS(T* address, T expected, T value) { const T before = *address; if (before == expected) *address = value; return before; }
static inline u32 atomicInc(u32* address, u32 limit) { const u32 before = *address; *address = before >= limit ? 0 : before + 1; return before; }

template <class T, class U>
static inline T emulated_cast(U value) { static_assert(sizeof(T) == sizeof(U), ""); T result; memcpy(&result, &value, sizeof(T)); return result; }
static inline float __uint_as_float(u32 v) { return emulated_cast<float>(v); }
static inline float __int_as_float(int v) { return emulated_cast<float>(v); }
static inline u32 __float_as_uint(float v) { return emulated_cast<u32>(v); }
static inline int __float_as_int(float v) { return emulated_cast<int>(v); }
static inline float rsqrtf(float v) { return 1.f / sqrtf(v); }
#define __expf expf  // glibc declares functions of these names
#define __logf logf
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __frcp_rn(float a) { return 1.f / a; }
static inline int __float2int_rn(float a) { return static_cast<int>(nearbyintf(a)); }
static inline int __popc(u32 v) { return __builtin_popcount(v); }
static inline int __popcll(u64 v) { return __builtin_popcountll(v); }
static inline int __clz(int v) { return v ? __builtin_clz(static_cast<u32>(v)) : 32; }
static inline int __ffs(int v) { return __builtin_ffs(v); }
static inline u32 __brev(u32 v) { u32 r = 0; for (int i = 0; i < 32; ++i) r |= (v >> i & 1) << (31 - i); return r; }
static inline u32 __funnelshift_l(u32 low, u32 high, u32 shift) { return static_cast<u32>((u64(high) << 32 | low) << (shift & 31) >> 32); }
static inline u32 __funnelshift_r(u32 low, u32 high, u32 shift) { return static_cast<u32>((u64(high) << 32 | low) >> (shift & 31)); }
static inline u32 __umulhi(u32 a, u32 b) { return static_cast<u32>(u64(a) * b >> 32); }
static inline u32 __byte_perm(u32 x, u32 y, u32 selector) {
    const u64 bytes = u64(y) << 32 | x;
    u32 result = 0;
    for (int i = 0; i < 4; ++i) {
        const u32 pick = selector >> 4 * i & 0xf;
        u32 byte = static_cast<u32>(bytes >> 8 * (pick & 7)) & 0xff;
        if (pick & 8) byte = byte & 0x80 ? 0xff : 0;
        result |= byte << 8 * i;
    }
    return result;
}
template <class T>
static inline T __ldg(const T* address) { return *address; }
template <class T, class U>
static inline std::common_type_t<T, U> min(T a, U b) { return a < b ? a : b; }
template <class T, class U>
static inline std::common_type_t<T, U> max(T a, U b) { return a > b ? a : b; }

// ---- common.cuh's words ------------------------------------------------------------------------------------------

DEVICE void pdl_wait() { emulate::state.here->waited = true; }
DEVICE void pdl_trigger() {}

DEVICE uint4 load_16_if(const void* address, bool valid) {
    if (!valid) return {0, 0, 0, 0};
    if (emulate::state.pdl && !emulate::state.here->waited) emulate::fail("load_16_if before pdl_wait()");
    return emulate::load<uint4>(address);
}
DEVICE u32 load_l2(const void* address) { return emulate::load<u32>(address); }
DEVICE uint2 load_l2_8_if(const void* address, bool valid) { return valid ? emulate::load<uint2>(address) : uint2{0, 0}; }
DEVICE uint4 load_l2_16_if(const void* address, bool valid) { return valid ? emulate::load<uint4>(address) : uint4{0, 0, 0, 0}; }

DEVICE void copy_async_16(void* shared, const void* global, bool valid = true) {
    emulate::state.current->uncommitted.push_back(emulate::ask(shared, valid ? global : nullptr, 16));
}
DEVICE void copy_async_commit() {
    emulate::Fiber* self = emulate::state.current;
    self->groups.push_back(std::move(self->uncommitted));
    self->uncommitted.clear();
}
template <int N>
DEVICE void copy_async_wait() {
    auto& groups = emulate::state.current->groups;
    for (; groups.size() > N; groups.pop_front())
        for (const emulate::Copy& copy : groups.front()) emulate::perform(copy);
}

DEVICE void copy_barrier_init(u64* barrier, u32 arrivals) {
    emulate::check_aligned<8>(barrier);
    emulate::state.here->copy_barriers[barrier] = {arrivals, arrivals};
}
DEVICE void copy_barrier_fence() {}
DEVICE void copy_barrier_expect(u64* barrier, u32 bytes) { emulate::expect(barrier, bytes); }
DEVICE void copy_async_arrive(u64* barrier) { emulate::arrive_when_copied(barrier); }
DEVICE void copy_barrier_wait(u64* barrier, u32 parity) { emulate::wait_for_copies(barrier, parity); }
DEVICE void copy_bulk(void* shared, const void* global, u32 bytes, u64* barrier) {
    if (bytes % 16) emulate::fail("bulk copy of %u bytes: not a multiple of 16", bytes);
    emulate::copy_barrier(barrier);
    emulate::state.here->copies.push_back(emulate::ask(shared, global, bytes, barrier));
}

DEVICE void copy_bulk_kept(void* shared, const void* global, u32 bytes, u64* barrier) { copy_bulk(shared, global, bytes, barrier); }

DEVICE u16 to_bf16(float value) {
    if (value != value) return 0x7fff;
    const u32 bits = __float_as_uint(value);
    return static_cast<u16>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
DEVICE u32 byte_perm_signs(u32 x, u32 y, u32 selector) { return __byte_perm(x, y, selector); }
// To nearest even: 3 bits of mantissa, and steps of 2^-9 below 2^-6.
static inline u32 emulated_e4m3(float value) {
    const u32 sign = __float_as_uint(value) >> 24 & 0x80;
    const float magnitude = fabsf(value);
    if (magnitude != magnitude) return 0x7f;
    if (magnitude >= 448.f) return sign | 0x7e;
    if (magnitude < 0.015625f) return sign | static_cast<u32>(nearbyintf(magnitude * 512.f));
    const u32 bits = __float_as_uint(magnitude);
    return sign | ((bits + 0x7ffff + (bits >> 20 & 1)) >> 20) - (120 << 3);
}
DEVICE u32 pack_e4m3(float a, float b, float c, float d) {
    return emulated_e4m3(a) | emulated_e4m3(b) << 8 | emulated_e4m3(c) << 16 | emulated_e4m3(d) << 24;
}
DEVICE u32 pack_bf16(float low, float high) { return to_bf16(low) | u32(to_bf16(high)) << 16; }
DEVICE float from_bf16(u16 bits) { return __uint_as_float(u32(bits) << 16); }
static inline float emulated_low(u32 packed) { return __uint_as_float(packed << 16); }
static inline float emulated_high(u32 packed) { return __uint_as_float(packed & 0xffff0000u); }
DEVICE u32 mul_bf16x2(u32 a, u32 b) { return pack_bf16(emulated_low(a) * emulated_low(b), emulated_high(a) * emulated_high(b)); }
DEVICE u32 mul_bf16x2_low(u32 a, u32 b) { return mul_bf16x2(a, (b & 0xffff) * 0x10001u); }
DEVICE u32 mul_bf16x2_high(u32 a, u32 b) { return mul_bf16x2(a, (b >> 16) * 0x10001u); }

static inline float emulated_f16(u16 bits) {
    _Float16 value;
    memcpy(&value, &bits, 2);
    return value;
}
static inline float emulated_f16_low(u32 packed) { return emulated_f16(packed); }
static inline float emulated_f16_high(u32 packed) { return emulated_f16(packed >> 16); }
DEVICE u32 pack_f16(float low, float high) {
    const _Float16 both[2] = {static_cast<_Float16>(low), static_cast<_Float16>(high)};
    u32 packed;
    memcpy(&packed, both, 4);
    return packed;
}
DEVICE u32 fma_f16x2(u32 a, u32 b, u32 c) {
    const auto one = [](float x, float y, float z) { return static_cast<_Float16>(static_cast<double>(x) * y + z); };
    const _Float16 both[2] = {one(emulated_f16_low(a), emulated_f16_low(b), emulated_f16_low(c)),
                              one(emulated_f16_high(a), emulated_f16_high(b), emulated_f16_high(c))};
    u32 packed;
    memcpy(&packed, both, 4);
    return packed;
}
DEVICE u32 mul_f16x2(u32 a, u32 b) { return fma_f16x2(a, b, 0); }
static inline float emulated_from_e4m3(u32 byte) {
    const u32 magnitude = byte & 0x7f;
    if (magnitude == 0x7f) return NAN;
    return (byte & 0x80 ? -0x1p120f : 0x1p120f) * __uint_as_float(magnitude << 20);
}
DEVICE void unpack_e4m3(u32 four, u32& low, u32& high) {
    low = pack_f16(emulated_from_e4m3(four & 0xff), emulated_from_e4m3(four >> 8 & 0xff));
    high = pack_f16(emulated_from_e4m3(four >> 16 & 0xff), emulated_from_e4m3(four >> 24));
}

// The sum of 16 products and c is rounded once; the tensor cores' own rounding differs in the last bits.
template <float LOW(u32), float HIGH(u32)>
static void emulated_mma(const char* name, float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    struct Lane { u32 a[4], b[2]; float c[4]; };
    const Lane mine{{a[0], a[1], a[2], a[3]}, {b0, b1}, {c[0], c[1], c[2], c[3]}};
    const Lane result = emulate::collective(name, mine, [](Lane* all) {
        using Row = double __attribute__((vector_size(64)));
        double left[16][16];
        Row right[16], sum[16];
        for (int lane = 0; lane < 32; ++lane) {
            const int g = lane / 4, t = lane % 4;
            for (int i = 0; i < 4; ++i) {
                const u32 word = all[lane].a[i];
                double* const pair = &left[g + i % 2 * 8][2 * t + i / 2 * 8];
                pair[0] = LOW(word), pair[1] = HIGH(word);
                sum[g + i / 2 * 8][2 * t + i % 2] = all[lane].c[i];
            }
            for (int i = 0; i < 2; ++i) {
                right[2 * t + 8 * i][g] = LOW(all[lane].b[i]);
                right[2 * t + 8 * i + 1][g] = HIGH(all[lane].b[i]);
            }
        }
        for (int row = 0; row < 16; ++row)
            for (int k = 0; k < 16; ++k) sum[row] += left[row][k] * right[k];
        for (int lane = 0; lane < 32; ++lane)
            for (int i = 0; i < 4; ++i)
                all[lane].c[i] = static_cast<float>(sum[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2]);
    });
    for (int i = 0; i < 4; ++i) c[i] = result.c[i];
}
DEVICE void mma_bf16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    emulated_mma<emulated_low, emulated_high>("mma_bf16", c, a, b0, b1);
}
DEVICE void mma_f16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    emulated_mma<emulated_f16_low, emulated_f16_high>("mma_f16", c, a, b0, b1);
}

DEVICE void keep_order(float (&)[4]) {}

// Matrix instructions of a warpgroup run when they are waited for, on what registers and shared memory hold then: what
// is changed, or read, too early gives wrong results. Each warp runs its own rows.
template <int COUNT>
DEVICE void take_registers() {}
template <int COUNT>
DEVICE void give_registers() {}
DEVICE void async_fence() {}
DEVICE void wgmma_fence() {}
template <int N>
DEVICE void wgmma_ready(u32 (&)[N][4]) {}
template <int N>
DEVICE void wgmma_done(float (&)[N]) {}
DEVICE void settle(float) {}
constexpr u64 EMULATED_SHORT_ROWS = 256, EMULATED_STEP = 255;  // beside the address, which is a multiple of 512
struct WgmmaRows {
    const u8* base;
};
DEVICE WgmmaRows wgmma_begin(const u8* rows) { return {rows}; }
DEVICE u64 wgmma_rows(WgmmaRows rows, int bytes, int step) {
    const u64 at = reinterpret_cast<u64>(rows.base) + bytes;
    if (at % 1024) emulate::fail("wgmma: rows at %p, not at a multiple of 1,024 bytes", rows.base + bytes);
    return at | step;
}
DEVICE u64 wgmma_short_rows(const u8* rows, int step) {
    if (reinterpret_cast<u64>(rows) % 512) emulate::fail("wgmma: rows at %p, not at a multiple of 512 bytes", rows);
    return reinterpret_cast<u64>(rows) | EMULATED_SHORT_ROWS | step;
}
template <int SIZE>
DEVICE void wgmma(float (&d)[SIZE], const u32 (&a)[4], u64 rows) {
    emulate::state.current->products.push_back({d, a, rows, SIZE, false, false});
}
DEVICE void wgmma_first(float (&d)[32], const u32 (&a)[4], u64 rows) {
    emulate::state.current->products.push_back({d, a, rows, 32, true, false});
}
DEVICE u64 wgmma_sixteen(WgmmaRows rows, int bytes, int step) { return wgmma_rows(rows, bytes + 2048 * step, 0); }
DEVICE void wgmma_over_rows(float (&d)[32], const u32 (&a)[4], u64 rows) {
    emulate::state.current->products.push_back({d, a, rows, 32, false, true});
}
DEVICE void wgmma_commit() {
    emulate::Fiber* self = emulate::state.current;
    self->product_groups.push_back(std::move(self->products));
    self->products.clear();
}
// A column's numbers in a row and the next, rows of 128 bytes: bits 7 to 9 of an address are added to bits 4 to 6.
static u32 emulated_column(const u8* rows, int row, int column) {
    const auto at = [&](u64 address) {
        return u32(emulate::load<u16>(reinterpret_cast<const void*>(address ^ (address >> 7 & 7) << 4)));
    };
    const u64 address = reinterpret_cast<u64>(rows) + row * 128 + column * 2;
    return at(address) | at(address + 128) << 16;
}
static void emulated_product(const emulate::Product& product) {
    const u8* const base = reinterpret_cast<const u8*>(product.rows & ~u64(511));
    const int lane = emulate::state.current->number % 32, g = lane / 4, t = lane % 4, step = product.rows & EMULATED_STEP;
    const bool is_short = product.rows & EMULATED_SHORT_ROWS;
    const int row_bytes = is_short ? 64 : 128, exchange = is_short ? g >> 1 : g;
    u32 a[4];
    std::copy(product.factors, product.factors + 4, a);
    for (int j = 0; j < product.size / 4; ++j) {
        float c[4];
        std::copy(product.sums + 4 * j, product.sums + 4 * j + 4, c);
        if (product.clears) std::fill(c, c + 4, 0.f);
        const u8* const row = base + (8 * j + g) * row_bytes + 4 * t;
        if (product.over_rows) {
            mma_bf16(c, a, emulated_column(base, 2 * t, 8 * j + g), emulated_column(base, 2 * t + 8, 8 * j + g));
        } else {
            const u32 b0 = emulate::load<u32>(row + (2 * step ^ exchange) * 16);
            mma_bf16(c, a, b0, emulate::load<u32>(row + ((2 * step + 1) ^ exchange) * 16));
        }
        std::copy(c, c + 4, product.sums + 4 * j);
    }
}
template <int PENDING>
DEVICE void wgmma_wait() {
    for (auto& groups = emulate::state.current->product_groups; groups.size() > PENDING; groups.pop_front())
        for (const emulate::Product& product : groups.front()) emulated_product(product);
}

DEVICE float fast_exp2(float x) { return exp2f(x); }
DEVICE float fast_reciprocal(float x) { return 1.f / x; }
DEVICE float fast_rsqrt(float x) { return 1.f / sqrtf(x); }
DEVICE void named_barrier(int id, int threads) { emulate::barrier(id, threads, "named_barrier"); }
DEVICE bool take_ticket(u32* counter, u32 expected) { return atomicInc(counter, expected - 1) == expected - 1; }
DEVICE void look_again() { emulate::look_again(); }
DEVICE void cluster_arrive() {
    __syncthreads();
    if (threadIdx.x == 0) emulate::arrive_at_cluster();
}
DEVICE void cluster_wait() {
    if (threadIdx.x == 0) emulate::wait_for_cluster();
    __syncthreads();
}
DEVICE void cluster_barrier() {
    cluster_arrive();
    cluster_wait();
}
DEVICE float4 load_cluster_16(const void* shared, u32 z) {
    return emulate::load<float4>(emulate::shared_of(z) + (static_cast<const u8*>(shared) - emulate::state.here->shared));
}
