/* distribution.c: see distribution.h. */
#include "cli/distribution.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Inserts where larger ones end: equal ones keep the order of their ids, since ids come in rising order. */
static void insert(row_top *t, uint32_t top, int32_t id, float logit) {
    uint32_t at = t->n < top ? t->n++ : top - 1;
    for (; at > 0 && t->logprobs[at - 1] < logit; at--) {
        t->ids[at] = t->ids[at - 1];
        t->logprobs[at] = t->logprobs[at - 1];
    }
    t->ids[at] = id;
    t->logprobs[at] = logit;
}

bool distribution_top(const float *logits, uint32_t n, int32_t target, uint32_t top, row_top *out) {
    *out = (row_top){.target = target};
    if (top > n) top = n;
    for (uint32_t i = 0; i < n; i++) {
        if (!isfinite(logits[i])) return false;
        if (out->n < top || logits[i] > out->logprobs[top - 1]) insert(out, top, (int32_t)i, logits[i]);
    }
    const double largest = (double)out->logprobs[0];
    const float last = out->logprobs[top - 1];
    const int32_t last_id = out->ids[top - 1];
    double named = 0, rest = 0; /* the rest by itself: the difference of two sums would be lost in their rounding */
    for (uint32_t i = 0; i < top; i++) named += exp((double)out->logprobs[i] - largest);
    for (uint32_t i = 0; i < n; i++)
        if (logits[i] < last || (logits[i] == last && (int32_t)i > last_id)) rest += exp((double)logits[i] - largest);
    const double log_sum = largest + log(named + rest);
    for (uint32_t i = 0; i < top; i++) out->logprobs[i] = (float)((double)out->logprobs[i] - log_sum);
    out->rest_logprob = rest > 0 ? (float)(largest + log(rest) - log_sum) : -INFINITY;
    out->target_logprob = (float)((double)logits[target] - log_sum);
    return true;
}

double distribution_divergence(const row_top *reference, const float *logits, uint32_t n, float *scratch) {
    float largest = logits[0];
    for (uint32_t i = 1; i < n; i++) largest = fmaxf(largest, logits[i]);
    memcpy(scratch, logits, n * sizeof *scratch);
    double named = 0, rest = 0, sum = 0;
    for (uint32_t i = 0; i < reference->n; i++) {
        named += exp((double)logits[reference->ids[i]] - (double)largest);
        scratch[reference->ids[i]] = -INFINITY;
    }
    for (uint32_t i = 0; i < n; i++) rest += exp((double)scratch[i] - (double)largest);
    const double log_sum = log(named + rest);
    for (uint32_t i = 0; i < reference->n; i++) {
        const double p = (double)reference->logprobs[i], q = (double)logits[reference->ids[i]] - (double)largest - log_sum;
        sum += exp(p) * (p - q);
    }
    if (isfinite(reference->rest_logprob)) {
        const double p = (double)reference->rest_logprob;
        sum += exp(p) * (p - (log(fmax(rest, DBL_MIN)) - log_sum));
    }
    return fmax(sum, 0); /* the recorded numbers are rounded: a row against itself may come to -1e-9 */
}

static int compare_floats(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

double distribution_percentile(float *x, size_t n, double share) {
    qsort(x, n, sizeof *x, compare_floats);
    size_t rank = (size_t)ceil(share * (double)n);
    if (rank < 1) rank = 1;
    return (double)x[(rank < n ? rank : n) - 1];
}
