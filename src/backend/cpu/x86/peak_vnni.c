/* peak_vnni.c: see peak.h. */
#include <immintrin.h>

#include "backend/cpu/peak.h"

#define STEP(sum) _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(1), _mm512_set1_epi8(2))
PEAK_KERNEL(vnni_peak_i8, __m512i, STEP, 64);
