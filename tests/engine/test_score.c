/* Scoring: against recorded log-probabilities of tiny-a, in any company, and its errors. */
#include "unit.h"

#include <stdio.h>

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "support/arrays.h"
#include "transcript.h"

typedef struct score {
    calla_engine *engine;
    const int32_t *ids;
    size_t n;
    float *logprobs, *last;
    int32_t *top1;
    calla_status status;
    calla_error error;
} score;

static void *run_score(void *user) {
    score *s = user;
    s->status = calla_engine_score(s->engine, s->ids, s->n, s->logprobs, s->top1, s->last, &s->error);
    return NULL;
}

static score new_score(calla_engine *e, const int32_t *ids, size_t n) {
    score s = {.engine = e, .ids = ids, .n = n};
    s.logprobs = calloc(n, sizeof(float));
    s.top1 = calloc(n, sizeof(int32_t));
    s.last = calloc(320, sizeof(float));
    assert_true(s.logprobs && s.top1 && s.last);
    return s;
}

static void free_score(score *s) {
    free(s->logprobs);
    free(s->top1);
    free(s->last);
}

/* p6: 130 tokens, more than two chunks of 64; p8: 2,100. */
static void test_recorded(void **state) {
    (void)state;
    calla_engine *e = open_tiny(2100, 4, 100);
    arrays *file = arrays_open(test_data("checkpoints/tiny-a.reference.safetensors"));
    for (int p = 0; p <= 8; p++) {
        char name[32];
        size_t n, n_want, n_tail;
        snprintf(name, sizeof name, "p%d.ids", p);
        int32_t *ids = arrays_i32(file, name, &n);
        snprintf(name, sizeof name, "p%d.token_logprobs", p);
        float *want = arrays_f32(file, name, &n_want);
        snprintf(name, sizeof name, "p%d.logits_tail", p);
        float *tail = arrays_f32(file, name, &n_tail);
        assert_int_equal(n_want, n - 1);
        score s = new_score(e, ids, n);
        run_score(&s);
        assert_int_equal(s.status, CALLA_OK);
        for (size_t i = 0; i < n_want; i++) assert_true(fabsf(s.logprobs[i] - want[i]) < 2e-2f); /* the KV cache is bf16 */
        const float *last = tail + n_tail - 320;
        uint32_t best = 0;
        for (uint32_t i = 0; i < 320; i++) {
            assert_true(fabsf(s.last[i] - last[i]) < 2e-2f);
            if (s.last[i] > s.last[best]) best = i;
        }
        assert_int_equal(s.top1[n - 1], best);
        free_score(&s);
        free(ids);
        free(want);
        free(tail);
    }
    arrays_close(file);
    calla_engine_close(e);
}

/* Three scores and two jobs at once: the same numbers as alone, to the last bit. */
static void test_in_company(void **state) {
    (void)state;
    static transcript a, b, c;
    static int32_t ids[500];
    random_ids(ids, 500, 320, 1);
    calla_engine *e = open_tiny(600, 3, 64);
    calla_generate_options o = sampling_options(100, 3);
    generate_alone(e, ids, 100, &o, &a);
    score alone = new_score(e, ids, 500);
    run_score(&alone);
    assert_int_equal(alone.status, CALLA_OK);
    score scores[3];
    pthread_t threads[3];
    calla_session *s = open_session(e, ids, 100), *t = open_session(e, ids, 100);
    start(s, &o, &b);
    start(t, &o, &c);
    for (int i = 0; i < 3; i++) {
        scores[i] = new_score(e, ids, 500);
        assert_int_equal(pthread_create(&threads[i], NULL, run_score, &scores[i]), 0);
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(scores[i].status, CALLA_OK);
        assert_memory_equal(scores[i].logprobs, alone.logprobs, 499 * sizeof(float));
        assert_memory_equal(scores[i].top1, alone.top1, 500 * sizeof(int32_t));
        assert_memory_equal(scores[i].last, alone.last, 320 * sizeof(float));
        free_score(&scores[i]);
    }
    free_score(&alone);
    calla_session_wait(s);
    calla_session_wait(t);
    calla_session_close(s);
    calla_session_close(t);
    assert_same(&a, &b);
    assert_same(&a, &c);
    calla_engine_close(e);
}

static void test_arguments(void **state) {
    (void)state;
    calla_engine *e = open_tiny(50, 1, 8);
    int32_t ids[51] = {0};
    calla_error err;
    assert_int_equal(calla_engine_score(e, ids, 0, NULL, NULL, NULL, &err), CALLA_E_ARGUMENT);
    assert_int_equal(calla_engine_score(e, ids, 51, NULL, NULL, NULL, &err), CALLA_E_LIMIT);
    assert_non_null(strstr(err.message, "50"));
    ids[3] = 320;
    assert_int_equal(calla_engine_score(e, ids, 10, NULL, NULL, NULL, &err), CALLA_E_ARGUMENT);
    ids[3] = 0;
    assert_int_equal(calla_engine_score(e, ids, 50, NULL, NULL, NULL, &err), CALLA_OK); /* nothing wanted; a full window */
    int32_t top1 = -1;
    assert_int_equal(calla_engine_score(e, ids, 1, NULL, &top1, NULL, &err), CALLA_OK);
    assert_in_range(top1, 0, 319);
    calla_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recorded),
        cmocka_unit_test(test_in_company),
        cmocka_unit_test(test_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
