/* full_size.h: the real model's shapes without its weights: what a backend would do with them can be asked, and counted. */
#ifndef CALLA_TESTS_METAL_FULL_SIZE_H
#define CALLA_TESTS_METAL_FULL_SIZE_H

#include "weights/weights.h"

/* Layer i of `layers` is an attention layer where is_attention says so; NULL: every fourth, as in the real model.  To be freed with
 * full_size_free. */
weights full_size(uint32_t layers, const bool *is_attention);
void full_size_free(weights *w);

#endif
