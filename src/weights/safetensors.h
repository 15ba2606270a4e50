/* safetensors.h: the header of one safetensors file: which tensor lies where.
 *
 * Format: 8 bytes header length (little-endian), a JSON object {"name": {"dtype", "shape", "data_offsets": [begin, end]}, …,
 * "__metadata__": {…}} perhaps padded with spaces, then the data.  Offsets count from the end of the header.
 *
 * Reads only the header, so it works on any prefix that holds it; knows nothing of which tensors a model needs.  What it returns is
 * proved: every tensor lies inside the file, its bytes are its shape times its dtype, no two overlap, and together they cover the
 * data exactly (as the format demands: no holes, nothing behind the last). */
#ifndef CALLA_WEIGHTS_SAFETENSORS_H
#define CALLA_WEIGHTS_SAFETENSORS_H

#include "base/error.h"

enum {
    ST_MAX_DIMS = 8,
    ST_MAX_NAME = 256,             /* bytes of a tensor's name: real ones stay under 100 */
    ST_MAX_HEADER = 100 * 1000000, /* the limit of the reference implementation */
    ST_MAX_TENSORS = 1 << 20
};

typedef struct st_tensor {
    const char *name;            /* st_name_valid, unique in the file */
    const char *dtype;           /* static: "BF16", "U32", … */
    uint64_t shape[ST_MAX_DIMS]; /* none is 0 */
    uint32_t dims;
    uint64_t begin, bytes; /* begin: from the start of the file */
} st_tensor;

typedef struct st_header {
    st_tensor *tensors; /* [n], in the order of their data */
    size_t n;
    uint64_t data_begin; /* from the start of the file */
    char *names;         /* owner of the names */
} st_header;

/* head [n_head]: the first bytes of a file of file_bytes; `file` names it in errors.  On failure *out is empty. */
calla_status st_header_read(const uint8_t *head, uint64_t n_head, uint64_t file_bytes, const char *file, st_header *out, calla_error *err);
void st_header_free(st_header *h);

/* Whether name [n] may be a tensor's: 1 to ST_MAX_NAME bytes without control characters, so that errors can print it. */
bool st_name_valid(const char *name, size_t n);

/* Bytes of an element of a dtype, or 0 if the format has no such dtype; *known: the static spelling. */
uint32_t st_dtype_bytes(const char *name, size_t n, const char **known);

#endif
