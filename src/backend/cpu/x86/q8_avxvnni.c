/* q8_avxvnni.c: AVX2 with vpdpbusd on registers of 32 bytes, which adds four products in 32 bits at once; everything but the products of
 * bytes is AVX2's. */
#include <string.h>

#include "backend/cpu/x86/avx2.h"

static inline __m256i group_dot(__m256i low, __m256i high, const int8_t *q8) {
    const __m256i a = _mm256_dpbusd_avx_epi32(_mm256_setzero_si256(), low, _mm256_loadu_si256((const __m256i *)q8));
    return _mm256_dpbusd_avx_epi32(a, high, _mm256_loadu_si256((const __m256i *)(q8 + 32)));
}

/* Two chains, since one sum after the other would wait for the last. */
static inline __m256i row_dot(const __m256i w[16], const int8_t *q8) {
    __m256i sum[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    for (uint32_t j = 0; j < 16; j++) {
        int32_t v;
        memcpy(&v, q8 + 4 * (size_t)j, 4);
        sum[j % 2] = _mm256_dpbusd_avx_epi32(sum[j % 2], w[j], _mm256_set1_epi32(v));
    }
    return _mm256_add_epi32(sum[0], sum[1]);
}

#define Q8(name) avxvnni_##name
#include "backend/cpu/x86/q8_avx2.h"

static void linear_avxvnni(const weight_mat *m, uint32_t which, uint32_t first, uint32_t count, const cpu_x *x, const uint32_t *list,
                           uint32_t n, bool q8, const cpu_ahead *ahead, float *acc) {
    if (q8)
        avxvnni_linear_q8(m, which, first, count, x, list, n, ahead, acc);
    else
        avx2_linear_f32(m, which, first, count, x, list, n, ahead, acc);
}

static const cpu_peak peak = {.f32 = &avx2_peak_f32, .i8 = &avxvnni_peak_i8};

const cpu_kernels cpu_kernels_avxvnni = {.name = "avxvnni", .peak = &peak, .linear = linear_avxvnni, AVX2_COMMON};
