/* q8_avxvnni.c: AVX2 with vpdpbusd on registers of 32 bytes, which adds four products in 32 bits at once; everything but the products of
 * bytes is AVX2's. */
#include <string.h>

#include "backend/cpu/x86/avx2.h"

static inline __m256i add_products(__m256i sum, __m256i codes, __m256i x) { return _mm256_dpbusd_avx_epi32(sum, codes, x); }
static inline __m256i products(__m256i codes, __m256i x) { return add_products(_mm256_setzero_si256(), codes, x); }
static inline __m256i widened(__m256i sum) { return sum; }

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
