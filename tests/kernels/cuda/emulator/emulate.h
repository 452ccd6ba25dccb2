// CUDA's names for g++: a kernel's threads are fibers on one CPU thread, its blocks run one after the other.
//
// A fiber runs until a barrier or a warp operation makes it wait. Shared memory starts each block as NaN; a read or
// write past the end of a tensor or of shared memory, lanes that meet in different warp operations, a barrier that
// nobody can complete and a block that ends without pdl_wait() are errors with the place where they happened.
// Not here: warp operations on part of a warp, blocks that wait for other blocks, floating-point atomics.
#pragma once

#include <algorithm>
#include <csetjmp>
#include <csignal>
#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <random>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

struct uint2 { u32 x, y; } __attribute__((aligned(8)));
struct uint3 { u32 x, y, z; };
struct uint4 { u32 x, y, z, w; } __attribute__((aligned(16)));
struct int2 { int x, y; } __attribute__((aligned(8)));
struct int4 { int x, y, z, w; } __attribute__((aligned(16)));
struct float2 { float x, y; } __attribute__((aligned(8)));
struct float4 { float x, y, z, w; } __attribute__((aligned(16)));
inline uint2 make_uint2(u32 x, u32 y) { return {x, y}; }
inline uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

namespace emulate {

constexpr int WARP = 32, MAX_THREADS = 1024, MAX_BARRIERS = 16, SLOT_BYTES = 64;
constexpr size_t STACK_BYTES = 256 << 10;

struct Launch {  // filled by the Python side, see __init__.py
    u32 grid[3], block[3];
    u32 shared_bytes, pdl;
    u64 seed;  // 0: blocks and threads in ascending order, else shuffled by it
    void* const* args;
    char* message;  // out: what went wrong, empty if nothing
    u64 message_bytes;
};

struct Fiber {
    jmp_buf jump;
    ucontext_t context;
    uint3 thread;
    int number;
    bool started = false, alive = false;
    const char* waits_for = nullptr;
    u64 num_collectives = 0;
};

struct Warp {
    int num_arrived = 0;
    const char* kind = nullptr;
    alignas(16) unsigned char slots[2][WARP][SLOT_BYTES];
    std::vector<Fiber*> waiting;
};

struct Barrier {
    int num_arrived = 0, expected = 0;
    std::vector<Fiber*> waiting;
};

struct State {
    Fiber* current = nullptr;
    Fiber main;
    std::vector<Fiber*> fibers;
    std::vector<Warp> warps;
    Barrier barriers[MAX_BARRIERS];
    std::deque<Fiber*> ready;
    uint3 block_index{}, grid{}, block{};
    int num_threads = 0, num_alive = 0;
    bool waited = false, pdl = false;
    std::function<void()> body;
    unsigned char *shared = nullptr, *shared_map = nullptr;
    size_t shared_map_bytes = 0;
    const Launch* launch = nullptr;
    const char* kernel = "";
    sigjmp_buf give_up;
};

static State state;

[[noreturn]] __attribute__((format(printf, 1, 2))) static void fail(const char* format, ...) {
    char text[1024];
    va_list values;
    va_start(values, format);
    vsnprintf(text, sizeof text, format, values);
    va_end(values);
    const Fiber* f = state.current;
    snprintf(state.launch->message, state.launch->message_bytes, "%s, block (%u, %u, %u)%s: %s", state.kernel,
             state.block_index.x, state.block_index.y, state.block_index.z,
             f && f != &state.main ? (" thread " + std::to_string(f->number)).c_str() : "", text);
    siglongjmp(state.give_up, 1);
}

__attribute__((noinline)) static void switch_to(Fiber* next) {
    Fiber* self = state.current;
    state.current = next;
    if (_setjmp(self->jump)) return;
    if (next->started) _longjmp(next->jump, 1);
    next->started = true;
    setcontext(&next->context);
}

// The fiber that waits gives way to another; the scheduler sees when there is none.
static void give_way(const char* what) {
    Fiber* self = state.current;
    self->waits_for = what;
    Fiber* next = &state.main;
    if (!state.ready.empty()) {
        next = state.ready.front();
        state.ready.pop_front();
    }
    switch_to(next);
    self->waits_for = nullptr;
}

static void wake(std::vector<Fiber*>& waiting) {
    state.ready.insert(state.ready.end(), waiting.begin(), waiting.end());
    waiting.clear();
}

static void complete_if_full(Barrier& barrier, bool whole_block) {
    const int expected = whole_block ? state.num_alive : barrier.expected;
    if (barrier.num_arrived == 0 || barrier.num_arrived < expected) return;
    barrier.num_arrived = 0;
    wake(barrier.waiting);
}

static void barrier(int id, int expected, const char* what) {
    Barrier& b = state.barriers[id];
    if (expected % WARP) fail("%s %d of %d threads: not a multiple of 32", what, id, expected);
    if (b.num_arrived && b.expected != expected) fail("%s %d of %d and of %d threads", what, id, b.expected, expected);
    b.expected = expected;
    ++b.num_arrived;
    b.waiting.push_back(state.current);
    complete_if_full(b, id == 0);
    give_way(what);
}

// Each lane leaves `mine`; the last to come runs `combine` on all 32; each lane gets its slot's content back.
template <class T, class F>
static T collective(const char* kind, const T& mine, F combine) {
    static_assert(sizeof(T) <= SLOT_BYTES && std::is_trivially_copyable<T>::value, "a slot is small");
    Fiber* self = state.current;
    Warp& warp = state.warps[self->number / WARP];
    auto* slots = warp.slots[self->num_collectives++ & 1];
    if (warp.num_arrived && strcmp(warp.kind, kind))
        fail("lanes of one warp meet in %s and in %s", warp.kind, kind);
    warp.kind = kind;
    memcpy(slots[self->number % WARP], &mine, sizeof(T));
    if (++warp.num_arrived == WARP) {
        T all[WARP];
        for (int i = 0; i < WARP; ++i) memcpy(&all[i], slots[i], sizeof(T));
        combine(all);
        for (int i = 0; i < WARP; ++i) memcpy(slots[i], &all[i], sizeof(T));
        warp.num_arrived = 0;
        wake(warp.waiting);
    } else {
        warp.waiting.push_back(self);
        give_way(kind);
    }
    T result;
    memcpy(&result, slots[self->number % WARP], sizeof(T));
    return result;
}

static void check_mask(u32 mask) {
    if (mask != 0xffffffffu) fail("warp operation on part of a warp (mask %08x)", mask);
}

// Source lanes may differ between lanes, so they travel with the values.
template <class T>
static T exchange(const char* kind, u32 mask, T value, int source) {
    check_mask(mask);
    struct Slot { T value; int source; };
    return collective(kind, Slot{value, source}, [](Slot* all) {
        T old[WARP];
        for (int i = 0; i < WARP; ++i) old[i] = all[i].value;
        for (int i = 0; i < WARP; ++i) all[i].value = old[all[i].source];
    }).value;
}

template <size_t BYTES>
static void check_aligned(const void* address) {
    if (reinterpret_cast<uintptr_t>(address) % BYTES) fail("address %p is not aligned to %zu bytes", address, BYTES);
}

template <class T>
static T load(const void* address) {
    check_aligned<sizeof(T)>(address);
    return *static_cast<const T*>(address);
}

static void fiber_main() {
    for (;;) {
        state.body();
        Fiber* self = state.current;
        self->alive = false;
        --state.num_alive;
        complete_if_full(state.barriers[0], true);  // a thread that ended no longer counts
        Fiber* next = &state.main;
        if (!state.ready.empty()) {
            next = state.ready.front();
            state.ready.pop_front();
        }
        switch_to(next);
    }
}

static void make_fibers(int count) {
    while (static_cast<int>(state.fibers.size()) < count) {
        auto* map = static_cast<unsigned char*>(mmap(nullptr, STACK_BYTES + 4096, PROT_READ | PROT_WRITE,
                                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
        mprotect(map, 4096, PROT_NONE);  // a stack that overflows meets this page
        auto* f = new Fiber;
        getcontext(&f->context);
        f->context.uc_stack.ss_sp = map + 4096;
        f->context.uc_stack.ss_size = STACK_BYTES;
        f->context.uc_link = nullptr;
        makecontext(&f->context, fiber_main, 0);
        state.fibers.push_back(f);
    }
}

// Shared memory that ends at a page nobody may touch.
static void map_shared(size_t bytes) {
    const size_t pages = (bytes + 4095) / 4096 * 4096;
    state.shared_map_bytes = pages + 4096;
    state.shared_map = static_cast<unsigned char*>(
        mmap(nullptr, state.shared_map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(state.shared_map + pages, 4096, PROT_NONE);
    state.shared = state.shared_map + (pages - (bytes + 127) / 128 * 128);
}

static void on_fault(int, siginfo_t* info, void*) { fail("touches address %p: out of bounds", info->si_addr); }

__attribute__((section("eyas_shared"), used)) static char first_shared;
extern "C" char __start_eyas_shared[] __attribute__((visibility("hidden")));
extern "C" char __stop_eyas_shared[] __attribute__((visibility("hidden")));

static void run_block() {
    memset(__start_eyas_shared, 0xff, __stop_eyas_shared - __start_eyas_shared);
    memset(state.shared, 0xff, (state.launch->shared_bytes + 127) / 128 * 128);
    state.warps.assign((state.num_threads + WARP - 1) / WARP, Warp());
    for (Barrier& b : state.barriers) b = Barrier();
    state.num_alive = state.num_threads;
    state.waited = false;
    std::vector<int> order(state.num_threads);
    for (int i = 0; i < state.num_threads; ++i) order[i] = i;
    if (state.launch->seed) {
        std::mt19937_64 random(state.launch->seed * 1000003 + state.block_index.x);
        std::shuffle(order.begin(), order.end(), random);
    }
    for (int number : order) {
        Fiber* f = state.fibers[number];
        const u32 x = state.block.x, y = state.block.y, n = number;
        f->number = number;
        f->thread = {n % x, n / x % y, n / (x * y)};
        f->alive = true;
        f->num_collectives = 0;
        f->waits_for = nullptr;
        state.ready.push_back(f);
    }
    while (!state.ready.empty()) {
        Fiber* next = state.ready.front();
        state.ready.pop_front();
        switch_to(next);
    }
    if (state.num_alive) {
        std::string waiting;
        for (int i = 0, listed = 0; i < state.num_threads && listed < 8; ++i)
            if (state.fibers[i]->alive && ++listed)
                waiting += " " + std::to_string(i) + ": " + (state.fibers[i]->waits_for ? state.fibers[i]->waits_for : "?") + ",";
        fail("deadlock, %d threads wait for ever (thread: for what):%s ...", state.num_alive, waiting.c_str());
    }
    if (state.pdl && !state.waited) fail("ended without pdl_wait()");
}

static void run(const char* kernel, const Launch& launch, std::function<void()> body) {
    state.kernel = kernel;
    state.launch = &launch;
    state.body = std::move(body);
    state.grid = {launch.grid[0], launch.grid[1], launch.grid[2]};
    state.block = {launch.block[0], launch.block[1], launch.block[2]};
    state.num_threads = static_cast<int>(launch.block[0] * launch.block[1] * launch.block[2]);
    state.pdl = launch.pdl;
    state.main.started = true;
    state.current = &state.main;
    state.ready.clear();
    state.block_index = {0, 0, 0};
    static unsigned char signal_stack[64 << 10];
    stack_t stack{}, old_stack{};
    stack.ss_sp = signal_stack;
    stack.ss_size = sizeof signal_stack;
    struct sigaction action{}, old_segv{}, old_bus{};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaltstack(&stack, &old_stack);
    sigaction(SIGSEGV, &action, &old_segv);
    sigaction(SIGBUS, &action, &old_bus);
    map_shared(launch.shared_bytes);
    launch.message[0] = 0;
    if (sigsetjmp(state.give_up, 1) == 0) {
        if (state.num_threads < 1 || state.num_threads > MAX_THREADS) fail("blocks of %d threads", state.num_threads);
        make_fibers(state.num_threads);
        const u64 num_blocks = u64(state.grid.x) * state.grid.y * state.grid.z;
        std::vector<u64> order(num_blocks);
        for (u64 i = 0; i < num_blocks; ++i) order[i] = i;
        if (launch.seed) std::shuffle(order.begin(), order.end(), std::mt19937_64(launch.seed));
        for (u64 i : order) {
            state.block_index = {u32(i % state.grid.x), u32(i / state.grid.x % state.grid.y),
                                 u32(i / (u64(state.grid.x) * state.grid.y))};
            run_block();
        }
    } else {
        state.fibers.clear();  // they stand in the middle of the failed kernel: left to the end of the process
    }
    munmap(state.shared_map, state.shared_map_bytes);
    sigaction(SIGSEGV, &old_segv, nullptr);
    sigaction(SIGBUS, &old_bus, nullptr);
    sigaltstack(&old_stack, nullptr);
}

template <class... A, size_t... I>
static void run_kernel(const char* name, void (*kernel)(A...), const Launch& launch, std::index_sequence<I...>) {
    std::tuple<A...> args{*static_cast<std::remove_const_t<A>*>(launch.args[I])...};
    run(name, launch, [&] { std::apply(kernel, args); });
}

template <class... A>
static void run_kernel(const char* name, void (*kernel)(A...), const Launch& launch) {
    run_kernel(name, kernel, launch, std::index_sequence_for<A...>());
}

template <class... A>
static int list_sizes(void (*)(A...), int* sizes) {
    const int all[] = {static_cast<int>(sizeof(A))..., 0};
    std::copy(all, all + sizeof...(A), sizes);
    return sizeof...(A);
}

}  // namespace emulate

// One per kernel, written after the source: what the Python side calls.
#define EYAS_EMULATED_KERNEL(name)                                                                          \
    extern "C" void launch_##name(const emulate::Launch* l) { emulate::run_kernel(#name, name, *l); }       \
    extern "C" int sizes_##name(int* sizes) { return emulate::list_sizes(name, sizes); }

// ---- CUDA's words ------------------------------------------------------------------------------------------------

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ inline
#define __shared__ static __attribute__((section("eyas_shared")))
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __grid_constant__
#define DEVICE static inline
#define SHARED(T, name) T* const name = reinterpret_cast<T*>(emulate::state.shared)

#define threadIdx (emulate::state.current->thread)
#define blockIdx (emulate::state.block_index)
#define blockDim (emulate::state.block)
#define gridDim (emulate::state.grid)

static inline void __syncthreads() { emulate::barrier(0, (emulate::state.num_threads + 31) / 32 * 32, "__syncthreads"); }
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

DEVICE void pdl_wait() { emulate::state.waited = true; }
DEVICE void pdl_trigger() {}

DEVICE uint4 load_weights_16(const void* address) { return emulate::load<uint4>(address); }
DEVICE uint2 load_weights_8(const void* address) { return emulate::load<uint2>(address); }
DEVICE u32 load_weights_4(const void* address) { return emulate::load<u32>(address); }
DEVICE uint4 load_weights_16_if(const void* address, bool valid) { return valid ? load_weights_16(address) : uint4{0, 0, 0, 0}; }
DEVICE uint4 load_16(const void* address) {
    if (emulate::state.pdl && !emulate::state.waited) emulate::fail("load_16 before pdl_wait()");
    return load_weights_16(address);
}
DEVICE uint4 load_16_if(const void* address, bool valid) { return valid ? load_16(address) : uint4{0, 0, 0, 0}; }
DEVICE u32 load_l2(const void* address) { return emulate::load<u32>(address); }
DEVICE void prefetch_l2(const void*) {}

// The copy happens at once: what a missing copy_async_wait() would break is not seen here.
DEVICE void copy_async_16(void* shared, const void* global, bool valid = true) {
    emulate::check_aligned<16>(shared);
    *static_cast<uint4*>(shared) = valid ? load_weights_16(global) : uint4{0, 0, 0, 0};
}
DEVICE void copy_async_commit() {}
template <int N>
DEVICE void copy_async_wait() {}

// The bytes arrive at once, but only copies that were expected end a phase.
struct CopyBarrier { u16 expected, arrived; int bytes : 31; u32 phase : 1; };
static_assert(sizeof(CopyBarrier) == sizeof(u64), "lies in a u64");
static inline CopyBarrier& emulated_copy_barrier(u64* barrier) {
    emulate::check_aligned<8>(barrier);
    return *reinterpret_cast<CopyBarrier*>(barrier);
}
static inline void emulated_end_phase(CopyBarrier& b) {
    if (b.arrived < b.expected || b.bytes) return;
    b.arrived = 0;
    b.phase ^= 1;
}
DEVICE void copy_barrier_init(u64* barrier, u32 arrivals) { emulated_copy_barrier(barrier) = {u16(arrivals), 0, 0, 0}; }
DEVICE void copy_barrier_fence() {}
DEVICE void copy_barrier_expect(u64* barrier, u32 bytes) {
    CopyBarrier& b = emulated_copy_barrier(barrier);
    if (b.arrived == b.expected) emulate::fail("copy_barrier_expect: phase %d has not ended", int(b.phase));
    ++b.arrived;
    b.bytes = b.bytes + int(bytes);
    emulated_end_phase(b);
}
DEVICE void copy_barrier_wait(u64* barrier, u32 parity) {
    for (int turns = 0; emulated_copy_barrier(barrier).phase == (parity & 1); ++turns) {
        if (turns == 10000) emulate::fail("copy_barrier_wait: nothing ends the phase");
        emulate::state.ready.push_back(emulate::state.current);
        emulate::give_way("copy_barrier_wait");
    }
}
DEVICE void copy_bulk(void* shared, const void* global, u32 bytes, u64* barrier) {
    emulate::check_aligned<16>(shared);
    emulate::check_aligned<16>(global);
    if (bytes % 16) emulate::fail("copy_bulk of %u bytes", bytes);
    memcpy(shared, global, bytes);
    CopyBarrier& b = emulated_copy_barrier(barrier);
    b.bytes = b.bytes - int(bytes);
    emulated_end_phase(b);
}
DEVICE void prefetch_l2_bulk(const void*, u32) {}

DEVICE u16 to_bf16(float value) {
    if (value != value) return 0x7fff;
    const u32 bits = __float_as_uint(value);
    return static_cast<u16>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
DEVICE u32 pack_bf16(float low, float high) { return to_bf16(low) | u32(to_bf16(high)) << 16; }
DEVICE float from_bf16(u16 bits) { return __uint_as_float(u32(bits) << 16); }
DEVICE float bf16_low(u32 packed) { return __uint_as_float(packed << 16); }
DEVICE float bf16_high(u32 packed) { return __uint_as_float(packed & 0xffff0000u); }
DEVICE u32 mul_bf16x2(u32 a, u32 b) { return pack_bf16(bf16_low(a) * bf16_low(b), bf16_high(a) * bf16_high(b)); }
DEVICE u32 mul_bf16x2_low(u32 a, u32 b) { return mul_bf16x2(a, (b & 0xffff) * 0x10001u); }
DEVICE u32 mul_bf16x2_high(u32 a, u32 b) { return mul_bf16x2(a, (b >> 16) * 0x10001u); }

// The sum of 16 products and c is rounded once; the tensor cores' own rounding differs in the last bits.
DEVICE void mma_bf16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    struct Lane { u32 a[4], b[2]; float c[4]; };
    const Lane mine{{a[0], a[1], a[2], a[3]}, {b0, b1}, {c[0], c[1], c[2], c[3]}};
    const Lane result = emulate::collective("mma_bf16", mine, [](Lane* all) {
        float left[16][16], right[16][8];
        for (int lane = 0; lane < 32; ++lane)
            for (int i = 0; i < 4; ++i)
                for (int half = 0; half < 2; ++half) {
                    const int g = lane / 4, k = lane % 4 * 2 + half;
                    const auto value = [half](u32 word) { return half ? bf16_high(word) : bf16_low(word); };
                    left[g + i % 2 * 8][k + i / 2 * 8] = value(all[lane].a[i]);
                    if (i < 2) right[k + i * 8][g] = value(all[lane].b[i]);
                }
        for (int lane = 0; lane < 32; ++lane)
            for (int i = 0; i < 4; ++i) {
                const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
                double sum = all[lane].c[i];
                for (int k = 0; k < 16; ++k) sum += double(left[row][k]) * right[k][column];
                all[lane].c[i] = static_cast<float>(sum);
            }
    });
    for (int i = 0; i < 4; ++i) c[i] = result.c[i];
}

DEVICE float fast_exp2(float x) { return exp2f(x); }
DEVICE float fast_reciprocal(float x) { return 1.f / x; }
DEVICE float fast_rsqrt(float x) { return 1.f / sqrtf(x); }
DEVICE void named_barrier(int id, int threads) { emulate::barrier(id, threads, "named_barrier"); }
DEVICE bool take_ticket(u32* counter, u32 expected) { return atomicInc(counter, expected - 1) == expected - 1; }
DEVICE void grid_barrier(u32*) {
    if (gridDim.x != 1) emulate::fail("grid_barrier: blocks run one after the other here");
}
