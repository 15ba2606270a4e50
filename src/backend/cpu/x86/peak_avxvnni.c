/* peak_avxvnni.c: see peak.h. */
#include <immintrin.h>

#include "backend/cpu/peak.h"

#define STEP(sum) _mm256_dpbusd_avx_epi32(sum, _mm256_set1_epi8(1), _mm256_set1_epi8(2))
PEAK_KERNEL(avxvnni_peak_i8, __m256i, STEP, 32);
