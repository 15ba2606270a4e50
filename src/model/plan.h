/* plan.h: which buffers a model needs and how large they are.  Pure arithmetic: opens and allocates nothing. */
#ifndef CALLA_MODEL_PLAN_H
#define CALLA_MODEL_PLAN_H

#include "model/model.h"

/* Dependent stages of one step: six per layer, the embedding, and the head. */
static inline uint32_t plan_stages(const model_shape *s) { return 6 * s->layers + 2; }

/* Multiplications and additions of the matrices for one row, lm_head excepted; and of attention for each position that a row sees. */
uint64_t plan_token_flop(const model_shape *s);
uint64_t plan_context_flop(const model_shape *s);

const char *plan_buffer_name(buffer_id id);

#endif
