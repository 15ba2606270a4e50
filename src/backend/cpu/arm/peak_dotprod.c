/* peak_dotprod.c: see peak.h. */
#include <arm_neon.h>

#include "backend/cpu/peak.h"

#define STEP(sum) vdotq_s32(sum, vdupq_n_s8(1), vdupq_n_s8(2))
PEAK_KERNEL(dotprod_peak_i8, int32x4_t, STEP, 16);
