/* form_cache.c: see form_cache.h. */
#include "text/form/form_cache.h"

#include <string.h>

#include "base/memory.h"

bool form_cache_open(form_cache *c, uint32_t n_words, size_t max_bytes) {
    *c = (form_cache){.n_words = n_words, .max_bytes = max_bytes};
    c->young = mem_calloc(1, sizeof *c->young);
    c->old = mem_calloc(1, sizeof *c->old);
    if (c->young && c->old) {
        pthread_mutex_init(&c->mutex, NULL);
        return true;
    }
    mem_free(c->young);
    mem_free(c->old);
    *c = (form_cache){0};
    return false;
}

static void clear(form_generation *g) {
    for (size_t i = 0; i < FORM_CACHE_SLOTS; i++) {
        for (form_kept *k = g->slots[i], *next; k; k = next) {
            next = k->next;
            mem_free(k);
        }
        g->slots[i] = NULL;
    }
    g->bytes = 0;
}

void form_cache_close(form_cache *c) {
    if (!c->young) return;
    clear(c->young);
    clear(c->old);
    mem_free(c->young);
    mem_free(c->old);
    pthread_mutex_destroy(&c->mutex);
    *c = (form_cache){0};
}

size_t form_cache_bytes(form_cache *c) {
    pthread_mutex_lock(&c->mutex);
    const size_t bytes = sizeof *c->young + sizeof *c->old + c->young->bytes + c->old->bytes;
    pthread_mutex_unlock(&c->mutex);
    return bytes;
}

static form_kept **find(form_generation *g, form_hash key) {
    form_kept **k = &g->slots[key.a % FORM_CACHE_SLOTS];
    while (*k && ((*k)->key.a != key.a || (*k)->key.b != key.b)) k = &(*k)->next;
    return k;
}

static size_t bytes_of(const form_cache *c, uint32_t n_ids) {
    return sizeof(form_kept) + (n_ids == UINT32_MAX ? c->n_words : n_ids) * sizeof(uint32_t);
}

static void insert(form_cache *c, form_kept *k) {
    const size_t bytes = bytes_of(c, k->n_ids);
    if (c->young->bytes + bytes > c->max_bytes) {
        clear(c->old);
        form_generation *full = c->young;
        c->young = c->old;
        c->old = full;
    }
    form_kept **slot = &c->young->slots[k->key.a % FORM_CACHE_SLOTS];
    k->next = *slot;
    *slot = k;
    c->young->bytes += bytes;
}

bool form_cache_get(form_cache *c, form_hash key, uint32_t *mask) {
    pthread_mutex_lock(&c->mutex);
    const form_kept *k = *find(c->young, key);
    if (!k) {
        form_kept **old = find(c->old, key), *moved = *old;
        if (moved) {
            *old = moved->next;
            c->old->bytes -= bytes_of(c, moved->n_ids);
            insert(c, moved);
            k = moved;
        }
    }
    if (k && k->n_ids == UINT32_MAX) memcpy(mask, k->data, c->n_words * sizeof *mask);
    if (k && k->n_ids != UINT32_MAX) {
        memset(mask, 0, c->n_words * sizeof *mask);
        for (uint32_t i = 0; i < k->n_ids; i++) mask[k->data[i] / 32] |= UINT32_C(1) << k->data[i] % 32;
    }
    *(k ? &c->hits : &c->misses) += 1;
    pthread_mutex_unlock(&c->mutex);
    return k != NULL;
}

void form_cache_put(form_cache *c, form_hash key, const uint32_t *mask) {
    uint32_t n_ids = 0;
    for (uint32_t i = 0; i < c->n_words; i++) n_ids += (uint32_t)__builtin_popcount(mask[i]);
    const bool whole = n_ids >= c->n_words;
    form_kept *k = mem_alloc(bytes_of(c, whole ? UINT32_MAX : n_ids));
    if (!k) return;
    *k = (form_kept){.key = key, .n_ids = whole ? UINT32_MAX : n_ids};
    if (whole) memcpy(k->data, mask, c->n_words * sizeof *mask);
    uint32_t n = 0;
    for (uint32_t i = 0; !whole && i < c->n_words; i++)
        for (uint32_t bits = mask[i]; bits; bits &= bits - 1) k->data[n++] = i * 32 + (uint32_t)__builtin_ctz(bits);
    pthread_mutex_lock(&c->mutex);
    if (*find(c->young, key))
        mem_free(k); /* another thread was faster */
    else
        insert(c, k);
    pthread_mutex_unlock(&c->mutex);
}
