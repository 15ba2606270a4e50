/* avx512.h: what the AVX-512 files share: entries that the VNNI table takes over, and small helpers. */
#ifndef CALLA_BACKEND_CPU_AVX512_H
#define CALLA_BACKEND_CPU_AVX512_H

#include <immintrin.h>

#include "backend/cpu/kernels.h"
#include "base/float.h"

void avx512_linear_f32(const weight_mat *m, uint32_t which, uint32_t first, uint32_t count, const cpu_x *x, const uint32_t *list,
                       uint32_t n, bool q8, const cpu_ahead *ahead, float *acc);
float avx512_dot(const float *a, const float *b, uint32_t n);
void avx512_dots(const float *const w[4], const float *const x[4], uint32_t n, float out[4][4]);
void avx512_byte_dots(const weight_mat *m, uint32_t which, uint32_t first, uint32_t count, const float *x, const cpu_ahead *ahead,
                      float *out);
void avx512_weight_row(const weight_mat *m, uint32_t which, uint32_t row, float *out);
void avx512_prepare_f32(const float *x, uint32_t cols, float *f32, float *sum);
void avx512_silu_mul(float *a, const float *b, uint32_t n);
void avx512_sigmoid_mul(float *a, const float *b, uint32_t n);
extern const cpu_mixers avx512_mixer;

#define AVX512_COMMON                                                                                                                      \
    .weight_row = avx512_weight_row, .dot = avx512_dot, .dots = avx512_dots, .byte_dots = avx512_byte_dots,                                \
    .prepare_f32 = avx512_prepare_f32, .silu_mul = avx512_silu_mul, .sigmoid_mul = avx512_sigmoid_mul, .mixer = &avx512_mixer

/* The lanes of the next `left` values, at most all 16. */
static inline __mmask16 avx512_part(uint32_t left) { return _cvtu32_mask16(left < 16 ? (1u << left) - 1 : 0xFFFF); }

static inline __m512 avx512_bf16(__m256i v) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16)); }

/* The sums of the lanes of 16 vectors: four rounds, each of which adds what half of the vectors have of the other half's lanes. */
static inline __m512 avx512_sums(const __m512 s[16]) {
    __m512 a[8], b[4], c[2];
    for (int i = 0; i < 8; i++)
        a[i] = _mm512_add_ps(_mm512_shuffle_f32x4(s[i], s[i + 8], 0x44),
                             _mm512_shuffle_f32x4(s[i], s[i + 8], 0xEE)); /* s[i] in the lower half */
    for (int i = 0; i < 4; i++)
        b[i] =
            _mm512_add_ps(_mm512_shuffle_f32x4(a[i], a[i + 4], 0x88), _mm512_shuffle_f32x4(a[i], a[i + 4], 0xDD)); /* i, i+8, i+4, i+12 */
    for (int i = 0; i < 2; i++) c[i] = _mm512_add_ps(_mm512_unpacklo_ps(b[i], b[i + 2]), _mm512_unpackhi_ps(b[i], b[i + 2]));
    const __m512 d = _mm512_add_ps(_mm512_unpacklo_ps(c[0], c[1]), _mm512_unpackhi_ps(c[0], c[1]));
    return _mm512_shuffle_f32x4(d, d, _MM_SHUFFLE(3, 1, 2, 0));
}

/* 64 values → evens 0 … 31, odds 0 … 31 */
static inline void avx512_reorder(const float *x, __m512 out[4]) {
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30),
                  odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    const __m512 a = _mm512_loadu_ps(x), b = _mm512_loadu_ps(x + 16), c = _mm512_loadu_ps(x + 32), d = _mm512_loadu_ps(x + 48);
    out[0] = _mm512_permutex2var_ps(a, even, b);
    out[1] = _mm512_permutex2var_ps(c, even, d);
    out[2] = _mm512_permutex2var_ps(a, odd, b);
    out[3] = _mm512_permutex2var_ps(c, odd, d);
}

#endif
