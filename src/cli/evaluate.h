/* evaluate.h: teacher forcing: given tokens go through the model in windows, and each position's distribution is held against the token
 * that follows and against a recorded distribution.
 *
 * A position is a token that the model was given; what it predicts is the token after it.  Windows are `window` positions long and
 * begin `stride` tokens apart; of each only the last `stride` positions are scored, so that every scored one has at least window -
 * stride positions before it, and none is scored twice.  stride = window: windows without context, each on its own. */
#ifndef CALLA_CLI_EVALUATE_H
#define CALLA_CLI_EVALUATE_H

#include "cli/record.h"

typedef struct evaluation_task {
    const int32_t *ids; /* [n_ids] */
    size_t n_ids;
    uint32_t window, stride; /* 1 ≤ stride ≤ window */
    uint32_t positions;      /* from evaluation_positions */
    const record *against;   /* or NULL; made of the same task */
    buffer *recording;       /* or NULL: gets a row for each position */
} evaluation_task;

typedef struct evaluation {
    double nats; /* -Σ log-probability of the next token */
    /* with against */
    double reference_nats;
    uint32_t same_top1;
    double kl_mean, kl_p99, kl_largest;
} evaluation;

/* How many positions n_ids tokens give, at most `limit` (0: no limit); 0 if they end within the first window's context. */
uint32_t evaluation_positions(size_t n_ids, uint32_t window, uint32_t stride, uint32_t limit);
/* The token that scored position i predicts is ids[evaluation_target(…)]. */
size_t evaluation_target(uint32_t window, uint32_t stride, uint32_t i);

/* The engine's context must hold a window.  A logit that is not finite is CALLA_E_INTERNAL. */
calla_status evaluate(calla_engine *engine, const evaluation_task *task, evaluation *out, calla_error *err);

#endif
