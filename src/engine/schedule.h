/* schedule.h: which rows of which sequences make the next batch.  Pure arithmetic: knows no model, thread or request.
 *
 * Invariants: a sequence that decodes gets its row in every step; prompts share what is left in equal parts, and what one does not
 * need goes to the others, so a short prompt beside a long one waits for nobody; older sequences come first for KV pages, so the
 * oldest always advances and everything ends. */
#ifndef CALLA_ENGINE_SCHEDULE_H
#define CALLA_ENGINE_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct schedule_item {
    uint32_t processed; /* tokens in the model: their pages are taken */
    uint32_t pending;   /* tokens to process, at least 1 */
    uint32_t max_rows;  /* most rows of this item in one step, at least 1 */
    uint32_t rows;      /* out */
} schedule_item;

typedef enum schedule_result {
    SCHEDULE_FULL,   /* everyone got what the rows allow */
    SCHEDULE_CUT,    /* pages were missing: some got fewer rows than they could have, but at least one */
    SCHEDULE_BLOCKED /* pages were missing for even one row of some item */
} schedule_result;

/* Fills rows of items [n], oldest first.  batch_rows is at least n. */
schedule_result schedule_rows(schedule_item *items, uint32_t n, uint32_t batch_rows, uint32_t free_pages);

/* Whether all_pages hold sequences of running_tokens [n] and another of `tokens`.  Beside none it is true whatever the numbers say. */
bool schedule_fits(const uint32_t *running_tokens, uint32_t n, uint32_t tokens, uint32_t all_pages);

#endif
