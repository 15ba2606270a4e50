/* state.h: KV pages and recurrent slots, reference counted, and the sequences made of them.
 *
 * A sequence of n tokens holds the pages of positions 0 … n-1 and one slot, the recurrent state after token n-1.  A step is begun
 * (pages for its rows are taken, a slot to write is taken), and then committed or abandoned; until it is committed nothing that the
 * sequence holds has changed.  A page may be written only by a sequence that alone holds it; so a fork that goes on from the middle
 * of a shared page first copies that page.  The slot before the last step is kept for one rollback, until the next step begins. */
#ifndef CALLA_MODEL_STATE_H
#define CALLA_MODEL_STATE_H

#include "model/model.h"

typedef struct pool {      /* a free list with reference counts */
    uint32_t *free, *refs; /* [n] */
    uint32_t n, n_free;
} pool;

typedef struct state {
    const backend_vtable *vt;
    backend *device;
    pool pages, slots;
} state;

calla_status state_open(state *st, const backend_vtable *vt, backend *device, const backend_limits *limits, calla_error *err);
void state_close(state *st);

struct sequence {
    state *st;
    uint32_t *page; /* [pages.n] room for the whole pool, so that a step allocates nothing */
    uint32_t pages;
    uint32_t tokens, slot;               /* slot NO_SLOT: the zero state */
    uint32_t before_tokens, before_slot; /* what a rollback returns to */
    bool can_roll_back;
    uint32_t step_rows, step_pages, step_slot; /* of the step under way; step_rows 0: none */
};

sequence *sequence_create(state *st); /* NULL: out of memory */
calla_status sequence_begin(sequence *s, uint32_t rows, calla_error *err);
void sequence_commit(sequence *s);
void sequence_abandon(sequence *s);

#endif
