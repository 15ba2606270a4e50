/* q8_avx2.c: bytes are multiplied with vpmaddubsw, which adds pairs of products in 16 bits: a pair is at most 2 · 15 · 127 = 3,810, so
 * eight pairs fit (30,480) before they go on to 32 bits. */
#include <string.h>

#include "backend/cpu/x86/avx2.h"

/* Group by group: scale = largest / 127, rounded to nearest. */
void avx2_prepare_q8(const float *x, uint32_t cols, int8_t *q8, float *scale, float *sum) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    for (uint32_t g = 0; g < cols / CPU_GROUP; g++, x += CPU_GROUP, q8 += CPU_GROUP) {
        __m256 v[8], top = _mm256_setzero_ps();
        for (uint32_t j = 0; j < 4; j++) {
            avx2_reorder(x + 16 * j, &v[j], &v[j + 4]);
            top = _mm256_max_ps(top, _mm256_max_ps(_mm256_andnot_ps(sign, v[j]), _mm256_andnot_ps(sign, v[j + 4])));
        }
        float lanes[8], largest = 0;
        _mm256_storeu_ps(lanes, top);
        for (uint32_t j = 0; j < 8; j++) largest = lanes[j] > largest ? lanes[j] : largest;
        const __m256 inverse = _mm256_set1_ps(largest > 0 ? 127 / largest : 0);
        int32_t q[CPU_GROUP], total = 0;
        for (uint32_t j = 0; j < 8; j++) _mm256_storeu_si256((__m256i *)(q + 8 * j), _mm256_cvtps_epi32(_mm256_mul_ps(v[j], inverse)));
        for (uint32_t i = 0; i < CPU_GROUP; i++) {
            q8[i] = (int8_t)q[i];
            total += q[i];
        }
        scale[g] = largest / 127;
        sum[g] = scale[g] * (float)total;
    }
}

/* Not intrinsics: gcc 12 would make all products of a tile first, add them as a tree, and keep them in memory meanwhile. */
static inline __m256i add_products(__m256i sum, __m256i codes, __m256i x) {
    __m256i pairs;
    __asm__("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0" : "+x"(sum), "=&x"(pairs) : "x"(codes), "x"(x));
    return sum;
}

static inline __m256i products(__m256i codes, __m256i x) { return _mm256_maddubs_epi16(codes, x); }
static inline __m256i widened(__m256i sum) { return _mm256_madd_epi16(sum, _mm256_set1_epi16(1)); }

#define Q8(name) avx2_##name
#include "backend/cpu/x86/q8_avx2.h"
