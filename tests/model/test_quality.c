/* test_quality.c: pocket's figures over thousands of positions against float32 transformers on the same 4-bit weights.
 *
 * usage: test_quality windows N   the first N of 16 windows of 1,024 tokens: perplexity, agreement of the best token, log-probabilities
 *        test_quality long N      the first N of 16,384 tokens of one prompt */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/arrays.h"
#include "support/model_run.h"
#include "unit.h"

enum { WINDOW = 1024, WINDOWS = 16, CHUNK = 256 };

static const char *mode;
static uint32_t amount;

/* Positions compared so far. */
typedef struct tally {
    size_t n, same;
    double sum, want_sum, difference, worst;
} tally;

/* logits [rows][V] of tokens whose successors are next [rows]. */
static void add(tally *t, const float *logits, uint32_t V, uint32_t rows, const int32_t *next, const float *want, const int32_t *top1,
                const float *margin) {
    for (uint32_t i = 0; i < rows; i++, t->n++) {
        const float *row = logits + (size_t)i * V;
        const double p = row_logprob(row, V, next[i]), d = fabs(p - (double)want[i]);
        t->same += (int32_t)row_argmax(row, V) == top1[i] || (margin && margin[i] < 1e-2f);
        t->sum += p, t->want_sum += (double)want[i], t->difference += d;
        t->worst = d <= t->worst ? t->worst : d;
    }
}

static void report(const tally *t) {
    print_message("%zu positions: perplexity %.5f (recorded %.5f), best token the same in %.3f %%, log-probabilities differ by %.1e on "
                  "average, %.1e at most\n",
                  t->n, exp(-t->sum / (double)t->n), exp(-t->want_sum / (double)t->n), 100.0 * (double)t->same / (double)t->n,
                  t->difference / (double)t->n, t->worst);
}

static void test_windows(void **state) {
    (void)state;
    size_t n;
    arrays *ref = arrays_open(test_data("model/pocket.eval.safetensors"));
    int32_t *ids = arrays_i32(ref, "ids", &n), *top1 = arrays_i32(ref, "top1_4bit", &n);
    float *want = arrays_f32(ref, "logprob_4bit", &n);
    assert_int_equal(n, WINDOW * WINDOWS);
    rig r = rig_open(test_models("pocket"), WINDOW, CHUNK, 1, CALLA_KV_F32);
    tally t = {0};
    for (uint32_t w = 0; w < amount; w++) {
        const size_t at = (size_t)w * WINDOW;
        float *logits = rig_run(&r, ids + at, WINDOW, CHUNK);
        add(&t, logits, r.w->shape.vocabulary, WINDOW, ids + at + 1, want + at, top1 + at, NULL);
        free(logits);
    }
    report(&t);
    assert_int_equal(t.n, amount * WINDOW);
    if (amount == WINDOWS) assert_true(fabs(exp(-t.sum / (double)t.n) - 1.9997) <= 1e-3); /* pocket.quality.json: ppl_4bit */
    assert_true(fabs(exp(-t.sum / (double)t.n) - exp(-t.want_sum / (double)t.n)) <= 1e-3);
    assert_true((double)t.same >= 0.999 * (double)t.n);
    assert_true(t.difference / (double)t.n <= 1e-4);
    free(ids), free(top1), free(want);
    rig_close(&r);
    arrays_close(ref);
}

static void test_long(void **state) {
    (void)state;
    size_t n, n_last, unused;
    arrays *ref = arrays_open(test_data("model/pocket.long.safetensors"));
    int32_t *ids = arrays_i32(ref, "ids", &n), *top1 = arrays_i32(ref, "top1", &unused);
    float *want = arrays_f32(ref, "token_logprobs", &unused), *margin = arrays_f32(ref, "margin", &unused),
          *last = arrays_f32(ref, "logits_last", &n_last);
    assert_true(amount <= n);
    rig r = rig_open(test_models("pocket"), amount, CHUNK, 1, CALLA_KV_F32);
    const uint32_t V = r.w->shape.vocabulary;
    float *logits = malloc((size_t)CHUNK * V * sizeof *logits);
    assert_non_null(logits);
    sequence *s = rig_sequence(&r);
    tally t = {0};
    uint32_t rows = 0;
    for (uint32_t i = 0; i < amount; i += rows) {
        rows = amount - i < CHUNK ? amount - i : CHUNK;
        rig_append(&r, s, ids + i, rows, logits, NULL);
        add(&t, logits, V, i + rows < n ? rows : rows - 1, ids + i + 1, want + i, top1 + i, margin + i);
    }
    report(&t);
    if (amount == n) assert_true(largest_difference(logits + (size_t)(rows - 1) * V, last, n_last) <= 2e-3);
    assert_int_equal(t.same, t.n); /* where the recorded margin is at least 1e-2 */
    assert_true(t.difference / (double)t.n <= 1e-4);
    assert_true(t.worst <= 2e-2);
    sequence_close(s);
    free(logits), free(ids), free(top1), free(want), free(margin), free(last);
    rig_close(&r);
    arrays_close(ref);
}

int main(int argc, char **argv) {
    if (argc != 3 || (strcmp(argv[1], "windows") && strcmp(argv[1], "long")))
        return fprintf(stderr, "usage: %s windows|long N\n", argv[0]), 2;
    mode = argv[1];
    amount = (uint32_t)atoi(argv[2]);
    const struct CMUnitTest windows[] = {cmocka_unit_test(test_windows)}, long_prompt[] = {cmocka_unit_test(test_long)};
    return strcmp(mode, "windows") ? cmocka_run_group_tests(long_prompt, NULL, NULL) : cmocka_run_group_tests(windows, NULL, NULL);
}
