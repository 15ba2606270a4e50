/* compiled_forms.c: see compiled_forms.h.  A few entries in order of use under one mutex, which is not held while something is compiled.
 * What could not be compiled is kept as well: finding that out may have used up the compiler's whole budget of time. */
#include "server/compiled_forms.h"

#include <pthread.h>
#include <string.h>

#include "base/buffer.h"
#include "base/memory.h"

enum {
    MAX_FORMS = 16,
    MAX_KEY_BYTES = 4 << 20, /* longer options are compiled for each request */
    MAX_BYTES = 128 << 20    /* of all entries together, but the one used last is kept whatever it takes: some 34 MB at most */
};

typedef struct entry {
    char *key; /* [n], owned: all that the form was compiled of */
    size_t n;
    calla_form *form; /* NULL: error */
    calla_error error;
} entry;

struct compiled_forms {
    pthread_mutex_t mutex;
    entry entries[MAX_FORMS]; /* [n], the one used last first */
    size_t n;
};

calla_status compiled_forms_open(compiled_forms **out, calla_error *err) {
    compiled_forms *f = mem_calloc(1, sizeof *f);
    if (!f) return error_nomem(err, "the compiled forms");
    pthread_mutex_init(&f->mutex, NULL);
    *out = f;
    return CALLA_OK;
}

static void free_entry(entry *e) {
    mem_free(e->key);
    calla_form_release(e->form);
}

void compiled_forms_close(compiled_forms *f) {
    if (!f) return;
    for (size_t i = 0; i < f->n; i++) free_entry(&f->entries[i]);
    pthread_mutex_destroy(&f->mutex);
    mem_free(f);
}

/* Two options have the same key if and only if they are the same. */
static void write_key(const calla_form_options *o, buffer *key) {
    const char *tools = o->tools_json ? o->tools_json : "", *name = o->tool_choice == CALLA_TOOLS_NAMED ? o->tool_name : "";
    key->max = MAX_KEY_BYTES;
    buffer_printf(key, "%d %d %d %d %zu %zu %zu ", o->kind, o->strict_schema, o->tool_choice, o->one_call, o->n_source, strlen(tools),
                  strlen(name));
    if (o->n_source) buffer_append(key, o->source, o->n_source);
    buffer_append_str(key, tools);
    buffer_append_str(key, name);
}

static entry *find_locked(compiled_forms *f, const buffer *key) {
    for (size_t i = 0; i < f->n; i++) {
        if (f->entries[i].n != key->n || memcmp(f->entries[i].key, key->data, key->n) != 0) continue;
        const entry found = f->entries[i];
        memmove(f->entries + 1, f->entries, i * sizeof *f->entries);
        f->entries[0] = found;
        return f->entries;
    }
    return NULL;
}

static bool find(compiled_forms *f, const buffer *key, calla_form **out, calla_status *status, calla_error *err) {
    if (key->failed) return false;
    pthread_mutex_lock(&f->mutex);
    const entry *e = find_locked(f, key);
    if (e) {
        *out = e->form ? calla_form_share(e->form) : NULL;
        *err = e->error;
        *status = e->error.status;
    }
    pthread_mutex_unlock(&f->mutex);
    return e != NULL;
}

static size_t entry_bytes(const entry *e) { return sizeof *e + e->n + (e->form ? calla_form_bytes(e->form) : 0); }

/* Forms grow while they are in use, so that this is asked anew with each new one. */
static void limit_locked(compiled_forms *f) {
    size_t bytes = 0, kept = 0;
    while (kept < f->n && (bytes += entry_bytes(&f->entries[kept])) <= MAX_BYTES) kept++;
    if (!kept && f->n) kept = 1;
    while (f->n > kept) free_entry(&f->entries[--f->n]);
}

/* Keeps what came of the key, if there is memory for it.  Takes the key over. */
static void keep(compiled_forms *f, buffer *key, calla_form *form, const calla_error *err) {
    const size_t n = key->n;
    entry e = {.key = buffer_take(key), .n = n, .form = form ? calla_form_share(form) : NULL, .error = *err};
    if (!e.key) {
        free_entry(&e);
        return;
    }
    pthread_mutex_lock(&f->mutex);
    if (f->n == MAX_FORMS) free_entry(&f->entries[--f->n]);
    memmove(f->entries + 1, f->entries, f->n++ * sizeof *f->entries);
    f->entries[0] = e;
    limit_locked(f);
    pthread_mutex_unlock(&f->mutex);
}

bool compiled_forms_find(compiled_forms *f, const calla_form_options *options, calla_form **out, calla_status *status, calla_error *err) {
    buffer key = {0};
    write_key(options, &key);
    const bool found = find(f, &key, out, status, err);
    buffer_free(&key);
    return found;
}

calla_status compiled_forms_get(compiled_forms *f, const calla_text *text, const calla_form_options *options, calla_form **out,
                                calla_error *err) {
    buffer key = {0};
    calla_status status = CALLA_OK;
    write_key(options, &key);
    *out = NULL;
    if (!find(f, &key, out, &status, err)) {
        *err = (calla_error){0};
        status = calla_form_compile(text, options, out, err);
        /* Memory may be there the next time. */
        if (status != CALLA_E_NOMEM && status != CALLA_E_INTERNAL) keep(f, &key, *out, err);
    }
    buffer_free(&key);
    return status;
}
