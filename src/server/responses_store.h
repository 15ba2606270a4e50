/* responses_store.h: what previous_response_id can go on from: the items of recent responses, in memory.
 *
 * A response holds its own items and points at the one that it went on from, so that a long conversation is kept once.  When the bound is
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

/* Keeps items [n], the inside of a JSON array ("" or "{…},{…}"), under id, behind those of previous (NULL: none).  What does not fit, or
 * whose previous one is gone, is not kept. */
void responses_store_put(responses_store *s, const char *id, const char *previous, const char *items, size_t n);

/* Appends the inside of the JSON array of all items up to and with id.  False if id is not there. */
bool responses_store_get(responses_store *s, const char *id, buffer *out);

/* Bytes kept. */
size_t responses_store_bytes(responses_store *s);

#endif
