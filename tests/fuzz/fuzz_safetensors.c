/* fuzz_safetensors.c: the safetensors header reader on any bytes, and the index reader on the same.
 *
 * Input: 8 bytes (little-endian) that claim the file's size, then the first bytes of the file.  What is accepted must keep the
 * promises of safetensors.h: every tensor inside the file, none overlapping, the data covered exactly. */
#include <stdlib.h>
#include <string.h>

#include "weights/index.h"
#include "weights/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check(bool holds) {
    if (!holds) abort();
}

static void check_header(const st_header *h, uint64_t file_bytes) {
    uint64_t end = h->data_begin;
    check(h->n > 0);
    for (size_t i = 0; i < h->n; i++) {
        const st_tensor *t = &h->tensors[i];
        const char *known;
        uint64_t bytes = st_dtype_bytes(t->dtype, strlen(t->dtype), &known);
        check(bytes > 0 && t->dims <= ST_MAX_DIMS && st_name_valid(t->name, strlen(t->name)));
        for (uint32_t k = 0; k < t->dims; k++) check(t->shape[k] > 0 && !__builtin_mul_overflow(bytes, t->shape[k], &bytes));
        check(bytes == t->bytes && t->begin == end);
        end += bytes;
    }
    check(end == file_bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    uint64_t file_bytes;
    calla_error err = {0};
    st_header h;
    shard_index x;
    if (n < 8) return 0;
    memcpy(&file_bytes, data, 8);
    if (st_header_read(data + 8, n - 8, file_bytes, "f", &h, &err))
        check(err.message[0] && !h.tensors);
    else
        check_header(&h, file_bytes);
    st_header_free(&h);
    if (n >= 16) {
        if (!index_parse((const char *)data + 16, n - 16, "i", &x, &err)) {
            for (size_t i = 0; i < x.n; i++) check(x.entries[i].shard < x.n_shards && x.entries[i].name < x.names.n);
        }
        index_free(&x);
    }
    return 0;
}
