/* bind.h: from tensor names to the fields of weights. */
#ifndef CALLA_WEIGHTS_BIND_H
#define CALLA_WEIGHTS_BIND_H

#include "weights/checkpoint.h"
#include "weights/quantization.h"
#include "weights/weights.h"

/* Fills in everything of w that points into w->files (w->shape is set, w->layer is allocated), counts what is skipped, and fails on
 * any tensor that is missing, left over, of another dtype or of another shape. */
calla_status bind_tensors(weights *w, quantization *quant, const char *config_path, calla_error *err);

#endif
