// Softmax states over some keys each, and the binary tree in whose order they are joined.
//
// The tree stands over absolute numbers of keys' leaves: a launch may compute any of its aligned nodes anywhere, and
// a node without visible keys leaves the bits of its neighbour as they are.
#pragma once

#include "common.cuh"

#define NEVER __int_as_float(0xff800000)  // the peak of no keys

constexpr int STATE_WORDS = 64 + 4;  // of a row-head's state in memory: output, peak, sum; no bank conflicts
constexpr int LEVELS = 12;  // a piece has fewer than 2^12 leaves: a million keys

DEVICE float4 zero4() { return make_float4(0.f, 0.f, 0.f, 0.f); }
DEVICE float4 add4(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }
DEVICE float4 read4(const float* address) { return *reinterpret_cast<const float4*>(address); }

// Softmax over some keys for one row-head and four dimensions, not yet normalised; exponents have base 2.
struct State {
    float peak, sum;
    float4 out;
};

DEVICE State nothing() { return {NEVER, 0.f, zero4()}; }

DEVICE State read_state(const float* words, int dim) {
    const float2 sums = *reinterpret_cast<const float2*>(words + 64);
    return {sums.x, sums.y, read4(words + dim)};
}

DEVICE void write_state(float* words, int dim, const State& state) {
    *reinterpret_cast<float4*>(words + dim) = state.out;
    if (dim == 0) *reinterpret_cast<float2*>(words + 64) = make_float2(state.peak, state.sum);
}

DEVICE float weight_of(float peak, float new_peak) { return peak == NEVER ? 0.f : fast_exp2(peak - new_peak); }

// a's keys stand before b's. With nothing() on one side it gives the other side's bits.
DEVICE State join(const State& a, const State& b) {
    const float peak = fmaxf(a.peak, b.peak), wa = weight_of(a.peak, peak), wb = weight_of(b.peak, peak);
    return {peak, fmaf(b.sum, wb, __fmul_rn(a.sum, wa)),
            make_float4(fmaf(b.out.x, wb, __fmul_rn(a.out.x, wa)), fmaf(b.out.y, wb, __fmul_rn(a.out.y, wa)),
                        fmaf(b.out.z, wb, __fmul_rn(a.out.z, wa)), fmaf(b.out.w, wb, __fmul_rn(a.out.w, wa)))};
}

// N states in memory, `stride` words apart, added in order.
template <int N>
DEVICE State join_in_order(const float* words, int stride, int dim) {
    State states[N], all = nothing();
#pragma unroll
    for (int i = 0; i < N; ++i) {
        states[i] = read_state(words + i * stride, dim);
        all.peak = fmaxf(all.peak, states[i].peak);
    }
#pragma unroll
    for (int i = 0; i < N; ++i) {
        const float weight = weight_of(states[i].peak, all.peak);
        const float4 out = states[i].out;
        all.sum = fmaf(states[i].sum, weight, all.sum);
        all.out = make_float4(fmaf(out.x, weight, all.out.x), fmaf(out.y, weight, all.out.y),
                              fmaf(out.z, weight, all.out.z), fmaf(out.w, weight, all.out.w));
    }
    return all;
}

// Neighbouring nodes of the tree, joined in place.
template <int N>
DEVICE State join_tree(State (&nodes)[N]) {
#pragma unroll
    for (int width = 1; width < N; width *= 2)
#pragma unroll
        for (int i = 0; i < N; i += 2 * width) nodes[i] = join(nodes[i], nodes[i + width]);
    return nodes[0];
}

// The same of `count` states in memory, N at most.
template <int N>
DEVICE State join_as_tree(const float* words, int stride, int dim, int count) {
    State nodes[N];
#pragma unroll
    for (int i = 0; i < N; ++i) nodes[i] = i < count ? read_state(words + i * stride, dim) : nothing();
    return join_tree(nodes);
}

// `nodes` are the complete nodes of a binary tree so far, at most one per level; node number `index` comes next.
DEVICE void push(State* nodes, int index, State node) {
    int level = 0;
    for (; index >> level & 1; ++level) node = join(nodes[level], node);
    nodes[level] = node;
}

DEVICE State root(const State* nodes, int count) {
    State all = nothing();
    for (int level = 0; count >> level; ++level)
        if (count >> level & 1) all = join(nodes[level], all);
    return all;
}
