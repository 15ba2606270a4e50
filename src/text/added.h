/* added.h: finding added tokens (control tokens, <think>, <tool_call>, …) in raw text: the leftmost, and of those that begin there the
 * longest.  Knows texts and ids, nothing of where the text comes from. */
#ifndef CALLA_TEXT_ADDED_H
#define CALLA_TEXT_ADDED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "text/vocabulary.h"

typedef struct added_tokens {
    int32_t *ids; /* [n], by their bytes in the vocabulary once sealed */
    size_t n, cap;
    bool first[256]; /* some token begins with this byte */
} added_tokens;

void added_free(added_tokens *a);
/* id is in the vocabulary.  false: out of memory. */
bool added_append(added_tokens *a, int32_t id);
/* Sorts; after the last append, before the first find. */
void added_seal(added_tokens *a, const vocabulary *v);
/* The token with exactly these bytes, or -1. */
int32_t added_exact(const added_tokens *a, const vocabulary *v, const char *s, size_t n);
/* The first token in s [n] from `from` on: its id, with *at and *length; -1 if there is none. */
int32_t added_find(const added_tokens *a, const vocabulary *v, const char *s, size_t n, size_t from, size_t *at, size_t *length);

#endif
