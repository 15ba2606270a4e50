/* peak_avx2.c: AVX2 multiplies pairs of bytes with vpmaddubsw, and needs two more instructions to add them up in 32 bits. */
#include <immintrin.h>

#include "backend/cpu/peak.h"

#define STEP_F32(sum) _mm256_fmadd_ps(_mm256_set1_ps(0.5f), _mm256_set1_ps(0.25f), sum)
PEAK_KERNEL(avx2_peak_f32, __m256, STEP_F32, 8);

/* The sum is a factor too: were both constant, the product would be computed once. */
#define STEP_I8(sum) _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(sum, _mm256_set1_epi8(3)), _mm256_set1_epi16(1)))
PEAK_KERNEL(avx2_peak_i8, __m256i, STEP_I8, 32);
