/* vocabulary.h: the bytes of each token id.  One arena holds them all; ids may have gaps.  Knows nothing of merges or files. */
#ifndef CALLA_TEXT_VOCABULARY_H
#define CALLA_TEXT_VOCABULARY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct vocabulary_entry {
    uint32_t start;       /* in bytes */
    uint32_t length : 30; /* 0: there is no such id */
    uint32_t added : 1;   /* matched as a whole in text, never made by merges */
    uint32_t special : 1;
} vocabulary_entry;

typedef struct vocabulary {
    char *bytes; /* [n_bytes] */
    size_t n_bytes, cap_bytes;
    vocabulary_entry *entries; /* [n_ids] */
    size_t n_ids, cap_ids;     /* n_ids: the highest id + 1 */
} vocabulary;

void vocabulary_free(vocabulary *v);
/* bytes [n], n > 0; id is not negative and has no bytes yet.  false: out of memory, or past 1 GiB of bytes. */
bool vocabulary_add(vocabulary *v, int32_t id, const char *bytes, size_t n);
/* NULL if there is no such id. */
const char *vocabulary_get(const vocabulary *v, int32_t id, size_t *n);

/* From bytes to id: a hash table over a vocabulary, which it does not own; needed while a file is read.  It holds what was put into it,
 * not all of the vocabulary. */
typedef struct vocabulary_index {
    const vocabulary *vocabulary;
    int32_t *slots; /* [1 << bits] id or -1 */
    unsigned bits;
    size_t n;
} vocabulary_index;

void vocabulary_index_free(vocabulary_index *x);
/* Puts in id, which the vocabulary holds.  false: out of memory. */
bool vocabulary_index_add(vocabulary_index *x, int32_t id);
/* The id put in with bytes [n], or -1. */
int32_t vocabulary_index_find(const vocabulary_index *x, const char *bytes, size_t n);

#endif
