/* responses_store.h: recent responses, in memory: what previous_response_id can go on from, and what can be asked for again.
 *
 * A response holds its own items, and itself as JSON, and points at the one that it went on from, so that a long conversation is kept once.  When the bound is
 * reached, the least recently used ones go, ends of conversations first: what a kept response points at is always kept.  All functions may
 * be called from any thread. */
#ifndef CALLA_SERVER_RESPONSES_STORE_H
#define CALLA_SERVER_RESPONSES_STORE_H

#include "base/buffer.h"
#include "base/error.h"

typedef struct responses_store responses_store;

/* max_bytes of everything kept, with what it takes to keep it. */
calla_status responses_store_open(size_t max_bytes, responses_store **out, calla_error *err);
void responses_store_close(responses_store *s);

/* A response as it is put. */
typedef struct stored_response {
    const char *input; /* [n_input], items of the request: the inside of a JSON array ("" or "{…},{…}") */
    size_t n_input;
    const char *whole; /* [n_whole], the response as JSON … */
    size_t n_whole;
    size_t output_at, n_output; /* … and where in it the inside of its array of output items stands */
} stored_response;

/* Keeps a response under id, behind previous (NULL: none).  What does not fit, or whose previous one is gone, is not kept. */
void responses_store_put(responses_store *s, const char *id, const char *previous, const stored_response *r);

/* Appends the inside of the JSON array of all items up to and with the output of id.  False if id is not there. */
bool responses_store_get(responses_store *s, const char *id, buffer *out);
/* The same without id's own output: what it was made from. */
bool responses_store_get_input(responses_store *s, const char *id, buffer *out);
/* Appends the response itself. */
bool responses_store_get_whole(responses_store *s, const char *id, buffer *out);
/* Appends the inside of the JSON array of its own output. */
bool responses_store_get_output(responses_store *s, const char *id, buffer *out);
/* Nobody can ask for it or go on from it any more; it is freed with the last that has gone on from it.  False if it is not there. */
bool responses_store_delete(responses_store *s, const char *id);

/* Bytes kept. */
size_t responses_store_bytes(responses_store *s);

#endif
