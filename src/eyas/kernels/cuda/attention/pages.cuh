// The pages that keys and values lie in: [page][NUM_KV][PAGE][D] of each; in 8 bits (KV_FP8) also a power of two for each
// token and head, [page][NUM_KV][keys, values][PAGE] (kernels/layouts/fp8_cache.py).
//
// Defines: NUM_KV, KV_FP8.
#pragma once

#include "common.cuh"

constexpr int D = 64, PAGE = 16;
constexpr int PAGE_NUMBERS = NUM_KV * PAGE * D;  // keys, or values

#if KV_FP8
using Element = u8;
#else
using Element = u16;
#endif
