/* peak_c.c: see peak.h. */
#include "backend/cpu/peak.h"

#define STEP(sum) ((sum) * 0.5f + 0.25f)
PEAK_KERNEL(c_peak_f32, float, STEP, 1);
