/* folder.c: what a model folder and the caller's options come to: tokenizer, stop ids, sizes of the model. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"

static uint32_t add_stop_id(int32_t *ids, uint32_t n, int32_t id) {
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] == id) return n;
    ids[n] = id;
    return n + 1;
}

uint32_t folder_stop_ids(const weights *w, const calla_text *text, int32_t *out) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < w->n_stop_ids; i++) n = add_stop_id(out, n, w->stop_ids[i]);
    int32_t id = text ? tokenizer_stop_id(text->tokenizer) : -1;
    return id < 0 ? n : add_stop_id(out, n, id);
}

calla_status folder_open_text(const weights *w, calla_text **out, calla_error *err) {
    *out = NULL;
    calla_text *text = NULL;
    calla_status status = calla_text_open(w->dir, &text, err);
    if (status) return status;
    uint32_t tokens = calla_text_vocabulary(text);
    if (tokens > w->shape.vocabulary) {
        calla_text_close(text);
        return error_set(err, CALLA_E_FORMAT,
                         "%s: tokenizer.json has %u tokens, but the embedding only %u rows: the files are of different models; "
                         "download the folder again",
                         w->dir, tokens, w->shape.vocabulary);
    }
    *out = text;
    return CALLA_OK;
}

void folder_name(const char *dir, char *out, size_t size) {
    char *real = realpath(dir, NULL); /* "." and "models/pocket/.." have a name as well */
    const char *path = real ? real : dir, *end = path + strlen(path);
    while (end > path + 1 && end[-1] == '/') end--;
    const char *start = end;
    while (start > path && start[-1] != '/') start--;
    size_t n = (size_t)(end - start);
    if (n >= size) n = size - 1;
    memcpy(out, start, n);
    out[n] = 0;
    free(real);
}

static calla_status unknown_optimization(const backend_vtable *vt, const char *name, size_t n, calla_error *err) {
    char known[512] = "";
    size_t used = 0;
    for (const calla_optimization *o = vt->optimizations; o && o->name && used < sizeof known; o++)
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "", o->name);
    if (!used) snprintf(known, sizeof known, "none that can be turned off");
    return error_set(err, CALLA_E_ARGUMENT, "device %s has no optimization called '%.*s'; it has: %s", vt->name, n > 64 ? 64 : (int)n, name,
                     known);
}

/* "a,b" → the bits of a and b. */
static calla_status optimizations_off(const backend_vtable *vt, const char *names, uint32_t *bits, calla_error *err) {
    *bits = 0;
    for (const char *name = names; name; name = strchr(name, ',') ? strchr(name, ',') + 1 : NULL) {
        const size_t n = strcspn(name, ",");
        uint32_t i = 0;
        const calla_optimization *o = vt->optimizations;
        while (o && o[i].name && (strlen(o[i].name) != n || memcmp(o[i].name, name, n) != 0)) i++;
        if (!o || !o[i].name) return unknown_optimization(vt, name, n, err);
        *bits |= UINT32_C(1) << i;
    }
    return CALLA_OK;
}

calla_status folder_model_options(const calla_engine_options *options, const backend_vtable *vt, const model_shape *shape,
                                  model_options *out, uint32_t *context_tokens, calla_error *err) {
    if (!vt) vt = backend_find(options->device);
    if (!vt)
        return error_set(err, CALLA_E_ARGUMENT, "no device is called '%s'; this build has: %s", options->device ? options->device : "",
                         calla_backends());
    uint32_t context = options->context_tokens;
    if (!context) context = DEFAULT_CONTEXT < shape->max_context ? DEFAULT_CONTEXT : shape->max_context;
    if (context > shape->max_context)
        return error_set(err, CALLA_E_ARGUMENT, "a context of %u tokens: this model was made for at most %u", context, shape->max_context);
    uint32_t sequences = options->max_sequences ? options->max_sequences : DEFAULT_SEQUENCES;
    if (sequences > MAX_SEQUENCES)
        return error_set(err, CALLA_E_ARGUMENT, "%u sequences at the same time: at most %u are possible", sequences, MAX_SEQUENCES);
    uint32_t rows = options->batch_rows ? options->batch_rows : vt->batch_rows;
    if (rows < sequences || rows > CALLA_MAX_BATCH_ROWS)
        return error_set(err, CALLA_E_ARGUMENT, "batch rows %u: must be from %u (a row for each sequence) to %u", rows, sequences,
                         CALLA_MAX_BATCH_ROWS);
    if ((unsigned)options->kv > CALLA_KV_Q8)
        return error_set(err, CALLA_E_ARGUMENT, "kv %d: must be CALLA_KV_BF16, CALLA_KV_F32 or CALLA_KV_Q8", (int)options->kv);
    if (options->precision != CALLA_PRECISION_EXACT && options->precision != CALLA_PRECISION_FAST)
        return error_set(err, CALLA_E_ARGUMENT, "precision %d: must be CALLA_PRECISION_EXACT or CALLA_PRECISION_FAST",
                         (int)options->precision);
    /* One session can fill its window; a page more for each, so that the last page of a sequence is nobody else's loss.  Sessions that
     * grow beyond that take turns. */
    uint64_t kv_tokens = (uint64_t)context + (uint64_t)sequences * KV_PAGE_TOKENS;
    if (kv_tokens > UINT32_MAX / 2)
        return error_set(err, CALLA_E_ARGUMENT, "a context of %u tokens is too large; at most 2,000,000,000", context);
    uint32_t without;
    calla_status status = optimizations_off(vt, options->without, &without, err);
    if (status) return status;
    *out = (model_options){
        .backend = vt,
        .batch_rows = rows,
        .max_segments = sequences,
        .max_wanted = sequences + (SCORE_ROWS < rows ? SCORE_ROWS : rows),
        .sequences = sequences,
        .kv_tokens = (uint32_t)kv_tokens,
        .kv = options->kv,
        .threads = options->threads,
        .fast = options->precision == CALLA_PRECISION_FAST,
        .deterministic = options->deterministic,
        .polite = options->polite,
        .without = without,
        .progress = options->progress,
        .progress_user = options->progress_user,
    };
    *context_tokens = context;
    return CALLA_OK;
}
