/* tally.h: the distinct tokens of a sequence and how often each was generated, for the penalties.  Allocates once, in tally_open. */
#ifndef CALLA_ENGINE_TALLY_H
#define CALLA_ENGINE_TALLY_H

#include "backend/backend.h"

typedef struct token_tally {
    int32_t *seen;        /* [n_seen] distinct ids of prompt and answer, in order of appearance */
    sample_count *counts; /* [n_counts] distinct generated ids with how often, in order of appearance */
    uint32_t *places;     /* [vocabulary] 0: not generated; else index into counts + 1; the upper bit: seen */
    uint32_t n_seen, n_counts, vocabulary;
} token_tally;

/* For sequences of at most max_tokens ids below vocabulary. */
calla_status tally_open(token_tally *t, uint32_t vocabulary, uint32_t max_tokens, calla_error *err);
void tally_close(token_tally *t);
void tally_add(token_tally *t, int32_t id, bool generated);

#endif
