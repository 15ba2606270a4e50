/* peak.h: kernels that do nothing but dot products of registers, as many as the units take: the ceiling of all others (peak.c measures
 * them).  One per instruction set and type of factors, behind the tables of kernels.h. */
#ifndef CALLA_BACKEND_CPU_PEAK_H
#define CALLA_BACKEND_CPU_PEAK_H

#include <stdint.h>
#include <string.h>

/* Sums that do not wait for each other: with a latency of 4 cycles and two units 8 would do; 12 leave room for slower ones, and for two
 * operands among AVX2's 16 registers. */
enum { PEAK_SUMS = 12, PEAK_SUMS_BYTES = PEAK_SUMS * 64 };

typedef struct cpu_peak_kernel {
    /* sums [PEAK_SUMS_BYTES] are read and written: a compiler that sees equal sums computes one, and none that nobody reads. */
    void (*run)(uint64_t rounds, void *sums);
    uint32_t flop; /* of one round */
} cpu_peak_kernel;

typedef struct cpu_peak {
    const cpu_peak_kernel *f32, *bf16, *i8; /* NULL: the set has no instruction for it */
} cpu_peak;

extern const cpu_peak_kernel c_peak_f32;
#if defined(__x86_64__)
extern const cpu_peak_kernel avx2_peak_f32, avx2_peak_i8, avxvnni_peak_i8, avx512_peak_f32, avx512_peak_bf16, vnni_peak_i8;
#elif defined(__aarch64__)
extern const cpu_peak_kernel neon_peak_f32, dotprod_peak_i8, i8mm_peak_i8;
#endif

/* Defines NAME: each round takes STEP(sum) on each sum; PRODUCTS: multiplications of one STEP, each of which comes with an addition. */
#define PEAK_KERNEL(NAME, VEC, STEP, PRODUCTS)                                                                                             \
    static void NAME##_run(uint64_t rounds, void *sums) {                                                                                  \
        VEC all[PEAK_SUMS];                                                                                                                \
        memcpy(all, sums, sizeof all);                                                                                                     \
        VEC s0 = all[0], s1 = all[1], s2 = all[2], s3 = all[3], s4 = all[4], s5 = all[5], s6 = all[6], s7 = all[7], s8 = all[8],           \
            s9 = all[9], s10 = all[10], s11 = all[11];                                                                                     \
        for (; rounds; rounds--) {                                                                                                         \
            s0 = STEP(s0), s1 = STEP(s1), s2 = STEP(s2), s3 = STEP(s3), s4 = STEP(s4), s5 = STEP(s5);                                      \
            s6 = STEP(s6), s7 = STEP(s7), s8 = STEP(s8), s9 = STEP(s9), s10 = STEP(s10), s11 = STEP(s11);                                  \
        }                                                                                                                                  \
        all[0] = s0, all[1] = s1, all[2] = s2, all[3] = s3, all[4] = s4, all[5] = s5, all[6] = s6, all[7] = s7, all[8] = s8, all[9] = s9,  \
        all[10] = s10, all[11] = s11;                                                                                                      \
        memcpy(sums, all, sizeof all);                                                                                                     \
    }                                                                                                                                      \
    const cpu_peak_kernel NAME = {NAME##_run, PEAK_SUMS * 2 * (PRODUCTS)}

#endif
