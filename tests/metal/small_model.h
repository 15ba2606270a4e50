/* small_model.h: one sequence on metal, for tests of the host on the tiny checkpoints. */
#ifndef CALLA_TESTS_METAL_SMALL_MODEL_H
#define CALLA_TESTS_METAL_SMALL_MODEL_H

#include "backend/backend.h"
#include "model/model.h"

static inline model_options small_model(uint32_t batch_rows) {
    return (model_options){.backend = backend_find("metal"),
                           .batch_rows = batch_rows,
                           .max_segments = 1,
                           .max_wanted = 1,
                           .sequences = 1,
                           .kv_tokens = KV_PAGE_TOKENS,
                           .kv = CALLA_KV_BF16};
}

#endif
