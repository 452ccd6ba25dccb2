// The machinery of the emulator: a kernel's threads are fibers on one CPU thread, its blocks run one after the other.
//
// A fiber runs until a barrier or a warp operation makes it wait. A block that looks for what
// another one is to write stands aside for the next one. Copies to shared memory happen as late as they can, and until then their target is NaN.
#pragma once

#include <algorithm>
#include <cmath>
#include <csetjmp>
#include <csignal>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

struct uint3 { u32 x, y, z; };

namespace emulate {

constexpr int WARP = 32, MAX_THREADS = 1024, MAX_BARRIERS = 16, SLOT_BYTES = 64, MAX_LOOKS = 1000;
constexpr size_t STACK_BYTES = 128 << 10, PAGE = 4096, KEPT_FIBERS = 128;

struct Launch {  // filled by the Python side, see __init__.py
    u32 grid[3], block[3];
    u32 shared_bytes, pdl;
    u64 seed;  // 0: blocks and threads in ascending order, else shuffled by it
    void* const* args;
    char* message;  // out: what went wrong, empty if nothing
    u64 message_bytes;
};

struct Copy {
    void* target;
    const void* source;  // null: zeros
    u32 bytes;
    u64* barrier;
};

struct Block;

// What a matrix instruction of a warpgroup is given; a lane's registers are where these point to until it has run.
struct Product {
    float* sums;
    const u32* factors;
    u64 rows;
    int size;
    bool clears, over_rows;
};

struct Fiber {
    jmp_buf jump;
    ucontext_t context;
    Block* block = nullptr;
    uint3 thread;
    int number;
    bool started = false, alive = false;
    const char* waits_for = nullptr;
    u64 num_collectives = 0;
    std::vector<Copy> uncommitted;
    std::deque<std::vector<Copy>> groups;
    std::vector<Product> products;
    std::deque<std::vector<Product>> product_groups;
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

struct CopyBarrier {
    u32 arrivals = 0, pending = 0;
    i64 bytes = 0;
    u32 phase = 0;
    std::vector<Fiber*> waiting;
};

struct Block {
    uint3 index;
    std::vector<Fiber*> fibers;
    std::vector<Warp> warps;
    Barrier barriers[MAX_BARRIERS];
    std::map<const u64*, CopyBarrier> copy_barriers;
    std::deque<Copy> copies;
    std::deque<Fiber*> ready;
    std::vector<char> statics;  // static shared variables while another block runs
    unsigned char *shared, *map;  // dynamic shared memory and the pages that hold it
    std::vector<Fiber*> looking;  // for what another block is to write
    u64 number, expected = 0;  // arrivals at the cluster's barrier
    int num_alive;
    bool waited = false;
};

struct State {
    Fiber main;
    Fiber* current = nullptr;
    Block* here = nullptr;
    std::vector<Fiber*> free_fibers;
    std::vector<Block*> aside;  // they look for what another one is to write
    std::map<u64, Block*> running;   // by number
    std::map<u64, u64> met;          // by cluster: how often its blocks came to its barrier
    uint3 grid{}, block{};
    int num_threads = 0;
    u64 num_blocks = 0;
    bool pdl = false;
    std::function<void()> body;
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
    const uint3 at = state.here ? state.here->index : uint3{0, 0, 0};
    const Fiber* f = state.current;
    snprintf(state.launch->message, state.launch->message_bytes, "%s, block (%u, %u, %u)%s: %s", state.kernel, at.x,
             at.y, at.z, f != &state.main ? (" thread " + std::to_string(f->number)).c_str() : "", text);
    siglongjmp(state.give_up, 1);
}

// ---- fibers ------------------------------------------------------------------------------------------------------

__attribute__((noinline)) static void switch_to(Fiber* next) {
    Fiber* self = state.current;
    state.current = next;
    if (_setjmp(self->jump)) return;
    if (next->started) _longjmp(next->jump, 1);
    next->started = true;
    setcontext(&next->context);
}

static Fiber* next_ready() {
    std::deque<Fiber*>& ready = state.here->ready;
    if (ready.empty()) return &state.main;
    Fiber* next = ready.front();
    ready.pop_front();
    return next;
}

// The fiber that waits gives way to another; the scheduler sees when there is none.
static void give_way(const char* what) {
    Fiber* self = state.current;
    self->waits_for = what;
    switch_to(next_ready());
    self->waits_for = nullptr;
}

static void wake(std::vector<Fiber*>& waiting) {
    for (Fiber* f : waiting) f->block->ready.push_back(f);
    waiting.clear();
}

static void complete_if_full(Barrier& barrier, int expected) {
    if (barrier.num_arrived == 0 || barrier.num_arrived < expected) return;
    barrier.num_arrived = 0;
    wake(barrier.waiting);
}

static void fiber_main() {
    for (;;) {
        state.body();
        Fiber* self = state.current;
        self->alive = false;
        --state.here->num_alive;
        complete_if_full(state.here->barriers[0], state.here->num_alive);  // a thread that ended no longer counts
        switch_to(next_ready());
    }
}

static Fiber* new_fiber() {
    void* room = mmap(nullptr, STACK_BYTES + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                      -1, 0);
    if (room == MAP_FAILED) fail("no memory for a thread's stack (vm.max_map_count?)");
    auto* map = static_cast<unsigned char*>(room);
    mprotect(map, PAGE, PROT_NONE);  // a stack that overflows meets this page
    auto* f = new Fiber;
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = map + PAGE;
    f->context.uc_stack.ss_size = STACK_BYTES;
    f->context.uc_link = nullptr;
    makecontext(&f->context, fiber_main, 0);
    return f;
}

// A process may have 65,530 mappings, a stack is two, and each build of a kernel has its own.
static void free_stacks() {
    for (; state.free_fibers.size() > KEPT_FIBERS; state.free_fibers.pop_back()) {
        Fiber* f = state.free_fibers.back();
        munmap(static_cast<unsigned char*>(f->context.uc_stack.ss_sp) - PAGE, STACK_BYTES + PAGE);
        delete f;
    }
}

// ---- what fibers wait for ----------------------------------------------------------------------------------------

static void barrier(int id, int threads, const char* what) {
    Barrier& b = state.here->barriers[id];
    if (threads % WARP && id) fail("%s %d of %d threads: not a multiple of 32", what, id, threads);
    if (b.num_arrived && b.expected != threads) fail("%s %d of %d and of %d threads", what, id, b.expected, threads);
    b.expected = threads;
    ++b.num_arrived;
    b.waiting.push_back(state.current);
    complete_if_full(b, id ? threads : state.here->num_alive);
    give_way(what);
}

// Each lane leaves `mine`; the last to come runs `combine` on all 32; each lane gets its slot's content back.
template <class T, class F>
static T collective(const char* kind, const T& mine, F combine) {
    static_assert(sizeof(T) <= SLOT_BYTES && std::is_trivially_copyable<T>::value, "a slot is small");
    Fiber* self = state.current;
    Warp& warp = state.here->warps[self->number / WARP];
    auto* slots = warp.slots[self->num_collectives++ & 1];
    if (warp.num_arrived && strcmp(warp.kind, kind)) fail("lanes of one warp meet in %s and in %s", warp.kind, kind);
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

// All other threads of all blocks run until they wait.
static void look_again() {
    state.here->looking.push_back(state.current);
    give_way("look_again");
}

// Blocks that differ in z alone.
static u64 cluster_of(uint3 index) { return u64(index.y) * state.grid.x + index.x; }

// One thread of each block, first one, then the other.
static void arrive_at_cluster() {
    u64& count = state.met[cluster_of(state.here->index)];
    state.here->expected = (count / state.grid.z + 1) * state.grid.z;
    ++count;
}
static void wait_for_cluster() {
    while (state.met[cluster_of(state.here->index)] < state.here->expected) look_again();
}

static unsigned char* shared_of(u32 z) {
    auto found = state.running.find(cluster_of(state.here->index) + u64(z) * state.grid.x * state.grid.y);
    if (found == state.running.end()) fail("block %u of the cluster has not begun or has ended", z);
    return found->second->shared;
}

// ---- memory ------------------------------------------------------------------------------------------------------

template <size_t BYTES>
static void check_aligned(const void* address) {
    if (reinterpret_cast<uintptr_t>(address) % BYTES) fail("address %p is not aligned to %zu bytes", address, BYTES);
}

template <class T>
static T load(const void* address) {
    check_aligned<sizeof(T)>(address);
    return *static_cast<const T*>(address);
}

static void perform(const Copy& copy) {
    if (copy.source)
        memcpy(copy.target, copy.source, copy.bytes);
    else
        memset(copy.target, 0, copy.bytes);
}

static Copy ask(void* target, const void* source, u32 bytes, u64* barrier = nullptr) {
    check_aligned<16>(target);
    check_aligned<16>(source);
    memset(target, 0xff, bytes);
    return {target, source, bytes, barrier};
}

static CopyBarrier& copy_barrier(const u64* address) {
    auto found = state.here->copy_barriers.find(address);
    if (found == state.here->copy_barriers.end()) fail("the copy barrier at %p was not initialised", address);
    return found->second;
}

static void end_phase_if_complete(CopyBarrier& b) {
    if (b.pending || b.bytes) return;
    b.pending = b.arrivals;
    ++b.phase;
    wake(b.waiting);
}

static void expect(const u64* address, u32 bytes) {
    CopyBarrier& b = copy_barrier(address);
    if (b.pending == 0) fail("more arrivals at a copy barrier than the %u of its phase", b.arrivals);
    --b.pending;
    b.bytes += bytes;
    end_phase_if_complete(b);
}

// Copies of this thread that are in no group become the barrier's.
static void arrive_when_copied(u64* address) {
    for (Copy& copy : state.current->uncommitted) {
        copy.barrier = address;
        copy_barrier(address).bytes += copy.bytes;
        state.here->copies.push_back(copy);
    }
    state.current->uncommitted.clear();
    expect(address, 0);
}

static void wait_for_copies(const u64* address, u32 parity) {
    while ((copy_barrier(address).phase & 1) == parity) {
        copy_barrier(address).waiting.push_back(state.current);
        give_way("copy_barrier_wait");
    }
}

// The oldest bulk copy under way; with a seed the newest.
static void perform_one() {
    std::deque<Copy>& copies = state.here->copies;
    const Copy copy = state.launch->seed ? copies.back() : copies.front();
    state.launch->seed ? copies.pop_back() : copies.pop_front();
    perform(copy);
    CopyBarrier& b = copy_barrier(copy.barrier);
    b.bytes -= copy.bytes;
    end_phase_if_complete(b);
}

static size_t shared_room() { return (state.launch->shared_bytes + PAGE - 1) / PAGE * PAGE; }

// Dynamic shared memory ends at a page nobody may touch, and starts as NaN.
static void map_shared(Block* b) {
    const size_t room = shared_room();
    b->map = static_cast<unsigned char*>(
        mmap(nullptr, room + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(b->map + room, PAGE, PROT_NONE);
    memset(b->map, 0xff, room);
    b->shared = b->map + room - (state.launch->shared_bytes + 127) / 128 * 128;
}

static void on_fault(int, siginfo_t* info, void*) { fail("touches address %p: out of bounds", info->si_addr); }

// What -fsanitize=alignment makes of it; x86 itself takes most of them.
static void on_trap(int, siginfo_t*, void*) { fail("a load or store whose address is not aligned to its type"); }

// `__shared__` variables lie in a section of their own, so that they can be poisoned and put aside.
__attribute__((section("eyas_shared"), used)) static char first_shared;
extern "C" char __start_eyas_shared[] __attribute__((visibility("hidden")));
extern "C" char __stop_eyas_shared[] __attribute__((visibility("hidden")));

// ---- blocks ------------------------------------------------------------------------------------------------------

static Block* start_block(uint3 index, u64 number) {
    auto* b = new Block;
    b->index = index;
    b->number = number;
    state.running[number] = b;
    b->warps.resize((state.num_threads + WARP - 1) / WARP);
    b->num_alive = state.num_threads;
    map_shared(b);
    b->statics.assign(__stop_eyas_shared - __start_eyas_shared, static_cast<char>(0xff));
    b->fibers.resize(state.num_threads);
    std::vector<int> order(state.num_threads);
    for (int i = 0; i < state.num_threads; ++i) order[i] = i;
    if (state.launch->seed) std::shuffle(order.begin(), order.end(), std::mt19937_64(state.launch->seed + number));
    for (int n : order) {
        if (state.free_fibers.empty()) state.free_fibers.push_back(new_fiber());
        Fiber* f = b->fibers[n] = state.free_fibers.back();
        state.free_fibers.pop_back();
        const u32 x = state.block.x, y = state.block.y, i = n;
        f->thread = {i % x, i / x % y, i / (x * y)};
        f->number = n;
        f->block = b;
        f->alive = true;
        f->num_collectives = 0;
        f->uncommitted.clear();
        f->groups.clear();
        b->ready.push_back(f);
    }
    return b;
}

static void finish_block(Block* b) {
    if (!b->copies.empty()) fail("ended with %zu bulk copies under way", b->copies.size());
    if (state.pdl && !b->waited) fail("ended without pdl_wait()");
    for (const Fiber* f : b->fibers)
        if (!f->products.empty() || !f->product_groups.empty()) fail("ended without wgmma_wait()");
    state.free_fibers.insert(state.free_fibers.end(), b->fibers.begin(), b->fibers.end());
    munmap(b->map, shared_room() + PAGE);
    state.running.erase(b->number);
    delete b;
}

// Runs a block to its end, or until it looks for what another one is to write.
static void advance(Block* b) {
    state.here = b;
    std::copy(b->statics.begin(), b->statics.end(), __start_eyas_shared);
    for (;;) {
        while (!b->ready.empty()) switch_to(next_ready());
        if (b->copies.empty()) break;
        perform_one();
    }
    std::copy(__start_eyas_shared, __stop_eyas_shared, b->statics.begin());
    if (b->num_alive == 0) return finish_block(b);
    if (!b->looking.empty()) return state.aside.push_back(b);
    if (!b->ready.empty()) return advance(b);
    std::string waiting;
    for (int i = 0, listed = 0; i < state.num_threads && listed < 8; ++i)
        if (b->fibers[i]->alive && ++listed)
            waiting += " " + std::to_string(i) + ": " + (b->fibers[i]->waits_for ? b->fibers[i]->waits_for : "?") + ",";
    fail("deadlock, %d threads wait for ever (thread: for what):%s ...", b->num_alive, waiting.c_str());
}

static void run_blocks() {
    std::vector<u64> order(state.num_blocks);
    for (u64 i = 0; i < state.num_blocks; ++i) order[i] = i;
    if (state.launch->seed) std::shuffle(order.begin(), order.end(), std::mt19937_64(state.launch->seed));
    const u64 x = state.grid.x, y = state.grid.y;
    for (u64 i : order) advance(start_block({u32(i % x), u32(i / x % y), u32(i / (x * y))}, i));
    for (int looks = 0; !state.aside.empty(); ++looks) {
        if (looks == MAX_LOOKS) fail("deadlock: %zu blocks look for what nobody writes", state.aside.size());
        std::vector<Block*> blocks;
        blocks.swap(state.aside);
        for (Block* b : blocks) {
            wake(b->looking);
            advance(b);
        }
    }
}

static void run(const char* kernel, const Launch& launch, std::function<void()> body) {
    state.kernel = kernel;
    state.launch = &launch;
    state.body = std::move(body);
    state.grid = {launch.grid[0], launch.grid[1], launch.grid[2]};
    state.block = {launch.block[0], launch.block[1], launch.block[2]};
    state.num_blocks = u64(launch.grid[0]) * launch.grid[1] * launch.grid[2];
    state.num_threads = static_cast<int>(launch.block[0] * launch.block[1] * launch.block[2]);
    state.pdl = launch.pdl;
    state.main.started = true;
    state.current = &state.main;
    state.here = nullptr;
    state.running.clear();
    state.met.clear();
    static unsigned char signal_stack[64 << 10];
    stack_t stack{}, old_stack{};
    stack.ss_sp = signal_stack;
    stack.ss_size = sizeof signal_stack;
    struct sigaction action{}, trap{}, old_segv{}, old_bus{}, old_ill{};
    action.sa_sigaction = on_fault;
    trap.sa_sigaction = on_trap;
    action.sa_flags = trap.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaltstack(&stack, &old_stack);
    sigaction(SIGSEGV, &action, &old_segv);
    sigaction(SIGBUS, &action, &old_bus);
    sigaction(SIGILL, &trap, &old_ill);
    launch.message[0] = 0;
    if (sigsetjmp(state.give_up, 1) == 0) {
        if (state.num_threads < 1 || state.num_threads > MAX_THREADS) fail("blocks of %d threads", state.num_threads);
        run_blocks();
        free_stacks();
    } else {  // blocks and fibers stand in the middle of the failed kernel: left to the end of the process
        state.aside.clear();
    }
    sigaction(SIGSEGV, &old_segv, nullptr);
    sigaction(SIGBUS, &old_bus, nullptr);
    sigaction(SIGILL, &old_ill, nullptr);
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
#define EYAS_EMULATED_KERNEL(name)                                                                    \
    extern "C" void launch_##name(const emulate::Launch* l) { emulate::run_kernel(#name, name, *l); } \
    extern "C" int sizes_##name(int* sizes) { return emulate::list_sizes(name, sizes); }
