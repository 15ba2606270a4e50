/* peak_neon.c: see peak.h. */
#include <arm_neon.h>

#include "backend/cpu/peak.h"

#define STEP(sum) vfmaq_f32(sum, vdupq_n_f32(0.5f), vdupq_n_f32(0.25f))
PEAK_KERNEL(neon_peak_f32, float32x4_t, STEP, 4);
