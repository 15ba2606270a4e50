/* check.h: looking for NaN and infinity in what was bound. */
#ifndef CALLA_WEIGHTS_CHECK_H
#define CALLA_WEIGHTS_CHECK_H

#include "weights/weights.h"

/* all: every number; else those that weights_open promises. */
calla_status check_numbers(const weights *w, bool all, calla_error *err);
/* Bytes of the numbers that check_numbers(w, true) reads. */
uint64_t check_bytes(const weights *w);

#endif
