/* form_table.h: a hash table from keys that lie elsewhere to the numbers of items. */
#ifndef CALLA_TEXT_FORM_FORM_TABLE_H
#define CALLA_TEXT_FORM_FORM_TABLE_H

#include "text/form/form_work.h"

typedef struct form_table_slot {
    uint64_t hash;
    uint32_t item, used;
} form_table_slot;

typedef struct form_table {
    form_table_slot *slots; /* [size], a power of two */
    size_t size, n;
} form_table;

uint64_t form_hash(const void *bytes, size_t n);
/* The item of this hash for which same(user, item, key), or UINT32_MAX. */
uint32_t form_table_find(const form_table *t, uint64_t hash, bool (*same)(const void *user, uint32_t item, const void *key),
                         const void *user, const void *key);
void form_table_add(form_work *w, form_table *t, uint64_t hash, uint32_t item);
void form_table_free(form_table *t);

#endif
