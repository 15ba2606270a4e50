/* peak_avx512.c: see peak.h. */
#include <immintrin.h>

#include "backend/cpu/peak.h"

#define STEP(sum) _mm512_fmadd_ps(_mm512_set1_ps(0.5f), _mm512_set1_ps(0.25f), sum)
PEAK_KERNEL(avx512_peak_f32, __m512, STEP, 16);
