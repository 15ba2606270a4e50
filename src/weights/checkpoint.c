/* checkpoint.c: see checkpoint.h. */
#include "weights/checkpoint.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "weights/index.h"

static const char index_name[] = "model.safetensors.index.json", single_name[] = "model.safetensors";

static int by_shard_name(const void *a, const void *b) {
    const shard *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static int by_tensor_name(const void *a, const void *b) {
    const tensor *const *x = a, *const *y = b;
    return strcmp((*x)->info->name, (*y)->info->name);
}

static calla_status open_shards(checkpoint *c, const char *dir, char *const *names, size_t n, calla_error *err) {
    c->shards = mem_calloc(n, sizeof *c->shards);
    if (!c->shards) return error_nomem(err, "a list of shards");
    for (c->n_shards = 0; c->n_shards < n;) {
        shard *s = &c->shards[c->n_shards++];
        if (!(s->name = mem_strdup(names[c->n_shards - 1])) || !(s->path = path_join(dir, s->name)))
            return error_nomem(err, "a shard's path");
    }
    qsort(c->shards, n, sizeof *c->shards, by_shard_name);
    for (size_t i = 0; i < n; i++) {
        shard *s = &c->shards[i];
        calla_status status = file_map_open(s->path, &s->map, err);
        if (!status) status = st_header_read(s->map.data, s->map.n, s->map.n, s->path, &s->header, err);
        if (status) return status;
        c->n += s->header.n;
    }
    return CALLA_OK;
}

static calla_status build_table(checkpoint *c, calla_error *err) {
    c->tensors = mem_array(c->n, sizeof *c->tensors);
    c->by_name = mem_array(c->n, sizeof *c->by_name);
    if (!c->tensors || !c->by_name) return error_nomem(err, "a table of tensors");
    size_t n = 0;
    for (size_t s = 0; s < c->n_shards; s++) {
        for (size_t i = 0; i < c->shards[s].header.n; i++, n++) {
            c->tensors[n] = (tensor){.info = &c->shards[s].header.tensors[i], .file = &c->shards[s]};
            c->by_name[n] = &c->tensors[n];
        }
    }
    qsort(c->by_name, c->n, sizeof *c->by_name, by_tensor_name);
    for (size_t i = 1; i < c->n; i++) {
        const tensor *a = c->by_name[i - 1], *b = c->by_name[i];
        if (!strcmp(a->info->name, b->info->name))
            return error_set(err, CALLA_E_FORMAT, "%s: tensor %s: it is also in %s", b->file->path, b->info->name, a->file->name);
    }
    return CALLA_OK;
}

/* Every entry of the index names a tensor of its shard, once, and every tensor has an entry. */
static calla_status compare_index(checkpoint *c, const shard_index *x, calla_error *err) {
    for (size_t i = 0; i < x->n; i++) {
        const char *name = x->names.data + x->entries[i].name, *file = x->shards[x->entries[i].shard];
        tensor *t = checkpoint_find(c, name);
        if (!t) return error_set(err, CALLA_E_FORMAT, "%s: tensor %s: the shard %s does not hold it", c->source, name, file);
        if (strcmp(t->file->name, file) != 0)
            return error_set(err, CALLA_E_FORMAT, "%s: tensor %s: said to be in %s, but it is in %s", c->source, name, file, t->file->name);
        if (t->used) return error_set(err, CALLA_E_FORMAT, "%s: tensor %s: weight_map lists it twice", c->source, name);
        t->used = true;
    }
    for (size_t i = 0; i < c->n; i++) {
        tensor *t = &c->tensors[i];
        if (!t->used) return error_set(err, CALLA_E_FORMAT, "%s: tensor %s: weight_map does not list it", t->file->path, t->info->name);
        t->used = false;
    }
    return CALLA_OK;
}

static calla_status open_indexed(checkpoint *c, const char *dir, calla_error *err) {
    file_map map;
    shard_index x = {0};
    calla_status status = file_map_open(c->source, &map, err);
    if (status) return status;
    status = index_parse((const char *)map.data, map.n, c->source, &x, err);
    if (!status) status = open_shards(c, dir, x.shards, x.n_shards, err);
    if (!status) status = build_table(c, err);
    if (!status) status = compare_index(c, &x, err);
    index_free(&x);
    file_map_close(&map);
    return status;
}

static calla_status open_single(checkpoint *c, const char *dir, calla_error *err) {
    char name[sizeof single_name], *names[] = {name};
    memcpy(name, single_name, sizeof name);
    calla_status status = open_shards(c, dir, names, 1, err);
    return status ? status : build_table(c, err);
}

static calla_status check_sizes(const checkpoint *c, calla_error *err) {
    for (size_t i = 0; i < c->n_shards; i++) {
        struct stat st;
        if (stat(c->shards[i].path, &st) < 0 || (uintmax_t)st.st_size != c->shards[i].map.n)
            return error_set(err, CALLA_E_IO, "%s: changed while it was being opened: wait until it is complete", c->shards[i].path);
    }
    return CALLA_OK;
}

static calla_status open_files(checkpoint *c, const char *dir, calla_error *err) {
    calla_status status;
    if (!(c->source = path_join(dir, index_name))) return error_nomem(err, "a path");
    if (access(c->source, F_OK) == 0 || errno != ENOENT) {
        status = open_indexed(c, dir, err);
    } else {
        mem_free(c->source);
        if (!(c->source = path_join(dir, single_name))) return error_nomem(err, "a path");
        if (access(c->source, F_OK) != 0)
            return error_set(err, CALLA_E_IO, "%s: holds neither %s nor %s: a model folder must hold its weights", dir, index_name,
                             single_name);
        status = open_single(c, dir, err);
    }
    return status ? status : check_sizes(c, err);
}

static void advise(const checkpoint *c, int advice) { /* a hint: failure changes nothing */
    for (size_t i = 0; i < c->n_shards; i++) {
        const file_map *m = &c->shards[i].map;
        if (m->n) madvise((void *)(uintptr_t)m->data, m->n, advice);
    }
}

calla_status checkpoint_open(const char *dir, bool whole, checkpoint **out, calla_error *err) {
    *out = NULL;
    checkpoint *c = mem_calloc(1, sizeof *c);
    if (!c) return error_nomem(err, "a checkpoint");
    calla_status status = open_files(c, dir, err);
#ifdef MADV_HUGEPAGE
    if (!status && whole) advise(c, MADV_HUGEPAGE);
#else
    (void)whole;
#endif
    if (status)
        checkpoint_close(c);
    else
        *out = c;
    return status;
}

void checkpoint_close(checkpoint *c) {
    if (!c) return;
    for (size_t i = 0; i < c->n_shards; i++) {
        st_header_free(&c->shards[i].header);
        file_map_close(&c->shards[i].map);
        mem_free(c->shards[i].name);
        mem_free(c->shards[i].path);
    }
    mem_free(c->shards);
    mem_free(c->tensors);
    mem_free((void *)c->by_name);
    mem_free(c->source);
    mem_free(c);
}

void checkpoint_begin_samples(const checkpoint *c) { advise(c, MADV_RANDOM); }

void checkpoint_end_samples(const checkpoint *c) {
    advise(c, MADV_NORMAL);
    advise(c, MADV_DONTNEED);
}

tensor *checkpoint_find(const checkpoint *c, const char *name) {
    size_t low = 0, high = c->n;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const int order = strcmp(c->by_name[middle]->info->name, name);
        if (!order) return c->by_name[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}
