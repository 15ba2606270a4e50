/* peak_bf16.c: see peak.h. */
#include <immintrin.h>

#include "backend/cpu/peak.h"

#define ONES ((__m512bh)_mm512_set1_epi16(0x3F80)) /* 1 in bf16, 32 times */
#define STEP(sum) _mm512_dpbf16_ps(sum, ONES, ONES)
PEAK_KERNEL(avx512_peak_bf16, __m512, STEP, 32);
