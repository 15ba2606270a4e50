/* avx2.h: what the AVX2 files share. */
#ifndef CALLA_BACKEND_CPU_AVX2_H
#define CALLA_BACKEND_CPU_AVX2_H

#include <immintrin.h>

#include "backend/cpu/kernels.h"
#include "base/float.h"

/* kernels_avx2.c and q8_avx2.c: as in cpu_kernels */
#define AVX2_COMMON                                                                                                                        \
    .has_q8 = true, .prepare_q8 = avx2_prepare_q8, .weight_row = avx2_weight_row, .dot = avx2_dot, .prepare_f32 = avx2_prepare_f32,        \
    .silu_mul = avx2_silu_mul, .sigmoid_mul = avx2_sigmoid_mul, .mixer = &avx2_mixer
float avx2_dot(const float *a, const float *b, uint32_t n);
void avx2_weight_row(const weight_mat *m, uint32_t which, uint32_t row, float *out);
void avx2_prepare_f32(const float *x, uint32_t cols, float *f32, float *sum);
void avx2_linear_f32(const weight_mat *m, uint32_t which, uint32_t first, uint32_t count, const cpu_x *x, const uint32_t *list, uint32_t n,
                     const cpu_ahead *ahead, float *acc);
void avx2_linear_q8(const weight_mat *m, uint32_t which, uint32_t first, uint32_t count, const cpu_x *x, const uint32_t *list, uint32_t n,
                    const cpu_ahead *ahead, float *acc);
void avxvnni_linear_q8(const weight_mat *m, uint32_t which, uint32_t first, uint32_t count, const cpu_x *x, const uint32_t *list,
                       uint32_t n, const cpu_ahead *ahead, float *acc);
void avx2_prepare_q8(const float *x, uint32_t cols, int8_t *q8, float *scale, float *sum);

/* mixer_avx2.c */
extern const cpu_mixers avx2_mixer;
void avx2_silu_mul(float *a, const float *b, uint32_t n);
void avx2_sigmoid_mul(float *a, const float *b, uint32_t n);

static inline float avx2_sum8(__m256 v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

static inline __m256 avx2_bf16(const void *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(p)), 16));
}

/* 16 values → 8 evens, 8 odds */
static inline void avx2_reorder(const float *x, __m256 *even, __m256 *odd) {
    const __m256i order = _mm256_setr_epi32(0, 1, 4, 5, 2, 3, 6, 7); /* the shuffles mix the two 128-bit lanes: put right */
    const __m256 a = _mm256_loadu_ps(x), b = _mm256_loadu_ps(x + 8);
    *even = _mm256_permutevar8x32_ps(_mm256_shuffle_ps(a, b, 0x88), order);
    *odd = _mm256_permutevar8x32_ps(_mm256_shuffle_ps(a, b, 0xDD), order);
}

#endif
