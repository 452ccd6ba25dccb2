// Softmax states over some keys each, and the binary tree in whose order they are joined.
//
// The tree stands over absolute numbers of keys' leaves: a launch may compute any of its aligned nodes anywhere, and
// a node without visible keys leaves the bits of its neighbour as they are.
#pragma once

#include "common.cuh"

#define NEVER __int_as_float(0xff800000)  // the peak of no keys

DEVICE float4 zero4() { return make_float4(0.f, 0.f, 0.f, 0.f); }
DEVICE float4 add4(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }
DEVICE float4 read4(const float* address) { return *reinterpret_cast<const float4*>(address); }

// Softmax over some keys for one row-head and four dimensions, not yet normalised; exponents have base 2.
struct State {
    float peak, sum;
    float4 out;
};

DEVICE State nothing() { return {NEVER, 0.f, zero4()}; }

DEVICE float weight_of(float peak, float new_peak) { return peak == NEVER ? 0.f : fast_exp2(peak - new_peak); }

// a's keys stand before b's. With nothing() on one side it gives the other side's bits.
DEVICE State join(const State& a, const State& b) {
    const float peak = fmaxf(a.peak, b.peak), wa = weight_of(a.peak, peak), wb = weight_of(b.peak, peak);
    return {peak, fmaf(b.sum, wb, __fmul_rn(a.sum, wa)),
            make_float4(fmaf(b.out.x, wb, __fmul_rn(a.out.x, wa)), fmaf(b.out.y, wb, __fmul_rn(a.out.y, wa)),
                        fmaf(b.out.z, wb, __fmul_rn(a.out.z, wa)), fmaf(b.out.w, wb, __fmul_rn(a.out.w, wa)))};
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
