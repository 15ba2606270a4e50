/* attention_vnni.c: attention of fast precision over K and V in 8 bits with AVX-512 VNNI.
 *
 * Products are of whole numbers, exact within a group of 64 values: K's bytes times 16 bits of q, whose scale is of its group, and V's
 * bytes times 16 bits of p · scale, relative to the page's largest.  So what is added to the cache's own error is that of 16 bits.
 *
 * 22 ms for 32,768 tokens and ten layers on two Zen 4 cores, from memory (docs/speed.md), where the products alone take 11.7. */
#include <immintrin.h>
#include <string.h>

#include "backend/cpu/x86/attention.h"
#include "backend/cpu/x86/avx512.h"

enum {
    D = HEAD_DIM,
    GROUPS = D / KV_GROUP,
    QUADS = KV_GROUP / 4, /* of bytes, which a lane multiplies at once */
    TILE = 16,            /* keys */
    MOST = 8              /* heads of a call */
};

#define Q_MOST (127 * 256.0f) /* q's high byte takes 127 */
#define P_MOST 32767.0f
#define TINY 0x1p-100f /* the reciprocal of less might be infinite */

/* out[c]: the four bytes from 4c on of 16 rows of 64 */
INLINE void quads_of_rows(const uint8_t *rows, size_t stride, __m512i out[16]) {
    __m512i a[16], b[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) a[i] = _mm512_loadu_si512(rows + (size_t)i * stride);
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        const __m512i l0 = _mm512_unpacklo_epi32(a[i], a[i + 1]), h0 = _mm512_unpackhi_epi32(a[i], a[i + 1]),
                      l2 = _mm512_unpacklo_epi32(a[i + 2], a[i + 3]), h2 = _mm512_unpackhi_epi32(a[i + 2], a[i + 3]);
        b[i] = _mm512_unpacklo_epi64(l0, l2), b[i + 1] = _mm512_unpackhi_epi64(l0, l2);
        b[i + 2] = _mm512_unpacklo_epi64(h0, h2), b[i + 3] = _mm512_unpackhi_epi64(h0, h2);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const __m512i l0 = _mm512_shuffle_i32x4(b[i], b[i + 4], 0x44), h0 = _mm512_shuffle_i32x4(b[i], b[i + 4], 0xEE),
                      l8 = _mm512_shuffle_i32x4(b[i + 8], b[i + 12], 0x44), h8 = _mm512_shuffle_i32x4(b[i + 8], b[i + 12], 0xEE);
        out[i] = _mm512_shuffle_i32x4(l0, l8, 0x88), out[i + 4] = _mm512_shuffle_i32x4(l0, l8, 0xDD);
        out[i + 8] = _mm512_shuffle_i32x4(h0, h8, 0x88), out[i + 12] = _mm512_shuffle_i32x4(h0, h8, 0xDD);
    }
}

/* Up to eight heads of q: in each group q = scale · (256 high + low), the two bytes of a head next to each other. */
typedef struct q16 {
    _Alignas(64) int32_t quad[GROUPS][QUADS][MOST][2];
    _Alignas(64) int32_t start[GROUPS][MOST][2]; /* -128 Σ byte: K's bytes are multiplied as byte + 128 */
    float scale[GROUPS][MOST];
} q16;

