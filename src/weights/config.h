/* config.h: config.json and generation_config.json as numbers.
 *
 * Owns the rules of which fields are read, their ranges and which variants of the architecture are refused; knows nothing of files
 * or tensors.  Fields that do not change the computation are ignored. */
#ifndef CALLA_WEIGHTS_CONFIG_H
#define CALLA_WEIGHTS_CONFIG_H

#include "weights/quantization.h"
#include "weights/weights.h"

typedef struct stop_list {
    int32_t ids[MAX_STOP_IDS];
    uint32_t n;
} stop_list;

typedef struct model_config {
    model_shape shape;
    quantization quant;
    stop_list stop; /* of config.json, both levels, without repeats */
} model_config;

/* json [n]; `file` names it in errors. */
calla_status config_parse(const char *json, size_t n, const char *file, model_config *out, calla_error *err);
void config_free(model_config *c);

/* generation_config.json: fills in `sampling` and adds its stop ids.  vocabulary: what ids must stay below. */
calla_status generation_parse(const char *json, size_t n, const char *file, uint32_t vocabulary, sampling_defaults *sampling,
                              stop_list *stop, calla_error *err);
/* What holds without that file: Hugging Face's own defaults, which are greedy and change nothing. */
void generation_defaults(sampling_defaults *sampling);

#endif
