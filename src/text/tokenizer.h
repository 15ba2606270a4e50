/* tokenizer.h: byte-level BPE of the model's tokenizer.json.  Immutable once loaded: any thread may use it. */
#ifndef CALLA_TEXT_TOKENIZER_H
#define CALLA_TEXT_TOKENIZER_H

#include "base/error.h"

typedef struct tokenizer tokenizer;

/* Reads tokenizer.json and tokenizer_config.json of a model folder. */
calla_status tokenizer_open(const char *dir, tokenizer **out, calla_error *err);
void tokenizer_close(tokenizer *t);

uint32_t tokenizer_vocabulary(const tokenizer *t); /* highest real id + 1 */

/* Where bytes of a text come from: added tokens are matched only where all their bytes come from the template.
 * runs [n_runs]: alternating lengths, the first run is template, the second content, and so on; NULL: everything is template. */
typedef struct text_origin {
    const size_t *runs;
    size_t n_runs;
} text_origin;

/* utf8 [n] → ids appended to out (calla_ids_free).  Invalid UTF-8 is CALLA_E_FORMAT naming the offset. */
calla_status tokenizer_encode(const tokenizer *t, const char *utf8, size_t n, text_origin origin, calla_ids *out, calla_error *err);

/* Bytes of one token, not necessarily whole characters; NULL if there is no such id.  Added tokens: their text. */
const char *tokenizer_bytes(const tokenizer *t, int32_t id, size_t *n);
/* An added token (control tokens, <think>, <tool_call>, …), and whether it is marked special. */
bool tokenizer_is_added(const tokenizer *t, int32_t id);
bool tokenizer_is_special(const tokenizer *t, int32_t id);
/* The id of an added token by its text, or -1. */
int32_t tokenizer_find_added(const tokenizer *t, const char *text);
/* eos_token of tokenizer_config.json, or -1. */
int32_t tokenizer_stop_id(const tokenizer *t);

#endif