INLINE void prepare_q(const float *q, size_t q_stride, uint32_t heads, q16 *out) {
    _Alignas(64) uint8_t bytes[MOST][2][KV_GROUP];
    memset(bytes, 0, sizeof bytes);
    for (uint32_t g = 0; g < GROUPS; g++) {
        for (uint32_t h = 0; h < heads; h++) {
            const float *x = q + h * q_stride + g * KV_GROUP;
            __m512 v[4], most = _mm512_setzero_ps();
            for (uint32_t i = 0; i < 4; i++) v[i] = _mm512_loadu_ps(x + 16 * i), most = _mm512_max_ps(most, _mm512_abs_ps(v[i]));
            const float largest = _mm512_reduce_max_ps(most);
            const __m512 inverse = _mm512_set1_ps(largest > TINY ? Q_MOST / largest : 0);
            out->scale[g][h] = largest / Q_MOST;
            for (uint32_t i = 0; i < 4; i++) { /* bytes are signed: what the low one has too much the high one lacks */
                const __m512i n = _mm512_cvtps_epi32(_mm512_mul_ps(v[i], inverse)),
                              high = _mm512_srai_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(128)), 8);
                _mm_store_si128((__m128i *)(bytes[h][0] + 16 * i), _mm512_cvtepi32_epi8(high));
                _mm_store_si128((__m128i *)(bytes[h][1] + 16 * i), _mm512_cvtepi32_epi8(n));
            }
        }
        __m512i quad[QUADS], sum = _mm512_setzero_si512();
        quads_of_rows(bytes[0][0], KV_GROUP, quad);
        for (uint32_t c = 0; c < QUADS; c++) {
            _mm512_store_si512(out->quad[g][c], quad[c]);
            sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8((char)128), quad[c]);
        }
        _mm512_store_si512(out->start[g], _mm512_sub_epi32(_mm512_setzero_si512(), sum));
    }
}

/* Of 16 rows from t on: the scales of group g.  Rows behind the last used one are in the block, too. */
INLINE __m512 scales_of(const uint8_t *block, uint32_t t, uint32_t g) {
    const float *s = (const float *)(const void *)(block + KV_PAGE_TOKENS * D) + (size_t)t * GROUPS;
    const __m512i every =
        _mm512_add_epi32(_mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28), _mm512_set1_epi32((int32_t)g));
    const __m512 a = _mm512_permutex2var_ps(_mm512_loadu_ps(s), every, _mm512_loadu_ps(s + 16)),
                 b = _mm512_permutex2var_ps(_mm512_loadu_ps(s + 32), every, _mm512_loadu_ps(s + 48));
    return _mm512_shuffle_f32x4(a, b, 0x44);
}

/* A lane is a key. */
INLINE void scores(const float *q, size_t q_stride, const uint32_t heads, const uint8_t *k, uint32_t n, float *out, size_t out_stride,
                   const uint8_t *ahead) {
    q16 x;
    prepare_q(q, q_stride, heads, &x);
    for (uint32_t t = 0; t < n; t += TILE) {
        __m512 sum[MOST];
#pragma GCC unroll 8
        for (uint32_t h = 0; h < heads; h++) sum[h] = _mm512_setzero_ps();
        for (uint32_t g = 0; g < GROUPS; g++) {
            const size_t at = (size_t)t * D + g * KV_GROUP;
            __m512i quad[QUADS], high[MOST], low[MOST];
            _Alignas(64) int32_t keys[QUADS][TILE];
            quads_of_rows(k + at, D, quad);
#pragma GCC unroll 16
            for (uint32_t c = 0; c < QUADS; c++) {
                _mm512_store_si512(keys[c], _mm512_xor_si512(quad[c], _mm512_set1_epi8((char)128)));
                __builtin_prefetch(k + at + (TILE + c) * D, 0, 3);
                __builtin_prefetch(ahead + at + c * D, 0, 2);
            }
#pragma GCC unroll 8
            for (uint32_t h = 0; h < heads; h++)
                high[h] = _mm512_set1_epi32(x.start[g][h][0]), low[h] = _mm512_set1_epi32(x.start[g][h][1]);
            for (uint32_t c = 0; c < QUADS; c++) {
                const __m512i key = _mm512_load_si512(keys[c]);
#pragma GCC unroll 8
                for (uint32_t h = 0; h < heads; h++) {
                    high[h] = _mm512_dpbusd_epi32(high[h], key, _mm512_set1_epi32(x.quad[g][c][h][0]));
                    low[h] = _mm512_dpbusd_epi32(low[h], key, _mm512_set1_epi32(x.quad[g][c][h][1]));
                }
            }
            const __m512 scale = scales_of(k, t, g);
#pragma GCC unroll 8
            for (uint32_t h = 0; h < heads; h++) {
                const __m512 dot = _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(high[h], 8), low[h]));
                sum[h] = _mm512_fmadd_ps(dot, _mm512_mul_ps(scale, _mm512_set1_ps(x.scale[g][h])), sum[h]);
            }
        }
