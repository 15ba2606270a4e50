/* form_table.c: see form_table.h.  Open addressing, at most half full. */
#include "text/form/form_table.h"

#include <string.h>

#include "base/memory.h"

uint64_t form_hash(const void *bytes, size_t n) {
    const unsigned char *p = bytes;
    uint64_t h = 0x9E3779B97F4A7C15u ^ n;
    while (n) {
        uint64_t word = 0;
        const size_t take = n < 8 ? n : 8;
        memcpy(&word, p, take);
        h = (h ^ word) * 0xFF51AFD7ED558CCDu;
        h ^= h >> 32;
        p += take;
        n -= take;
    }
    return h;
}

uint32_t form_table_find(const form_table *t, uint64_t hash, bool (*same)(const void *user, uint32_t item, const void *key),
                         const void *user, const void *key) {
    if (!t->size) return UINT32_MAX;
    for (size_t i = hash & (t->size - 1);; i = (i + 1) & (t->size - 1)) {
        const form_table_slot *s = &t->slots[i];
        if (!s->used) return UINT32_MAX;
        if (s->hash == hash && same(user, s->item, key)) return s->item;
    }
}

static void place(form_table *t, form_table_slot slot) {
    size_t i = slot.hash & (t->size - 1);
    while (t->slots[i].used) i = (i + 1) & (t->size - 1);
    t->slots[i] = slot;
}

void form_table_add(form_work *w, form_table *t, uint64_t hash, uint32_t item) {
    if (form_failed(w)) return;
    if (2 * (t->n + 1) > t->size) {
        form_table larger = {.size = t->size ? 2 * t->size : 64, .n = t->n};
        larger.slots = mem_calloc(larger.size, sizeof *larger.slots);
        if (!larger.slots) {
            form_fail_nomem(w);
            return;
        }
        for (size_t i = 0; i < t->size; i++)
            if (t->slots[i].used) place(&larger, t->slots[i]);
        mem_free(t->slots);
        *t = larger;
    }
    place(t, (form_table_slot){.hash = hash, .item = item, .used = 1});
    t->n++;
}

void form_table_free(form_table *t) {
    mem_free(t->slots);
    *t = (form_table){0};
}
