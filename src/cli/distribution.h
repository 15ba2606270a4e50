/* distribution.h: what a row of logits says: its most likely tokens with their log-probabilities, and how far another row is from them.
 * Pure arithmetic in double precision over all rows of the vocabulary, padding included, as in calla_engine_score. */
#ifndef CALLA_CLI_DISTRIBUTION_H
#define CALLA_CLI_DISTRIBUTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The most tokens of a row that are kept by name; all others are one more outcome, the rest. */
#define TOP_MAX 64u

typedef struct row_top {
    uint32_t n;              /* 1 to TOP_MAX */
    int32_t ids[TOP_MAX];    /* [n] most likely first; of equal ones the lowest id first */
    float logprobs[TOP_MAX]; /* [n] natural logarithms */
    float rest_logprob;      /* of all other tokens together; -INFINITY if there are none, or their mass underflows */
    int32_t target;          /* the token that comes next in the text */
    float target_logprob;
} row_top;

/* Fills *out from logits [n] with the most likely `top` tokens (no more than n).  false if a logit is not finite. */
bool distribution_top(const float *logits, uint32_t n, int32_t target, uint32_t top, row_top *out);

/* Kullback-Leibler divergence of logits [n] from the reference, in nats, over reference->n + 1 outcomes: its tokens by name, and the
 * rest.  Joining outcomes can only lessen it, so this is a lower bound of the divergence over all tokens, near to it where the rest has
 * little mass.  Never below 0.  logits must be finite; scratch [n] is overwritten. */
double distribution_divergence(const row_top *reference, const float *logits, uint32_t n, float *scratch);

/* The value that a share of x [n] does not pass (0.99: the 99th percentile), by nearest rank; sorts x.  n at least 1. */
double distribution_percentile(float *x, size_t n, double share);

#endif
