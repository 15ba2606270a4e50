/* form_cache.h: masks by what they were made of.  Bounded in bytes; any thread.  Knows nothing of programs. */
#ifndef CALLA_TEXT_FORM_CACHE_H
#define CALLA_TEXT_FORM_CACHE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* 128 bits that stand for all that a mask depends on. */
typedef struct form_hash {
    uint64_t a, b;
} form_hash;

/* A mask, whole or, where it has few bits, as the list of them. */
typedef struct form_kept {
    struct form_kept *next; /* in its slot */
    form_hash key;
    uint32_t n_ids;  /* UINT32_MAX: whole */
    uint32_t data[]; /* [n_words], or [n_ids] */
} form_kept;

enum { FORM_CACHE_SLOTS = 1024 };

/* Two generations: what is asked for moves to the younger one; when that is full, the older one is thrown away and the younger becomes
 * the older. */
typedef struct form_generation {
    form_kept *slots[FORM_CACHE_SLOTS];
    size_t bytes;
} form_generation;

typedef struct form_cache {
    pthread_mutex_t mutex;
    form_generation *young, *old;
    uint32_t n_words;
    size_t max_bytes;      /* of each generation */
    uint64_t hits, misses; /* for those who measure */
} form_cache;

bool form_cache_open(form_cache *c, uint32_t n_words, size_t max_bytes);
void form_cache_close(form_cache *c);
size_t form_cache_bytes(form_cache *c);
/* false: it is not there. */
bool form_cache_get(form_cache *c, form_hash key, uint32_t *mask /* [n_words] */);
/* Where there is no memory nothing is kept. */
void form_cache_put(form_cache *c, form_hash key, const uint32_t *mask /* [n_words] */);

#endif
