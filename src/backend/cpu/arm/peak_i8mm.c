/* peak_i8mm.c: smmla multiplies two rows of 8 by two columns of 8. */
#include <arm_neon.h>

#include "backend/cpu/peak.h"

#define STEP(sum) vmmlaq_s32(sum, vdupq_n_s8(1), vdupq_n_s8(2))
PEAK_KERNEL(i8mm_peak_i8, int32x4_t, STEP, 32);
