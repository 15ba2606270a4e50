/* tokenizer_model.c: reads model.vocab and model.merges of tokenizer.json into the vocabulary and the merge table. */
#include <string.h>

#include "base/memory.h"
#include "text/tokenizer_load.h"

/* ----------------------------------------------------------- vocabulary -------------------------------------------------- */

static calla_status add_base_token(loader *l, json_source *s, const char *key, size_t n_key, int64_t id) {
    vocabulary *v = &l->t->vocabulary;
    size_t n_there;
    if (vocabulary_get(v, (int32_t)id, &n_there))
        return error_set(s->err, CALLA_E_FORMAT, "%s: model.vocab: id %lld is given to two tokens, \"%.*s\" is the second", s->file,
                         (long long)id, QUOTE(key, n_key));
    buffer_clear(&l->word);
    if (!byte_level_decode(&l->alphabet, key, n_key, &l->word)) {
        if (l->word.failed) return error_nomem(s->err, "a token");
        /* Not made of the alphabet, so no merge makes it; it decodes to its own characters, as in the reference. */
        return vocabulary_add(v, (int32_t)id, key, n_key) ? CALLA_OK : error_nomem(s->err, "the vocabulary");
    }
    if (vocabulary_index_find(&l->base, l->word.data, l->word.n) >= 0)
        return error_set(s->err, CALLA_E_FORMAT, "%s: model.vocab: \"%.*s\" stands twice", s->file, QUOTE(key, n_key));
    if (!vocabulary_add(v, (int32_t)id, l->word.data, l->word.n) || !vocabulary_index_add(&l->base, (int32_t)id))
        return error_nomem(s->err, "the vocabulary");
    return CALLA_OK;
}

calla_status load_vocabulary(void *user, json_source *s, json_token token) {
    loader *l = user;
    if (token != JSON_OBJECT_BEGIN) return json_unexpected(s, token, "model.vocab", "an object");
    buffer key = {0}; /* the reader's own text is gone once the id is read */
    calla_status status = CALLA_OK;
    while (!status && (token = json_next(&s->reader)) == JSON_KEY) {
        buffer_clear(&key);
        buffer_append(&key, s->reader.text, s->reader.n_text);
        token = json_next(&s->reader);
        const int64_t id = s->reader.integer;
        if (key.failed)
            status = error_nomem(s->err, "a token");
        else if (token == JSON_ERROR)
            status = json_unexpected(s, token, "model.vocab", "an object");
        else if (!key.n)
            status = error_set(s->err, CALLA_E_FORMAT, "%s: model.vocab: a token is empty", s->file);
        else if (token != JSON_NUMBER || !s->reader.fits_signed || id < 0 || id >= BPE_MAX_IDS)
            status = error_set(s->err, CALLA_E_FORMAT, "%s: model.vocab: the id of \"%.*s\" is not a whole number below %d", s->file,
                               QUOTE(key.data, key.n), BPE_MAX_IDS);
        else
            status = add_base_token(l, s, key.data, key.n, id);
    }
    buffer_free(&key);
    if (!status && token != JSON_OBJECT_END) return json_unexpected(s, token, "model.vocab", "an object");
    l->has_vocabulary = true;
    return status;
}

/* ------------------------------------------------------------- merges ---------------------------------------------------- */

/* The id of a merge's part or result, word [n]. */
static calla_status find_part(loader *l, json_source *s, const char *word, size_t n, int32_t *id) {
    *id = n ? vocabulary_index_find(&l->base, word, n) : -1;
    if (*id >= 0) return CALLA_OK;
    return error_set(s->err, CALLA_E_FORMAT, "%s: model.merges[%zu]: its parts and their sum must be in model.vocab", s->file, l->n_merges);
}

/* l->word holds both parts' bytes, the first n_left of them the left part's. */
static calla_status add_merge(loader *l, json_source *s, size_t n_left) {
    merge m;
    calla_status status = find_part(l, s, l->word.data, n_left, &m.left);
    if (!status) status = find_part(l, s, l->word.data + n_left, l->word.n - n_left, &m.right);
    if (!status) status = find_part(l, s, l->word.data, l->word.n, &m.result);
    if (status) return status;
    if (l->n_merges == BPE_MAX_MERGES)
        return error_set(s->err, CALLA_E_LIMIT, "%s: model.merges: calla takes at most %d", s->file, BPE_MAX_MERGES);
    if (mem_grow(&l->merges, &l->cap_merges, l->n_merges + 1, sizeof *l->merges, BPE_MAX_MERGES)) return error_nomem(s->err, "the merges");
    l->merges[l->n_merges++] = m;
    return CALLA_OK;
}

