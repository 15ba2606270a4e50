/* checkpoint.h: the files of a model folder that hold tensors, mapped, and one table of all their tensors.
 *
 * Owns the mappings and the table; knows nothing of what the tensors mean.  Either model.safetensors.index.json with its shards, or
 * model.safetensors alone.  An index must agree with the shards' headers exactly.
 *
 * Mappings are shared with the page cache and never copied.  A file that is replaced by renaming a new one over it stays intact
 * here (the old file lives until it is unmapped).  A file that is cut short in place while mapped raises SIGBUS on the next read
 * behind its new end, as for any program that maps files: nothing is caught, because no step could go on without its weights.  At
 * opening the sizes are compared once more after the table is built, so that a download still being rewritten is noticed. */
#ifndef CALLA_WEIGHTS_CHECKPOINT_H
#define CALLA_WEIGHTS_CHECKPOINT_H

#include "base/map.h"
#include "weights/safetensors.h"

enum { CHECKPOINT_MAX_SHARDS = 512 };

typedef struct shard {
    char *name; /* base name */
    char *path;
    file_map map;
    st_header header;
} shard;

typedef struct tensor {
    const st_tensor *info;
    const shard *file;
    bool used;  /* bound, or skipped on purpose */
    bool bound; /* one of the model's weights */
} tensor;

typedef struct checkpoint {
    char *source;  /* path of the index, or of the only file: what to name when a tensor is missing */
    shard *shards; /* [n_shards], sorted by name */
    size_t n_shards;
    tensor *tensors; /* [n], in file order */
    size_t n;
    tensor **by_name; /* [n], sorted by name: no hash, so no names can be chosen that make lookup slow */
} checkpoint;

/* whole: all of it will be read, so a cold file is read into huge pages where the file system has them. */
calla_status checkpoint_open(const char *dir, bool whole, checkpoint **out, calla_error *err);
void checkpoint_close(checkpoint *c);

/* Before and after looking at a few numbers of each tensor.  Begin: no reading ahead (each look would pull in 128 KB or, with a large
 * setting of the disk, megabytes).  End: back to normal, and the pages touched so far leave the process for the page cache, so that
 * they do not count as its memory; they come back on the next read. */
void checkpoint_begin_samples(const checkpoint *c);
void checkpoint_end_samples(const checkpoint *c);

tensor *checkpoint_find(const checkpoint *c, const char *name); /* or NULL */
static inline const uint8_t *tensor_data(const tensor *t) { return t->file->map.data + t->info->begin; }

#endif
