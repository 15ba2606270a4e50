/* test_synthetic.c: the real model's widths on four random layers (tools/make_checkpoint.py OUT --layers 4, 2.47 GB) against float32
 * transformers: prompts of 1, 8, 33, 300 and 2,049 tokens.
 *
 * usage: test_synthetic DIR.  Compared: top 64 logits and every 64th, log-sum-exp, hidden states of the last row where recorded, greedy
 * tokens up to the first margin below 1e-2; and that a state lost in the middle of a prompt is seen. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "support/arrays.h"
#include "support/model_run.h"
#include "unit.h"

enum { PROMPTS = 5, CHUNK = 512, LONGEST = 2049 + 16 };
static const double TOLERANCE = 2e-3, MARGIN = 1e-2;

static const char *dir;
static rig r;
static arrays *ref;

typedef struct hidden_check {
    const float *want; /* [layers + 1][H] */
    uint32_t last_row, layers, H;
    double worst;
} hidden_check;

static void on_layer(void *user, uint32_t layer, const float *residual, uint32_t rows) {
    hidden_check *c = user;
    if (layer >= c->layers) return; /* the last entry is after the final norm */
    double d = largest_difference(residual + (size_t)(rows - 1) * c->H, c->want + (size_t)layer * c->H, c->H);
    c->worst = d > c->worst ? d : c->worst;
}

static const char *key(int prompt, const char *what) {
    static char name[4][64];
    static unsigned turn;
    char *p = name[turn++ % 4];
    snprintf(p, sizeof name[0], "p%d.%s", prompt, what);
    return p;
}

static void feed(sequence *s, const int32_t *ids, size_t from, size_t to, float *last) {
    for (size_t i = from; i < to; i += CHUNK) rig_append(&r, s, ids + i, (uint32_t)(to - i < CHUNK ? to - i : CHUNK), NULL, last);
}

static void check_prompt(int p) {
    const uint32_t V = r.w->shape.vocabulary;
    size_t n, n_top, n_every, one, steps;
    int32_t *ids = arrays_i32(ref, key(p, "ids"), &n), *top_ids = arrays_i32(ref, key(p, "top_ids"), &n_top),
            *greedy = arrays_i32(ref, key(p, "greedy"), &steps);
    float *top = arrays_f32(ref, key(p, "top_logits"), &n_top), *every = arrays_f32(ref, key(p, "logits_every_64"), &n_every),
          *lse = arrays_f32(ref, key(p, "logsumexp"), &one), *margin = arrays_f32(ref, key(p, "margin"), &steps),
          *last = malloc(V * sizeof *last), *hidden = NULL;
    assert_non_null(last);
    hidden_check check = {.layers = r.w->shape.layers, .H = r.w->shape.hidden};
    if (arrays_has(ref, key(p, "hidden_last"))) {
        check.want = hidden = arrays_f32(ref, key(p, "hidden_last"), &one);
        assert_int_equal(one, (check.layers + 1) * check.H);
        assert_int_equal(model_set_probe(r.m, on_layer, &check, NULL), CALLA_OK);
    }
    sequence *s = rig_sequence(&r);
    feed(s, ids, 0, n, last);
    model_set_probe(r.m, NULL, NULL, NULL);
    double worst = 0, lse_difference = fabs(last[0] - row_logprob(last, V, 0) - (double)lse[0]);
    for (size_t i = 0; i < n_top; i++) worst = fmax(worst, fabs((double)last[top_ids[i]] - (double)top[i]));
    for (size_t i = 0; i < n_every; i++) worst = fmax(worst, fabs((double)last[i * 64] - (double)every[i]));
    size_t compared = 0;
    for (; compared < steps && (double)margin[compared] >= MARGIN; compared++) {
        const int32_t id = (int32_t)row_argmax(last, V);
        assert_int_equal(id, greedy[compared]);
        rig_append(&r, s, &id, 1, NULL, last);
    }
    sequence_close(s);
    print_message("p%d: %zu tokens, logits %.1e, log-sum-exp %.1e, hidden %.1e, %zu greedy tokens equal\n", p, n, worst, lse_difference,
                  check.worst, compared);
    assert_true(worst <= TOLERANCE && lse_difference <= TOLERANCE && check.worst <= TOLERANCE);
    free(ids), free(top_ids), free(greedy), free(top), free(every), free(lse), free(margin), free(last), free(hidden);
}

static void test_prompts(void **state) {
    (void)state;
    for (int p = 0; p < PROMPTS; p++) check_prompt(p);
}

static void test_a_lost_state_is_seen(void **state) {
    (void)state;
    const uint32_t V = r.w->shape.vocabulary;
    size_t n;
    int32_t *ids = arrays_i32(ref, "p3.ids", &n);
    float *whole = malloc(V * sizeof *whole), *lost = malloc(V * sizeof *lost);
    assert_true(whole && lost);
    sequence *s = rig_sequence(&r);
    feed(s, ids, 0, n, whole);
    sequence_reset(s);
    feed(s, ids, 0, 256, NULL);
    sequence_lose_state(s);
    feed(s, ids, 256, n, lost);
    double d = largest_difference(whole, lost, V);
    print_message("state lost at 256 of %zu: last logits move by %.3f\n", n, d);
    assert_true(d > 100 * TOLERANCE);
    sequence_close(s);
    free(ids), free(whole), free(lost);
}

int main(int argc, char **argv) {
    if (argc != 2) return fprintf(stderr, "usage: %s DIR\n", argv[0]), 2;
    dir = argv[1];
    ref = arrays_open(test_data("model/synthetic-4layer.reference.safetensors"));
    r = rig_open(dir, LONGEST, CHUNK, 1, CALLA_KV_F32);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_prompts), cmocka_unit_test(test_a_lost_state_is_seen)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rig_close(&r);
    arrays_close(ref);
    return failed;
}
