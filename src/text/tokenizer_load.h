/* tokenizer_load.h: what the parts of the loader share while one tokenizer is read: tokenizer_json.c (the files as a whole),
 * tokenizer_model.c (vocabulary and merges), tokenizer_added.c (added tokens).
 *
 * The files come from outside: any bytes give a tokenizer or an error that names file and rule.  The real one has 750,000 strings, so
 * nothing is allocated for one of them alone. */
#ifndef CALLA_TEXT_TOKENIZER_LOAD_H
#define CALLA_TEXT_TOKENIZER_LOAD_H

#include "text/byte_level.h"
#include "text/json_fields.h"
#include "text/tokenizer_impl.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))

/* The beginning of s [n] as two arguments of "%.*s": for messages. */
#define QUOTE(s, n) (int)json_cut(s, n, 40), s

typedef struct merge {
    int32_t left, right, result;
} merge;

/* An added token as a file gives it. */
typedef struct added_entry {
    int64_t id;     /* -1: none yet */
    size_t content; /* offset in loader.contents */
    size_t n_content;
    bool special;
} added_entry;

typedef struct loader {
    tokenizer *t;
    byte_level alphabet;

    vocabulary_index base; /* the base vocabulary, by bytes */
    bool has_vocabulary;
    buffer word;   /* bytes of one token, or of a merge's two parts */
    merge *merges; /* [n_merges] */
    size_t n_merges, cap_merges;
    const char *late_merges; /* [n_late_merges] the text of merges that stand before the vocabulary */
    size_t n_late_merges;

    vocabulary_index added; /* the added tokens, by text */
    added_entry *entries;   /* [n_entries] of one file; tokenizer.json has them before the vocabulary */
    size_t n_entries, cap_entries;
    added_entry entry; /* being read */
    buffer contents;   /* texts of entries */
    buffer stop;       /* eos_token */
} loader;

/* json_read_fn of model.vocab, model.merges, added_tokens, added_tokens_decoder; user is the loader. */
calla_status load_vocabulary(void *user, json_source *s, json_token token);
calla_status load_merges(void *user, json_source *s, json_token token);
calla_status load_added_array(void *user, json_source *s, json_token token);
calla_status load_added_decoder(void *user, json_source *s, json_token token);

/* Builds the merge table, once the model is read. */
calla_status load_finish_model(loader *l, const json_source *s);
/* Puts the entries read so far into the tokenizer and forgets them. */
calla_status load_finish_added(loader *l, const json_source *s);

#endif
