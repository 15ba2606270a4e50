/* tally.c: see tally.h. */
#include "engine/tally.h"

#include "base/memory.h"

#define SEEN 0x80000000u

calla_status tally_open(token_tally *t, uint32_t vocabulary, uint32_t max_tokens, calla_error *err) {
    uint32_t distinct = max_tokens < vocabulary ? max_tokens : vocabulary;
    *t = (token_tally){.vocabulary = vocabulary};
    t->seen = mem_array(distinct, sizeof *t->seen);
    t->counts = mem_array(distinct, sizeof *t->counts);
    t->places = mem_calloc(vocabulary, sizeof *t->places);
    if (t->seen && t->counts && t->places) return CALLA_OK;
    tally_close(t);
    return error_nomem(err, "the counts of tokens for penalties");
}

void tally_close(token_tally *t) {
    mem_free(t->seen);
    mem_free(t->counts);
    mem_free(t->places);
    *t = (token_tally){0};
}

void tally_add(token_tally *t, int32_t id, bool generated) {
    uint32_t *place = &t->places[id];
    if (!(*place & SEEN)) {
        t->seen[t->n_seen++] = id;
        *place |= SEEN;
    }
    if (!generated) return;
    uint32_t at = *place & ~SEEN;
    if (at) {
        t->counts[at - 1].count++;
        return;
    }
    t->counts[t->n_counts++] = (sample_count){id, 1};
    *place |= t->n_counts;
}