static calla_status bad_merge(loader *l, json_source *s, json_token token) {
    if (l->word.failed) return error_nomem(s->err, "a merge");
    if (token == JSON_ERROR) return json_unexpected(s, token, "model.merges", "an array");
    return error_set(s->err, CALLA_E_FORMAT, "%s: model.merges[%zu] is neither \"a b\" nor [\"a\", \"b\"]", s->file, l->n_merges);
}

/* Appends the bytes of one part to l->word.  A part outside the alphabet is bad, too: the vocabulary has it under no bytes. */
static bool append_part(loader *l, const char *text, size_t n) { return n && byte_level_decode(&l->alphabet, text, n, &l->word); }

/* "a b" */
static calla_status read_merge_string(loader *l, json_source *s) {
    const char *text = s->reader.text;
    const size_t n = s->reader.n_text;
    const char *space = memchr(text, ' ', n);
    if (!space || !append_part(l, text, (size_t)(space - text))) return bad_merge(l, s, JSON_STRING);
    const size_t n_left = l->word.n;
    if (!append_part(l, space + 1, n - 1 - (size_t)(space - text))) return bad_merge(l, s, JSON_STRING);
    return add_merge(l, s, n_left);
}

/* ["a", "b"] */
static calla_status read_merge_pair(loader *l, json_source *s) {
    size_t n_left = 0;
    for (int part = 0; part < 2; part++) {
        const json_token token = json_next(&s->reader);
        n_left = l->word.n;
        if (token != JSON_STRING || !append_part(l, s->reader.text, s->reader.n_text)) return bad_merge(l, s, token);
    }
    const json_token token = json_next(&s->reader);
    return token == JSON_ARRAY_END ? add_merge(l, s, n_left) : bad_merge(l, s, token);
}

calla_status load_merges(void *user, json_source *s, json_token token) {
    loader *l = user;
    if (token != JSON_ARRAY_BEGIN) return json_unexpected(s, token, "model.merges", "an array");
    if (!l->has_vocabulary) { /* keys sorted by name: skip it for now */
        l->late_merges = s->reader.data + s->reader.at - 1;
        if (!json_skip(&s->reader, token)) return json_unexpected(s, JSON_ERROR, "model.merges", "an array");
        l->n_late_merges = (size_t)(s->reader.data + s->reader.at - l->late_merges);
        return CALLA_OK;
    }
    while ((token = json_next(&s->reader)) != JSON_ARRAY_END) {
        buffer_clear(&l->word);
        calla_status status;
        if (token == JSON_STRING)
            status = read_merge_string(l, s);
        else if (token == JSON_ARRAY_BEGIN)
            status = read_merge_pair(l, s);
        else
            status = bad_merge(l, s, token);
        if (status) return status;
    }
    return CALLA_OK;
}

static calla_status read_late_merges(loader *l, const json_source *s) {
    json_source late = {.file = s->file, .err = s->err};
    json_reader_init(&late.reader, l->late_merges, l->n_late_merges);
    const calla_status status = load_merges(l, &late, json_next(&late.reader));
    json_reader_free(&late.reader);
    return status;
}

calla_status load_finish_model(loader *l, const json_source *s) {
    if (l->late_merges) {
        const calla_status status = read_late_merges(l, s);
        if (status) return status;
    }
    int32_t byte_ids[256];
    for (int byte = 0; byte < 256; byte++) {
        const char c = (char)byte;
        byte_ids[byte] = vocabulary_index_find(&l->base, &c, 1);
        if (byte_ids[byte] < 0)
            return error_set(s->err, CALLA_E_FORMAT, "%s: model.vocab has no token for the single byte 0x%02x", s->file, (unsigned)byte);
    }
    bpe *b = &l->t->bpe;
    if (!bpe_init(b, byte_ids, (uint32_t)l->n_merges)) return error_nomem(s->err, "the merges");
    for (size_t i = 0; i < l->n_merges; i++) {
        if (!bpe_add(b, l->merges[i].left, l->merges[i].right, l->merges[i].result))
            return error_set(s->err, CALLA_E_FORMAT, "%s: model.merges[%zu]: the pair stands twice", s->file, i);
    }
    bpe_seal(b);
    return CALLA_OK;
}
