/* neon.h: what the Arm files share: the entries that wider tables take over, and small helpers. */
#ifndef CALLA_BACKEND_CPU_NEON_H
#define CALLA_BACKEND_CPU_NEON_H

#include <arm_neon.h>

#include "backend/cpu/kernels.h"
#include "base/float.h"

/* ---- kernels_neon.c ---- */
void neon_linear_f32(const weight_mat *m, uint32_t which, uint32_t first, uint32_t count, const cpu_x *x, const uint32_t *list, uint32_t n,
                     bool q8, const cpu_ahead *ahead, float *acc);
void neon_weight_row(const weight_mat *m, uint32_t which, uint32_t row, float *out);
void neon_prepare_f32(const float *x, uint32_t cols, float *f32, float *sum);
float neon_dot(const float *a, const float *b, uint32_t n);

/* ---- mixer_neon.c ---- */
extern const cpu_mixers neon_mixer;
void neon_silu_mul(float *a, const float *b, uint32_t n);
void neon_sigmoid_mul(float *a, const float *b, uint32_t n);

/* ---- kernels_dotprod.c: also for the i8mm table, whose machines all have dotprod ---- */
void dotprod_prepare_q8(const float *x, uint32_t cols, int8_t *q8, float *scale, float *sum);
/* One to four rows of q8. */
void dotprod_linear_few(const weight_mat *m, uint32_t which, uint32_t first, uint32_t count, const cpu_x *x, const uint32_t *list,
                        uint32_t n, float *acc);

#define NEON_COMMON                                                                                                                        \
    .weight_row = neon_weight_row, .dot = neon_dot, .prepare_f32 = neon_prepare_f32, .silu_mul = neon_silu_mul,                            \
    .sigmoid_mul = neon_sigmoid_mul, .mixer = &neon_mixer

/* Eight bf16 as two registers of floats: a bf16 is the upper half of a float. */
static inline float32x4_t neon_bf16_low(uint16x8_t v) { return vreinterpretq_f32_u16(vzip1q_u16(vdupq_n_u16(0), v)); }
static inline float32x4_t neon_bf16_high(uint16x8_t v) { return vreinterpretq_f32_u16(vzip2q_u16(vdupq_n_u16(0), v)); }

/* Eight bf16 at any address */
static inline uint16x8_t neon_load_u16(const void *p) { return vreinterpretq_u16_u8(vld1q_u8(p)); }

/* Lane i: the sum of s[i]. */
static inline float32x4_t neon_sums(const float32x4_t s[4]) { return vpaddq_f32(vpaddq_f32(s[0], s[1]), vpaddq_f32(s[2], s[3])); }

#endif
