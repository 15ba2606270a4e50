/* tokenizer_impl.h: inside of a tokenizer, for tokenizer.c, which uses it, and tokenizer_json.c, which fills it. */
#ifndef CALLA_TEXT_TOKENIZER_IMPL_H
#define CALLA_TEXT_TOKENIZER_IMPL_H

#include "text/added.h"
#include "text/bpe.h"
#include "text/pretokenize.h"
#include "text/tokenizer.h"
#include "text/vocabulary.h"

struct tokenizer {
    vocabulary vocabulary;
    bpe bpe;
    added_tokens added;
    pretokenize_rule rule;
    int32_t stop_id;
};

/* A file as bytes, and its name for messages. */
typedef struct tokenizer_file {
    const char *data; /* [n] */
    size_t n;
    const char *name;
} tokenizer_file;

/* tokenizer_open on files in memory; config NULL: there is none.  Also what the fuzzer calls. */
calla_status tokenizer_parse(const tokenizer_file *json, const tokenizer_file *config, tokenizer **out, calla_error *err);

#endif
