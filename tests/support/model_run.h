/* model_run.h: a checkpoint opened for a test, and prompts run through it in any cut. */
#ifndef CALLA_TESTS_MODEL_RUN_H
#define CALLA_TESTS_MODEL_RUN_H

#include "model/model.h"

typedef struct rig {
    weights *w;
    model *m;
    calla_kv kv;
} rig;

/* Opens dir for prompts of up to `tokens` tokens in chunks of up to `rows`, logits for all of them, on the
 * backend that CALLA_TEST_DEVICE names (default ref).  Ends the test on failure. */
rig rig_open(const char *dir, uint32_t tokens, uint32_t rows, uint32_t sequences, calla_kv kv);
/* The same with deterministic sums, in the precision given; all_rows: also in the last layer. */
rig rig_open_deterministic(const char *dir, uint32_t tokens, uint32_t rows, uint32_t sequences, calla_kv kv, bool fast, bool all_rows);
/* Whether the backend takes a cache of this kind and, if asked, deterministic sums; where it does not, says so with its reason. */
bool rig_is_taken(const char *dir, calla_kv kv, bool deterministic);
void rig_close(rig *r);

/* Appends ids [n] to s in one step and copies the logits of all rows to logits [n][vocabulary] (NULL: wants none but the last row's,
 * which go to last [vocabulary] if not NULL). */
void rig_append(rig *r, sequence *s, const int32_t *ids, uint32_t n, float *logits, float *last);
/* A fresh sequence fed with ids [n] in chunks of `chunk` rows; logits [n][vocabulary] and the caller's to free. */
float *rig_run(rig *r, const int32_t *ids, uint32_t n, uint32_t chunk);

sequence *rig_sequence(rig *r);

uint32_t row_argmax(const float *logits, uint32_t n);
double row_logprob(const float *logits, uint32_t n, int32_t id); /* log-softmax in double */

/* Ends the test unless logits got and want [n] are the same: bit-equal on ref; on faster backends, whose kernels sum in another order for
 * other numbers of rows, within 1e-4 of the largest one, or 1e-3 with a bf16 cache, where a last digit can fall to the other side. */
void assert_same_logits(const rig *r, const float *got, const float *want, size_t n);

/* The largest |a - b|; NaN anywhere gives infinity. */
double largest_difference(const float *a, const float *b, size_t n);

#endif
