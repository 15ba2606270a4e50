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
    void (*run)(uint64_t rounds, void *sums); /* sums [PEAK_SUMS_BYTES]: written, so that the work is not optimized away */
    uint32_t flop;                            /* of one round */
} cpu_peak_kernel;

typedef struct cpu_peak {
    const cpu_peak_kernel *f32, *bf16, *i8; /* NULL: the set has no instruction for it */
} cpu_peak;

extern const cpu_peak_kernel c_peak_f32;
#if defined(__x86_64__)
extern const cpu_peak_kernel avx2_peak_f32, avx2_peak_i8, avx512_peak_f32, avx512_peak_bf16, vnni_peak_i8;
#elif defined(__aarch64__)
extern const cpu_peak_kernel neon_peak_f32, dotprod_peak_i8, i8mm_peak_i8;
#endif

/* Defines NAME: each round takes STEP(sum) on each sum; PRODUCTS: multiplications of one STEP, each of which comes with an addition. */
#define PEAK_KERNEL(NAME, VEC, ZERO, STEP, PRODUCTS)                                                                                       \
    static void NAME##_run(uint64_t rounds, void *sums) {                                                                                  \
        VEC s0 = ZERO, s1 = s0, s2 = s0, s3 = s0, s4 = s0, s5 = s0, s6 = s0, s7 = s0, s8 = s0, s9 = s0, s10 = s0, s11 = s0;                \
        for (; rounds; rounds--) {                                                                                                         \
            s0 = STEP(s0), s1 = STEP(s1), s2 = STEP(s2), s3 = STEP(s3), s4 = STEP(s4), s5 = STEP(s5);                                      \
            s6 = STEP(s6), s7 = STEP(s7), s8 = STEP(s8), s9 = STEP(s9), s10 = STEP(s10), s11 = STEP(s11);                                  \
        }                                                                                                                                  \
        const VEC all[PEAK_SUMS] = {s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11};                                                     \
        memcpy(sums, all, sizeof all);                                                                                                     \
    }                                                                                                                                      \
    const cpu_peak_kernel NAME = {NAME##_run, PEAK_SUMS * 2 * (PRODUCTS)}

#endif
