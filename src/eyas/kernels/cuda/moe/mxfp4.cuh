// What kernels over packed experts share: the words of kernels/layouts/mxfp4.py, and their activation.
#pragma once

#include "common.cuh"

constexpr u32 MXFP4_FACTORS = 0x7F807F80u;  // of a word of scales: of rows g and g + 8
constexpr float SWIGLU_ALPHA = 1.702f;      // kernels/reference/layers/moe.py

// Pair p of a word's eight weights, in bf16, before its factor.
DEVICE u32 mxfp4_pair(u32 q, int p) {
    constexpr u32 CODE = 0x81C081C0u, SIGN_EXPONENT = 0x81808180u, MANTISSA = 0x00400040u;
    if (p == 0) return q & CODE;
    if (p == 1) return __funnelshift_r(q, q, 4) & CODE;
    if (p == 2) return (q << 6) & CODE;
    return (__funnelshift_r(q, q, 6) & SIGN_EXPONENT) | ((q << 2) & MANTISSA);
}

DEVICE float swiglu(float gate, float up, float limit) {
    gate = gate > limit ? limit : gate;  // NaN stays, which fminf would hide
    up = up > limit ? limit : up < -limit ? -limit : up;
    return gate * fast_reciprocal(1.f + fast_exp(-SWIGLU_ALPHA * gate)) * (up + 1.f);
}
