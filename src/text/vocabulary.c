/* vocabulary.c: see vocabulary.h. */
#include "text/vocabulary.h"

#include <string.h>

#include "base/memory.h"
#include "base/random.h"

enum { MAX_BYTES = 1 << 30 };

void vocabulary_free(vocabulary *v) {
    mem_free(v->bytes);
    mem_free(v->entries);
    memset(v, 0, sizeof *v);
}

bool vocabulary_add(vocabulary *v, int32_t id, const char *bytes, size_t n) {
    const size_t need = (size_t)id + 1;
    if (n >= MAX_BYTES || mem_grow(&v->bytes, &v->cap_bytes, v->n_bytes + n, 1, MAX_BYTES)) return false;
    if (mem_grow(&v->entries, &v->cap_ids, need, sizeof *v->entries, INT32_MAX)) return false;
    if (need > v->n_ids) {
        memset(v->entries + v->n_ids, 0, (need - v->n_ids) * sizeof *v->entries);
        v->n_ids = need;
    }
    memcpy(v->bytes + v->n_bytes, bytes, n);
    v->entries[id] = (vocabulary_entry){.start = (uint32_t)v->n_bytes, .length = (uint32_t)n & 0x3FFFFFFF};
    v->n_bytes += n;
    return true;
}

const char *vocabulary_get(const vocabulary *v, int32_t id, size_t *n) {
    if (id < 0 || (size_t)id >= v->n_ids || !v->entries[id].length) return NULL;
    *n = v->entries[id].length;
    return v->bytes + v->entries[id].start;
}

static uint64_t hash_bytes(const char *s, size_t n) {
    uint64_t h = n;
    for (; n >= 8; s += 8, n -= 8) {
        uint64_t w;
        memcpy(&w, s, 8);
        h = random_mix(h ^ w);
    }
    uint64_t w = 0;
    memcpy(&w, s, n);
    return random_mix(h ^ w);
}

void vocabulary_index_free(vocabulary_index *x) {
    mem_free(x->slots);
    x->slots = NULL;
    x->bits = 0;
    x->n = 0;
}

/* The slot that holds bytes [n], or the empty one where they belong. */
static size_t find_slot(const vocabulary_index *x, const char *bytes, size_t n) {
    const size_t mask = ((size_t)1 << x->bits) - 1;
    for (size_t i = hash_bytes(bytes, n) & mask;; i = (i + 1) & mask) {
        if (x->slots[i] < 0) return i;
        size_t n_there = 0;
        const char *there = vocabulary_get(x->vocabulary, x->slots[i], &n_there);
        if (n_there == n && memcmp(there, bytes, n) == 0) return i;
    }
}

static bool grow_index(vocabulary_index *x) {
    vocabulary_index larger = {.vocabulary = x->vocabulary, .bits = x->slots ? x->bits + 1 : 10, .n = x->n};
    const size_t n_slots = (size_t)1 << larger.bits;
    larger.slots = mem_array(n_slots, sizeof *larger.slots);
    if (!larger.slots) return false;
    memset(larger.slots, 0xFF, n_slots * sizeof *larger.slots);
    for (size_t i = 0; x->slots && i < (size_t)1 << x->bits; i++) {
        if (x->slots[i] < 0) continue;
        size_t n = 0;
        const char *bytes = vocabulary_get(x->vocabulary, x->slots[i], &n);
        larger.slots[find_slot(&larger, bytes, n)] = x->slots[i];
    }
    mem_free(x->slots);
    *x = larger;
    return true;
}

bool vocabulary_index_add(vocabulary_index *x, int32_t id) {
    if ((!x->slots || x->n * 2 >= (size_t)1 << x->bits) && !grow_index(x)) return false;
    size_t n = 0;
    const char *bytes = vocabulary_get(x->vocabulary, id, &n);
    x->slots[find_slot(x, bytes, n)] = id;
    x->n++;
    return true;
}

int32_t vocabulary_index_find(const vocabulary_index *x, const char *bytes, size_t n) {
    return x->slots ? x->slots[find_slot(x, bytes, n)] : -1;
}
