/* vectors.c: see vectors.h. */
#include "vectors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "base/map.h"
#include "base/memory.h"

static void die(const char *what) {
    fprintf(stderr, "%s\n", what);
    abort();
}

json_object *vectors_read(const char *path) {
    calla_error err;
    char *data;
    size_t n;
    json_object *root = NULL;
    if (file_read(path, 64 << 20, &data, &n, &err) || json_parse(data, n, path, &root, &err)) die(err.message);
    mem_free(data);
    return root;
}

static bool ids_equal(const char *name, const calla_ids *got, json_object *ids) {
    const size_t n = json_object_array_length(ids);
    for (size_t i = 0; i < n && i < got->n; i++) {
        const int32_t expected = json_object_get_int(json_object_array_get_idx(ids, i));
        if (got->ids[i] == expected) continue;
        fprintf(stderr, "%s: id %zu is %d, not %d\n", name, i, (int)got->ids[i], (int)expected);
        return false;
    }
    if (got->n != n) fprintf(stderr, "%s: %zu ids, not %zu\n", name, got->n, n);
    return got->n == n;
}

static bool decodes_to(const tokenizer *t, const char *name, const calla_ids *ids, json_object *decoded) {
    buffer text = {0};
    for (size_t i = 0; i < ids->n; i++) {
        size_t n = 0;
        const char *bytes = tokenizer_bytes(t, ids->ids[i], &n);
        buffer_append(&text, bytes, n);
    }
    const size_t n = (size_t)json_object_get_string_len(decoded);
    const bool same = text.n == n && (!n || memcmp(text.data, json_object_get_string(decoded), n) == 0);
    if (!same) fprintf(stderr, "%s: decodes to something else\n", name);
    buffer_free(&text);
    return same;
}

bool vector_holds(const tokenizer *t, const char *name, json_object *text, json_object *ids, json_object *decoded) {
    calla_error err;
    calla_ids got;
    if (tokenizer_encode(t, json_object_get_string(text), (size_t)json_object_get_string_len(text), (text_origin){0}, &got, &err))
        die(err.message);
    const bool holds = ids_equal(name, &got, ids) && (!decoded || decodes_to(t, name, &got, decoded));
    mem_free(got.ids);
    return holds;
}

double cpu_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

double encode_seconds(const tokenizer *t, const char *text, size_t n, int runs) {
#ifdef __GLIBC__
    /* Keep freed memory: else glibc gives some sizes back to the system and keeps others, and page faults, not the tokenizer, decide
     * which text looks slow. */
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
#endif
    double best = 1e9, spent = 0;
    for (int run = 0; run < runs && (run < 2 || spent < 1); run++) {
        calla_ids ids;
        calla_error err;
        const double start = cpu_seconds();
        if (tokenizer_encode(t, text, n, (text_origin){0}, &ids, &err)) die(err.message);
        const double seconds = cpu_seconds() - start;
        if (seconds < best) best = seconds;
        spent += seconds;
        mem_free(ids.ids);
    }
    return best;
}
