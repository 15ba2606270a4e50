/* form_work.h: what one compilation of a form may spend, and how it fails.
 *
 * The first failure sticks, so that what builds an automaton need not look after each step: every function of the compiler does nothing
 * once status is set, loops over outside data ask form_failed().  Memory of the compilation comes from here and goes at once. */
#ifndef CALLA_TEXT_FORM_FORM_WORK_H
#define CALLA_TEXT_FORM_FORM_WORK_H

#include "base/error.h"

enum {
    FORM_WORK_STEPS = 30 << 20, /* of all automata together: below a second on a slow processor */
    FORM_WORK_BYTES = 64 << 20, /* from form_alloc */
    FORM_WORK_NODES = 1 << 20   /* of one automaton before it is deterministic */
};

typedef struct form_work {
    calla_status status; /* of the first failure */
    calla_error *err;
    const char *where;   /* what is compiled: "schema", "tools[0]" */
    const char *path;    /* the place in it: a JSON pointer "#/properties/a", or "" */
    const char *keyword; /* what costs at the moment, or NULL */
    uint64_t steps_left;
    size_t bytes_left;
    struct form_chunk *chunks;
} form_work;

void form_work_open(form_work *w, calla_error *err);
void form_work_close(form_work *w);

static inline bool form_failed(const form_work *w) { return w->status != CALLA_OK; }
/* Sets status and message unless there is one already. */
__attribute__((format(printf, 3, 4))) void form_fail(form_work *w, calla_status status, const char *format, ...);
void form_fail_nomem(form_work *w);
/* CALLA_E_LIMIT: "schema: #/properties/a: \"pattern\" needs too many …". */
void form_fail_limit(form_work *w, const char *too_many);
/* false: failed, perhaps since the steps are spent. */
bool form_spend(form_work *w, uint64_t steps);

/* Memory until form_work_close; NULL after a failure. */
void *form_alloc(form_work *w, size_t bytes);
__attribute__((format(printf, 2, 3))) char *form_print(form_work *w, const char *format, ...);
/* mem_grow, whose failure is the compilation's. */
bool form_grow(form_work *w, void *items, size_t *cap, size_t need, size_t size);

#endif
