/* clock.h: monotonic time. */
#ifndef CALLA_BASE_CLOCK_H
#define CALLA_BASE_CLOCK_H

#include <stdint.h>

uint64_t clock_now_ns(void); /* since some fixed moment; never goes back */

#endif
