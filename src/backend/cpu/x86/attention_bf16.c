/* attention_bf16.c: attention of fast precision over K and V in bf16 with AVX512_BF16: q and p are rounded to bf16 as K and V were, and an
 * instruction adds two products to each of 16 sums in float32.
 *
 * 33 ms for 32,768 tokens and ten layers on two Zen 4 cores, from memory (docs/speed.md), where the products alone take 11.7. */
#include <immintrin.h>

#include "backend/cpu/x86/attention.h"
#include "backend/cpu/x86/avx512.h"

enum {
    D = HEAD_DIM,
    ROW_BYTES = 2 * D,
    SUMS = 16, /* pairs of a head and a key in a tile */
    STEP = 32, /* dimensions, a line of 64 bytes */
    MOST = 8,  /* heads of a call */
    AHEAD = 16 /* keys */
};

INLINE __m512i to_bf16(__m512 low, __m512 high) { return (__m512i)_mm512_cvtne2ps_pbh(high, low); }
INLINE __m512 dots(__m512 sum, __m512i a, __m512i b) { return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b); }

/* A tile of `heads` by SUMS / heads keys.  Keys past the last are the last once more, so that a score does not depend on how many there
 * are. */
INLINE void scores(const float *q, size_t q_stride, const uint32_t heads, const uint8_t *k, uint32_t n, float *out, size_t out_stride,
                   const uint8_t *ahead) {
    const uint32_t keys = SUMS / heads;
    __m512i x[MOST][D / STEP];
    for (uint32_t h = 0; h < heads; h++)
        for (uint32_t i = 0; i < D; i += STEP)
            x[h][i / STEP] = to_bf16(_mm512_loadu_ps(q + h * q_stride + i), _mm512_loadu_ps(q + h * q_stride + i + 16));
    for (uint32_t t = 0; t < n; t += keys) {
        const uint8_t *row[SUMS];
        __m512 s[SUMS];
#pragma GCC unroll 16
        for (uint32_t l = 0; l < keys; l++) row[l] = k + (size_t)(t + l < n ? t + l : n - 1) * ROW_BYTES;
#pragma GCC unroll 16
        for (uint32_t j = 0; j < SUMS; j++) s[j] = _mm512_setzero_ps();
#pragma GCC unroll 8
        for (uint32_t i = 0; i < D / STEP; i++) {
            __m512i key[SUMS];
#pragma GCC unroll 16
            for (uint32_t l = 0; l < keys; l++) {
                const size_t at = (size_t)(t + l) * ROW_BYTES + i * 64;
                key[l] = _mm512_loadu_si512(row[l] + i * 64);
                __builtin_prefetch(k + at + AHEAD * ROW_BYTES, 0, 3);
                __builtin_prefetch(ahead + at, 0, 2);
            }
#pragma GCC unroll 8
            for (uint32_t h = 0; h < heads; h++)
#pragma GCC unroll 16
                for (uint32_t l = 0; l < keys; l++) s[h * keys + l] = dots(s[h * keys + l], key[l], x[h][i]);
        }
        float sums[SUMS];
        _mm512_storeu_ps(sums, avx512_sums(s));
        for (uint32_t l = 0; l < keys && t + l < n; l++)
            for (uint32_t h = 0; h < heads; h++) out[h * out_stride + t + l] = sums[h * keys + l];
    }
}

/* p of two rows next to each other; 0 behind the last. */
INLINE void values(const float *p, size_t p_stride, const uint32_t heads, const uint8_t *v, uint32_t n, float *out, const uint8_t *ahead) {
    _Alignas(64) uint32_t two[MOST][KV_PAGE_TOKENS / 2];
    for (uint32_t h = 0; h < heads; h++)
        for (uint32_t t = 0; t < n; t += 32) {
            const float *from = p + h * p_stride + t;
            const __m512 low = _mm512_maskz_loadu_ps(avx512_part(n - t), from),
                         high = n - t > 16 ? _mm512_maskz_loadu_ps(avx512_part(n - t - 16), from + 16) : _mm512_setzero_ps();
            _mm512_store_si512(two[h] + t / 2, to_bf16(low, high));
        }
    for (uint32_t i = 0; i < D; i += STEP) {
        __m512 even[MOST], odd[MOST]; /* lanes: the first and second four of each eight dimensions */
#pragma GCC unroll 8
        for (uint32_t h = 0; h < heads; h++) even[h] = odd[h] = _mm512_setzero_ps();
        for (uint32_t t = 0; t < n; t += 2) {
            const size_t at = (size_t)t * ROW_BYTES + i * 2;
            const __m512i a = _mm512_loadu_si512(v + at), b = t + 1 < n ? _mm512_loadu_si512(v + at + ROW_BYTES) : _mm512_setzero_si512(),
                          low = _mm512_unpacklo_epi16(a, b), high = _mm512_unpackhi_epi16(a, b);
            __builtin_prefetch(ahead + at, 0, 2);
            __builtin_prefetch(ahead + at + ROW_BYTES, 0, 2);
#pragma GCC unroll 8
            for (uint32_t h = 0; h < heads; h++) {
                const __m512i w = _mm512_set1_epi32((int32_t)two[h][t / 2]);
                even[h] = dots(even[h], low, w);
                odd[h] = dots(odd[h], high, w);
            }
        }
#pragma GCC unroll 8
        for (uint32_t h = 0; h < heads; h++) attention_add(out + (size_t)h * D + i, even[h], odd[h]);
    }
}

ATTENTION(bf16_attention_bf16);
