/* tokenizer_added.c: reads the added tokens of tokenizer.json and of tokenizer_config.json, which has some more. */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "text/tokenizer_load.h"

static calla_status read_added_id(void *user, json_source *s, json_token token) {
    loader *l = user;
    if (token != JSON_NUMBER || !s->reader.fits_signed || s->reader.integer < 0 || s->reader.integer >= BPE_MAX_IDS)
        return json_unexpected(s, token, "an added token's id", "a whole number below 1048576");
    l->entry.id = s->reader.integer;
    return CALLA_OK;
}

static calla_status read_added_content(void *user, json_source *s, json_token token) {
    loader *l = user;
    if (token != JSON_STRING || !s->reader.n_text)
        return json_unexpected(s, token, "an added token's content", "a string with something in it");
    l->entry.content = l->contents.n;
    l->entry.n_content = s->reader.n_text;
    buffer_append(&l->contents, s->reader.text, s->reader.n_text);
    return l->contents.failed ? error_nomem(s->err, "an added token") : CALLA_OK;
}

static calla_status read_added_special(void *user, json_source *s, json_token token) {
    loader *l = user;
    if (token != JSON_TRUE && token != JSON_FALSE) return json_unexpected(s, token, "an added token's special", "true or false");
    l->entry.special = token == JSON_TRUE;
    return CALLA_OK;
}

static const json_field added_fields[] = {
    {"id", false, NULL, read_added_id},
    {"content", true, NULL, read_added_content},
    {"special", true, NULL, read_added_special},
    {"normalized", true, "false", NULL}, /* true: matched after NFC */
    {"single_word", false, "false", NULL},
    {"lstrip", false, "false", NULL},
    {"rstrip", false, "false", NULL},
};
static const json_fields added_object = {"added_tokens[]", added_fields, COUNT(added_fields), false};

static calla_status append_entry(loader *l, json_source *s) {
    if (mem_grow(&l->entries, &l->cap_entries, l->n_entries + 1, sizeof *l->entries, INT32_MAX))
        return error_nomem(s->err, "the added tokens");
    l->entries[l->n_entries++] = l->entry;
    return CALLA_OK;
}

calla_status load_added_array(void *user, json_source *s, json_token token) {
    loader *l = user;
    if (token != JSON_ARRAY_BEGIN) return json_unexpected(s, token, "added_tokens", "an array");
    while ((token = json_next(&s->reader)) != JSON_ARRAY_END) {
        l->entry = (added_entry){.id = -1};
        calla_status status = json_read_fields(&added_object, l, s, token);
        if (!status && l->entry.id < 0) status = error_set(s->err, CALLA_E_FORMAT, "%s: an added token has no id", s->file);
        if (!status) status = append_entry(l, s);
        if (status) return status;
    }
    return CALLA_OK;
}

/* {"248044": {…}, …} of tokenizer_config.json */
calla_status load_added_decoder(void *user, json_source *s, json_token token) {
    loader *l = user;
    if (token == JSON_NULL) return CALLA_OK;
    if (token != JSON_OBJECT_BEGIN) return json_unexpected(s, token, "added_tokens_decoder", "an object");
    while ((token = json_next(&s->reader)) == JSON_KEY) {
        char digits[8] = "";
        size_t n = s->reader.n_text;
        if (n < sizeof digits) memcpy(digits, s->reader.text, n);
        char *end;
        const long id = strtol(digits, &end, 10);
        if (!n || n >= sizeof digits || strspn(digits, "0123456789") != n || id >= BPE_MAX_IDS)
            return error_set(s->err, CALLA_E_FORMAT, "%s: added_tokens_decoder: \"%.*s\" is not an id below %d", s->file,
                             QUOTE(s->reader.text, s->reader.n_text), BPE_MAX_IDS);
        l->entry = (added_entry){.id = id};
        calla_status status = json_read_fields(&added_object, l, s, json_next(&s->reader));
        if (!status && l->entry.id != id)
            status = error_set(s->err, CALLA_E_FORMAT, "%s: added_tokens_decoder: %ld has another id inside", s->file, id);
        if (!status) status = append_entry(l, s);
        if (status) return status;
    }
    return token == JSON_OBJECT_END ? CALLA_OK : json_unexpected(s, token, "added_tokens_decoder", "an object");
}

/* The id that the files have given to content so far, or -1.  In the base vocabulary it would be written in the alphabet. */
static int32_t find_content(loader *l, const char *content, size_t n) {
    const int32_t id = vocabulary_index_find(&l->added, content, n);
    if (id >= 0) return id;
    buffer_clear(&l->word);
    return byte_level_decode(&l->alphabet, content, n, &l->word) ? vocabulary_index_find(&l->base, l->word.data, l->word.n) : -1;
}

/* Both files may name a token, but then they must agree; the later one says whether it is special. */
static calla_status place_entry(loader *l, const json_source *s, const added_entry *e) {
    vocabulary *v = &l->t->vocabulary;
    const char *content = l->contents.data + e->content;
    const int32_t id = (int32_t)e->id, other = find_content(l, content, e->n_content);
    size_t n_there = 0;
    const char *there = vocabulary_get(v, id, &n_there);
    const bool same = there && n_there == e->n_content && memcmp(there, content, n_there) == 0;
    if (l->word.failed) return error_nomem(s->err, "an added token");
    if ((there && !same) || (other >= 0 && other != id))
        return error_set(s->err, CALLA_E_FORMAT, "%s: added token \"%.*s\" has id %d, but %s: use the files of one model", s->file,
                         QUOTE(content, e->n_content), (int)id, there && !same ? "that is another token's" : "it has another one as well");
    if (!there && !vocabulary_add(v, id, content, e->n_content)) return error_nomem(s->err, "the vocabulary");
    if (!v->entries[id].added && (!added_append(&l->t->added, id) || !vocabulary_index_add(&l->added, id)))
        return error_nomem(s->err, "the added tokens");
    v->entries[id].added = true;
    v->entries[id].special = e->special;
    return CALLA_OK;
}

calla_status load_finish_added(loader *l, const json_source *s) {
    for (size_t i = 0; i < l->n_entries; i++) {
        const calla_status status = place_entry(l, s, &l->entries[i]);
        if (status) return status;
    }
    l->n_entries = 0;
    buffer_clear(&l->contents);
    return CALLA_OK;
}
