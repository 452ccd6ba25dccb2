// Hopper's matrix instruction of a warpgroup: it runs beside what follows, with its rows in shared memory.
//
// d[64][N] += a[64][16] rows[16][N], bf16 in, fp32 out, of the four warps of a warpgroup: warp w has rows 16 w .. of a
// and d, laid out in its lanes as those of mma_bf16, d four numbers for each 8 columns. `rows` are N rows of 128 bytes, 64
// values, and 16 of these are multiplied; a row's pieces of 16 bytes are exchanged: piece p stands at p ^ (row & 7), and
// the first row at a multiple of 1,024 bytes (PTX ISA, wgmma: K-major, 128-byte swizzle).
//
// Between an instruction and wgmma_wait its registers and rows may not change; what was stored to registers or shared
// memory before is seen after wgmma_fence. Compile for sm_90a.
#pragma once

#include "common.cuh"

#ifndef EYAS_EMULATE

DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// Stores to shared memory are seen by instructions behind a barrier; bulk copies need none.
DEVICE void async_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// What defines these registers stands before it.
template <int N>
DEVICE void wgmma_ready(u32 (&a)[N][4]) {
#pragma unroll
    for (int i = 0; i < N; ++i)
        asm volatile("" : "+r"(a[i][0]), "+r"(a[i][1]), "+r"(a[i][2]), "+r"(a[i][3])::"memory");
}

// What reads a product's sums stands after the wait.
template <int N>
DEVICE void wgmma_done(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i += 4)
        asm volatile("" : "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])::"memory");
}

// What computes x stands before what follows; x is below 2^20, else it sleeps a little.
DEVICE void settle(float x) {
    asm volatile("{ .reg .pred p; setp.gt.f32 p, %0, 0f49800000; @p nanosleep.u32 20; }" ::"f"(x) : "memory");
}

// Registers of a thread from here on, a multiple of 8; every warp of a warpgroup, in a block of whole warpgroups.
template <int COUNT>
DEVICE void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT>
DEVICE void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Until at most PENDING of the groups that were committed run.
template <int PENDING>
DEVICE void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

struct WgmmaRows {
    u32 low;  // word of a descriptor
};

DEVICE WgmmaRows wgmma_begin(const u8* rows) { return {shared_address(rows) >> 4 & 0x3fff | 1u << 16}; }

// Values 16 `step` .. of each row, `bytes` behind `rows`. Added to the low word: a 64-bit sum costs four instructions.
DEVICE u64 wgmma_rows(WgmmaRows rows, int bytes, int step) {
    return rows.low + bytes / 16 + 2 * step | (64ull | 1ull << 30) << 32;
}

// The same of rows of 64 bytes, 32 values: piece p stands at p ^ (row >> 1 & 3), the first row at a multiple of 512 bytes
// (64-byte swizzle).
DEVICE u64 wgmma_short_rows(const u8* rows, int step) {
    const u32 low = (shared_address(rows) >> 4 & 0x3fff | 1u << 16) + 2 * step;
    return low | (32ull | 2ull << 30) << 32;
}

DEVICE void wgmma(float (&d)[8], const u32 (&a)[4], u64 rows) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7}, "
        "{%8, %9, %10, %11}, %12, 1, 1, 1, 0;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(rows));
}

DEVICE void wgmma(float (&d)[16], const u32 (&a)[4], u64 rows) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
        "{%16, %17, %18, %19}, %20, 1, 1, 1, 0;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
          "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
          "+f"(d[14]), "+f"(d[15])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(rows));
}

DEVICE void wgmma(float (&d)[24], const u32 (&a)[4], u64 rows) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n48k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23}, "
        "{%24, %25, %26, %27}, %28, 1, 1, 1, 0;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
          "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
          "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
          "+f"(d[21]), "+f"(d[22]), "+f"(d[23])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(rows));
}

// Products with 64 columns, of which there are three kinds. SUM: the constraint of the sums; FLAGS: whether what they were
// counts, the signs of a and rows, whether rows are transposed.
#define WGMMA_64(SUM, FLAGS)                                                                                      \
    asm volatile(                                                                                                 \
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "                                                   \
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "             \
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "                                           \
        "{%32, %33, %34, %35}, %36, " FLAGS ";"                                                                   \
        : SUM(d[0]), SUM(d[1]), SUM(d[2]), SUM(d[3]), SUM(d[4]), SUM(d[5]), SUM(d[6]), SUM(d[7]),                 \
          SUM(d[8]), SUM(d[9]), SUM(d[10]), SUM(d[11]), SUM(d[12]), SUM(d[13]), SUM(d[14]), SUM(d[15]),           \
          SUM(d[16]), SUM(d[17]), SUM(d[18]), SUM(d[19]), SUM(d[20]), SUM(d[21]), SUM(d[22]), SUM(d[23]),         \
          SUM(d[24]), SUM(d[25]), SUM(d[26]), SUM(d[27]), SUM(d[28]), SUM(d[29]), SUM(d[30]), SUM(d[31])          \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(rows))

DEVICE void wgmma(float (&d)[32], const u32 (&a)[4], u64 rows) { WGMMA_64("+f", "1, 1, 1, 0"); }

// The first of a sum: d = a rows.
DEVICE void wgmma_first(float (&d)[32], const u32 (&a)[4], u64 rows) { WGMMA_64("=f", "0, 1, 1, 0"); }

// d[64][64] += a[64][16] rows[16][64]: a sum over the rows themselves, 16 at a step of 2,048 bytes (MN-major, of which
// 64 columns are one atom of the 128-byte swizzle, so that 8 rows more are 1,024 bytes further, as in wgmma_rows).
DEVICE u64 wgmma_sixteen(WgmmaRows rows, int bytes, int step) { return wgmma_rows(rows, bytes + 2048 * step, 0); }
DEVICE void wgmma_over_rows(float (&d)[32], const u32 (&a)[4], u64 rows) { WGMMA_64("+f", "1, 1, 1, 1"); }

DEVICE void wgmma(float (&d)[40], const u32 (&a)[4], u64 rows) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n80k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
        "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39}, "
        "{%40, %41, %42, %43}, %44, 1, 1, 1, 0;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
          "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]),
          "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]),
          "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
          "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]),
          "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]),
          "+f"(d[37]), "+f"(d[38]), "+f"(d[39])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(rows));
}

DEVICE void wgmma(float (&d)[48], const u32 (&a)[4], u64 rows) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, "
        "%38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, "
        "{%48, %49, %50, %51}, %52, 1, 1, 1, 0;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
          "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
          "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
          "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
          "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]),
          "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
          "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(rows));
}

DEVICE void wgmma(float (&d)[56], const u32 (&a)[4], u64 rows) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n112k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
        "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55}, "
        "{%56, %57, %58, %59}, %60, 1, 1, 1, 0;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
          "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]),
          "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]),
          "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
          "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]),
          "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]),
          "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]),
          "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
          "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]),
          "+f"(d[55])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(rows));
}

DEVICE void wgmma(float (&d)[64], const u32 (&a)[4], u64 rows) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, "
        "%38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, "
        "%56, %57, %58, %59, %60, %61, %62, %63}, "
        "{%64, %65, %66, %67}, %68, 1, 1, 1, 0;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
          "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
          "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
          "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
          "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]),
          "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
          "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
          "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]),
          "+f"(d[63])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(rows));
}

#endif  // EYAS_EMULATE
