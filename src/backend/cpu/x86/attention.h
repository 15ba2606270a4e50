/* attention.h: what the files of attention in fast precision share. */
#ifndef CALLA_BACKEND_CPU_X86_ATTENTION_H
#define CALLA_BACKEND_CPU_X86_ATTENTION_H

#include <immintrin.h>

#include "backend/cpu/kernels.h"

#define INLINE static inline __attribute__((always_inline))

extern const cpu_attention vnni_attention_q8, bf16_attention_bf16;

/* out[0 … 31] += sums of the first (even) and the second (odd) four of each eight dimensions, as unpacking of 16-bit values leaves them. */
INLINE void attention_add(float *out, __m512 even, __m512 odd) {
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23),
                  second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    _mm512_storeu_ps(out, _mm512_add_ps(_mm512_permutex2var_ps(even, first, odd), _mm512_loadu_ps(out)));
    _mm512_storeu_ps(out + 16, _mm512_add_ps(_mm512_permutex2var_ps(even, second, odd), _mm512_loadu_ps(out + 16)));
}

/* Defines NAME with the inline functions `scores` and `values`, whose number of heads is a constant in each call: 8, 4 or 1. */
#define ATTENTION(NAME)                                                                                                                    \
    static void NAME##_scores(const float *q, size_t q_stride, uint32_t heads, const uint8_t *k, uint32_t n, float *out,                   \
                              size_t out_stride, const uint8_t *ahead) {                                                                   \
        if (!ahead) ahead = k;                                                                                                             \
        for (; heads >= 8; heads -= 8, q += 8 * q_stride, out += 8 * out_stride) scores(q, q_stride, 8, k, n, out, out_stride, ahead);     \
        for (; heads >= 4; heads -= 4, q += 4 * q_stride, out += 4 * out_stride) scores(q, q_stride, 4, k, n, out, out_stride, ahead);     \
        for (; heads; heads--, q += q_stride, out += out_stride) scores(q, q_stride, 1, k, n, out, out_stride, ahead);                     \
    }                                                                                                                                      \
    static void NAME##_values(const float *p, size_t p_stride, uint32_t heads, const uint8_t *v, uint32_t n, float *out,                   \
                              const uint8_t *ahead) {                                                                                      \
        if (!ahead) ahead = v;                                                                                                             \
        for (; heads >= 8; heads -= 8, p += 8 * p_stride, out += 8 * HEAD_DIM) values(p, p_stride, 8, v, n, out, ahead);                   \
        for (; heads >= 4; heads -= 4, p += 4 * p_stride, out += 4 * HEAD_DIM) values(p, p_stride, 4, v, n, out, ahead);                   \
        for (; heads; heads--, p += p_stride, out += HEAD_DIM) values(p, p_stride, 1, v, n, out, ahead);                                   \
    }                                                                                                                                      \
    const cpu_attention NAME = {NAME##_scores, NAME##_values}

#endif
