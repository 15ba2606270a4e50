/* index.h: model.safetensors.index.json, the list of which tensor is in which shard. */
#ifndef CALLA_WEIGHTS_INDEX_H
#define CALLA_WEIGHTS_INDEX_H

#include "base/buffer.h"
#include "base/error.h"

typedef struct index_entry {
    size_t name; /* offset in names */
    uint32_t shard;
} index_entry;

typedef struct shard_index {
    index_entry *entries; /* [n], in the file's order; a name may come twice in a bad file */
    size_t n, cap;
    buffer names;  /* NUL-terminated tensor names */
    char **shards; /* [n_shards] base names without repeats, in the order of first mention */
    size_t n_shards, cap_shards;
} shard_index;

/* json [n]; `file` names it in errors.  Free it also after a failure. */
calla_status index_parse(const char *json, size_t n, const char *file, shard_index *out, calla_error *err);
void index_free(shard_index *x);

#endif
