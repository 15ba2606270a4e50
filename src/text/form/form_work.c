/* form_work.c: see form_work.h. */
#include "text/form/form_work.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"

enum { CHUNK_BYTES = 32 << 10 };

typedef struct form_chunk {
    struct form_chunk *next;
    size_t used, size; /* of bytes */
    _Alignas(16) unsigned char bytes[];
} form_chunk;

void form_work_open(form_work *w, calla_error *err) {
    *w = (form_work){.err = err, .where = "form", .path = "", .steps_left = FORM_WORK_STEPS, .bytes_left = FORM_WORK_BYTES};
}

void form_work_close(form_work *w) {
    while (w->chunks) {
        form_chunk *next = w->chunks->next;
        mem_free(w->chunks);
        w->chunks = next;
    }
}

void form_fail(form_work *w, calla_status status, const char *format, ...) {
    if (w->status) return;
    char message[sizeof w->err->message];
    va_list ap;
    va_start(ap, format);
    vsnprintf(message, sizeof message, format, ap);
    va_end(ap);
    w->status = error_set(w->err, status, "%s", message);
}

void form_fail_nomem(form_work *w) {
    if (!w->status) w->status = error_nomem(w->err, "an answer's form");
}

void form_fail_limit(form_work *w, const char *too_many) {
    const char *colon = *w->path ? ": " : "";
    if (w->keyword)
        form_fail(w, CALLA_E_LIMIT, "%s: %s%s\"%s\" needs too many %s: make it smaller or leave it out", w->where, w->path, colon,
                  w->keyword, too_many);
    else
        form_fail(w, CALLA_E_LIMIT, "%s: %s%sneeds too many %s: make it smaller", w->where, w->path, colon, too_many);
}

bool form_spend(form_work *w, uint64_t steps) {
    if (form_failed(w)) return false;
    if (w->steps_left < steps) {
        form_fail_limit(w, "steps to compile");
        return false;
    }
    w->steps_left -= steps;
    return true;
}

void *form_alloc(form_work *w, size_t bytes) {
    if (form_failed(w)) return NULL;
    const size_t rounded = bytes + 15 < bytes ? SIZE_MAX : (bytes + 15) & ~(size_t)15;
    if (rounded > w->bytes_left) {
        form_fail_limit(w, "bytes to compile");
        return NULL;
    }
    form_chunk *chunk = w->chunks;
    if (!chunk || chunk->size - chunk->used < rounded) {
        const size_t size = rounded > CHUNK_BYTES ? rounded : CHUNK_BYTES;
        chunk = mem_alloc(sizeof *chunk + size);
        if (!chunk) {
            form_fail_nomem(w);
            return NULL;
        }
        *chunk = (form_chunk){.next = w->chunks, .size = size};
        w->chunks = chunk;
    }
    w->bytes_left -= rounded;
    void *p = chunk->bytes + chunk->used;
    chunk->used += rounded;
    return p;
}

char *form_print(form_work *w, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    const int n = vsnprintf(NULL, 0, format, ap);
    va_end(ap);
    char *text = n < 0 ? NULL : form_alloc(w, (size_t)n + 1);
    if (!text) return NULL;
    va_start(ap, format);
    vsnprintf(text, (size_t)n + 1, format, ap);
    va_end(ap);
    return text;
}

bool form_grow(form_work *w, void *items, size_t *cap, size_t need, size_t size) {
    if (form_failed(w)) return false;
    if (mem_grow(items, cap, need, size, SIZE_MAX / 2 / size) == 0) return true;
    form_fail_nomem(w);
    return false;
}
