/* arrays.c: see arrays.h. */
#include "support/arrays.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/float.h"
#include "base/json.h"
#include "base/map.h"

typedef struct entry {
    char *name, dtype[8];
    uint64_t begin, end;
} entry;

struct arrays {
    file_map map;
    uint64_t data;
    entry *entries;
    size_t n, cap;
};

static void die(const char *path, const char *what) {
    fprintf(stderr, "%s: %s\n", path, what);
    abort();
}

arrays *arrays_open(const char *path) {
    calla_error err;
    arrays *a = calloc(1, sizeof *a);
    if (!a || file_map_open(path, &a->map, &err) || a->map.n < 8) die(path, "cannot map");
    uint64_t header;
    memcpy(&header, a->map.data, 8);
    if (header > a->map.n - 8) die(path, "bad header length");
    a->data = 8 + header;
    json_object *root;
    if (json_parse((const char *)a->map.data + 8, header, path, &root, &err)) die(path, err.message);
    json_object_object_foreach(root, name, value) {
        if (!strcmp(name, "__metadata__")) continue;
        json_object *offsets = json_object_object_get(value, "data_offsets");
        a->entries = realloc(a->entries, (a->n + 1) * sizeof *a->entries);
        if (!a->entries) die(path, "out of memory");
        entry *e = &a->entries[a->n++];
        e->name = strdup(name);
        snprintf(e->dtype, sizeof e->dtype, "%s", json_object_get_string(json_object_object_get(value, "dtype")));
        e->begin = json_object_get_uint64(json_object_array_get_idx(offsets, 0));
        e->end = json_object_get_uint64(json_object_array_get_idx(offsets, 1));
        if (e->begin > e->end || e->end > a->map.n - a->data) die(path, "offsets outside the file");
    }
    json_object_put(root);
    return a;
}

void arrays_close(arrays *a) {
    for (size_t i = 0; i < a->n; i++) free(a->entries[i].name);
    free(a->entries);
    file_map_close(&a->map);
    free(a);
}

static const entry *find(const arrays *a, const char *name) {
    for (size_t i = 0; i < a->n; i++)
        if (!strcmp(a->entries[i].name, name)) return &a->entries[i];
    return NULL;
}

bool arrays_has(const arrays *a, const char *name) { return find(a, name) != NULL; }

static const uint8_t *get(const arrays *a, const char *name, size_t *n, size_t *size, const char **dtype) {
    const entry *e = find(a, name);
    if (!e) die(name, "no such array in the reference");
    *size = !strcmp(e->dtype, "U16") || !strcmp(e->dtype, "BF16") ? 2 : 4;
    *n = (e->end - e->begin) / *size;
    *dtype = e->dtype;
    return a->map.data + a->data + e->begin;
}

float *arrays_f32(const arrays *a, const char *name, size_t *n) {
    size_t size;
    const char *dtype;
    const uint8_t *p = get(a, name, n, &size, &dtype);
    if (strcmp(dtype, "F32")) die(name, "expected F32");
    float *out = malloc(*n * 4 + 1);
    if (!out) die(name, "out of memory");
    memcpy(out, p, *n * 4);
    return out;
}

int32_t *arrays_i32(const arrays *a, const char *name, size_t *n) {
    size_t size;
    const char *dtype;
    const uint8_t *p = get(a, name, n, &size, &dtype);
    if (strcmp(dtype, "I32") && strcmp(dtype, "U32") && strcmp(dtype, "U16")) die(name, "expected integers");
    int32_t *out = malloc(*n * 4 + 1);
    if (!out) die(name, "out of memory");
    for (size_t i = 0; i < *n; i++) out[i] = size == 2 ? load_u16(p + 2 * i) : (int32_t)load_u32(p + 4 * i);
    return out;
}

static const char *below(const char *variable, const char *relative) {
    static char path[8][1024];
    static unsigned turn;
    const char *root = getenv(variable);
    if (!root) die(variable, "this environment variable must name the folder (meson test sets it)");
    char *p = path[turn++ % 8];
    snprintf(p, sizeof path[0], "%s/%s", root, relative);
    return p;
}

const char *test_data(const char *relative) { return below("CALLA_TEST_DATA", relative); }

const char *test_models(const char *relative) { return below("CALLA_MODELS", relative); }

bool test_short(void) { return getenv("CALLA_TEST_SHORT") != NULL; }
