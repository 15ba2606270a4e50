/* draft.h: a checkpoint taken apart, to be written again with faults or in another form.  Failures end the test. */
#ifndef CALLA_TESTS_WEIGHTS_DRAFT_H
#define CALLA_TESTS_WEIGHTS_DRAFT_H

#include <json-c/json.h>

#include "weights/weights.h"

enum { DRAFT_MAX = 2048 };

typedef struct draft_tensor {
    char name[160];
    char dtype[16];
    uint64_t shape[8];
    uint32_t dims;
    uint8_t *data; /* [bytes], owned */
    uint64_t bytes;
    unsigned shard; /* 0 … 9: file model-<shard>.safetensors; all 0 and no index asked for: model.safetensors */
} draft_tensor;

typedef struct draft {
    char *dir; /* where it is written, a temporary folder of its own */
    json_object *config;
    char *generation; /* text of generation_config.json, or NULL for none */
    draft_tensor tensors[DRAFT_MAX];
    size_t n;
    bool index;       /* write an index */
    json_object *map; /* instead of the right weight_map; NULL: the right one */
} draft;

draft *draft_open(const char *from); /* tests/data/checkpoints/tiny-a, say */
void draft_close(draft *d);

draft_tensor *draft_find(draft *d, const char *name);
void draft_remove(draft *d, const char *name);
/* A new tensor of zeros.  shape: "8,64" */
draft_tensor *draft_add(draft *d, const char *name, const char *dtype, const char *shape);
/* Another dtype and shape; keeps as many of the bytes as fit, zeros behind them. */
void draft_reshape(draft *d, const char *name, const char *dtype, const char *shape);
/* path: "text_config.head_dim"; json: the new value, or NULL to remove the field. */
void draft_set(draft *d, const char *path, const char *json);
json_object *draft_right_map(const draft *d); /* the weight_map that fits, a new object */

void draft_write(draft *d);

/* Writes and opens; the status.  *w may be NULL when failure is expected. */
calla_status draft_try(draft *d, weights **w, calla_error *err);
/* The checkpoint must be refused with a message that holds all of the words (each a string, the last NULL). */
void draft_refused(draft *d, calla_status status, ...);

#endif
