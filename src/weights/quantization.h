/* quantization.h: the quantization block of config.json: which matrix has how many bits in groups of what size. */
#ifndef CALLA_WEIGHTS_QUANTIZATION_H
#define CALLA_WEIGHTS_QUANTIZATION_H

#include "weights/fields.h"

typedef struct quant_rule {
    uint32_t bits;  /* 4 or 8; 16: not quantized */
    uint32_t group; /* 32, 64 or 128; 0 with 16 bits */
} quant_rule;

typedef struct quant_override {
    char *name; /* of the matrix, without ".weight" */
    quant_rule rule;
    bool used;
} quant_override;

typedef struct quantization {
    bool present;
    quant_rule rule;           /* of every matrix that has no override */
    quant_override *overrides; /* [n], sorted by name */
    size_t n;
} quantization;

/* Reads `quantization` or `quantization_config` of the top level; both must agree.  On failure *out is empty. */
calla_status quantization_read(fields *top, quantization *out);
void quantization_free(quantization *q);
quant_override *quantization_find(const quantization *q, const char *name); /* or NULL */

#endif