#pragma GCC unroll 8
        for (uint32_t h = 0; h < heads; h++) _mm512_mask_storeu_ps(out + h * out_stride + t, avx512_part(n - t), sum[h]);
    }
}

/* p · scale in 16 bits, those of two rows next to each other; 0 behind the last. */
typedef struct p16 {
    _Alignas(64) int16_t p[MOST][KV_PAGE_TOKENS];
    float scale[MOST]; /* of p */
} p16;

INLINE float largest_of(const float *p, uint32_t n) {
    __m512 most = _mm512_setzero_ps();
    for (uint32_t t = 0; t < n; t += 16) most = _mm512_max_ps(most, _mm512_maskz_loadu_ps(avx512_part(n - t), p + t));
    return _mm512_reduce_max_ps(most);
}

INLINE void prepare_p(const float *p, size_t p_stride, const float *largest, const uint32_t heads, const uint8_t *v, uint32_t n, uint32_t g,
                      p16 *out) {
    _Alignas(64) float scale[KV_PAGE_TOKENS];
    for (uint32_t t = 0; t < n; t += 16) _mm512_store_ps(scale + t, _mm512_maskz_mov_ps(avx512_part(n - t), scales_of(v, t, g)));
    const float most = largest_of(scale, n);
    for (uint32_t h = 0; h < heads; h++) {
        const float whole = largest[h] * most;
        const __m512 inverse = _mm512_set1_ps(whole > TINY ? P_MOST / whole : 0);
        out->scale[h] = whole / P_MOST;
        for (uint32_t t = 0; t < n; t += 16) {
            const __m512 w = _mm512_mul_ps(_mm512_maskz_loadu_ps(avx512_part(n - t), p + h * p_stride + t), _mm512_load_ps(scale + t));
            _mm256_store_si256((__m256i *)(out->p[h] + t), _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(_mm512_mul_ps(w, inverse))));
        }
    }
}

INLINE __m512i two_weights(const int16_t *p) {
    int32_t two;
    memcpy(&two, p, sizeof two);
    return _mm512_set1_epi32(two);
}

/* Two rows at a time, half a group: a lane is one of 32 dimensions, in the order in which unpacking leaves them. */
INLINE void values(const float *p, size_t p_stride, const uint32_t heads, const uint8_t *v, uint32_t n, float *out, const uint8_t *ahead) {
    enum { HALF = KV_GROUP / 2 };
    float largest[MOST];
    p16 x;
    for (uint32_t h = 0; h < heads; h++) largest[h] = largest_of(p + h * p_stride, n);
    for (uint32_t i = 0; i < D; i += HALF) {
        if (i % KV_GROUP == 0) prepare_p(p, p_stride, largest, heads, v, n, i / KV_GROUP, &x);
        __m512i even[MOST], odd[MOST];
#pragma GCC unroll 8
        for (uint32_t h = 0; h < heads; h++) even[h] = odd[h] = _mm512_setzero_si512();
        for (uint32_t t = 0; t < n; t += 2) {
            const uint8_t *row = v + (size_t)t * D + i;
            const __m512i a = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)row)),
                          b = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)(row + D))), low = _mm512_unpacklo_epi16(a, b),
                          high = _mm512_unpackhi_epi16(a, b);
            __builtin_prefetch(ahead + (size_t)(t + i / HALF % 2) * D + i, 0, 2);
#pragma GCC unroll 8
            for (uint32_t h = 0; h < heads; h++) {
                const __m512i w = two_weights(x.p[h] + t);
                even[h] = _mm512_dpwssd_epi32(even[h], low, w);
                odd[h] = _mm512_dpwssd_epi32(odd[h], high, w);
            }
        }
#pragma GCC unroll 8
        for (uint32_t h = 0; h < heads; h++) {
            const __m512 scale = _mm512_set1_ps(x.scale[h]);
            attention_add(out + (size_t)h * D + i, _mm512_mul_ps(_mm512_cvtepi32_ps(even[h]), scale),
                          _mm512_mul_ps(_mm512_cvtepi32_ps(odd[h]), scale));
        }
    }
}

ATTENTION(vnni_attention_q8);
