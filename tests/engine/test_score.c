/* Scoring: against recorded log-probabilities of tiny-a, in any company; rows of logits; and its errors. */
#include "unit.h"

#include <stdio.h>

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
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
    for (int p = 0; p <= (test_short() ? 6 : 8); p++) {
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

/* ---- calla_engine_score_rows ---- */

typedef struct rows {
    size_t first, next; /* positions that came: first … next - 1, without gaps or repeats */
    bool in_order;
    float *logits; /* [n][320] */
} rows;

static void keep_row(void *user, size_t at, const float *logits) {
    rows *r = user;
    if (r->first == SIZE_MAX) r->first = r->next = at;
    r->in_order = r->in_order && at == r->next;
    r->next = at + 1;
    memcpy(r->logits + at * 320, logits, 320 * sizeof *logits);
}

static rows new_rows(size_t n) {
    rows r = {.first = SIZE_MAX, .in_order = true, .logits = calloc(n * 320, sizeof(float))};
    assert_non_null(r.logits);
    return r;
}

static double logprob_of(const float *logits, int32_t id) {
    double sum = 0;
    for (int i = 0; i < 320; i++) sum += exp((double)logits[i]);
    return (double)logits[id] - log(sum);
}

/* The rows are those that calla_engine_score saw, from every position on, at every size of a step. */
static void test_rows(void **state) {
    (void)state;
    enum { N = 200 };
    static int32_t ids[N];
    random_ids(ids, N, 320, 4);
    const uint32_t batch_rows[] = {256, 7, 1};
    rows all = new_rows(N);
    for (int b = 0; b < 3; b++) {
        calla_engine *e = open_tiny(N, 1, batch_rows[b]);
        score s = new_score(e, ids, N);
        run_score(&s);
        const size_t from[] = {0, 1, 63, 64, 130, N - 1};
        for (size_t i = 0; i < sizeof from / sizeof *from; i++) {
            rows part = new_rows(N);
            assert_int_equal(calla_engine_score_rows(e, ids, N, from[i], keep_row, &part, NULL), CALLA_OK);
            assert_true(part.in_order);
            assert_int_equal(part.first, from[i]);
            assert_int_equal(part.next, N);
            if (b == 0 && i == 0) memcpy(all.logits, part.logits, N * 320 * sizeof(float));
            /* ref: the same to the last bit */
            assert_memory_equal(part.logits + from[i] * 320, all.logits + from[i] * 320, (N - from[i]) * 320 * sizeof(float));
            free(part.logits);
        }
        for (size_t t = 0; t + 1 < N; t++) assert_true(fabs(logprob_of(all.logits + t * 320, ids[t + 1]) - (double)s.logprobs[t]) < 1e-5);
        assert_memory_equal(s.last, all.logits + (N - 1) * 320, 320 * sizeof(float));
        free_score(&s);
        calla_engine_close(e);
    }
    free(all.logits);
}

typedef struct rows_job {
    calla_engine *engine;
    const int32_t *ids;
    size_t n;
    rows rows;
    calla_status status;
} rows_job;

static void *run_rows(void *user) {
    rows_job *j = user;
    j->status = calla_engine_score_rows(j->engine, j->ids, j->n, 100, keep_row, &j->rows, NULL);
    return NULL;
}

/* Four of 600 tokens in a pool of six pages: some are set aside half-way, and still each row comes once. */
static void test_rows_when_pages_run_out(void **state) {
    (void)state;
    enum { N = 600, JOBS = 4 };
    static int32_t ids[N];
    random_ids(ids, N, 320, 5);
    calla_engine *e = open_tiny_with_pages(N, JOBS, 6);
    rows_job jobs[JOBS];
    pthread_t threads[JOBS];
    for (int i = 0; i < JOBS; i++) {
        jobs[i] = (rows_job){.engine = e, .ids = ids, .n = N, .rows = new_rows(N)};
        assert_int_equal(pthread_create(&threads[i], NULL, run_rows, &jobs[i]), 0);
    }
    for (int i = 0; i < JOBS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(jobs[i].status, CALLA_OK);
        assert_true(jobs[i].rows.in_order);
        assert_int_equal(jobs[i].rows.first, 100);
        assert_int_equal(jobs[i].rows.next, N);
        assert_memory_equal(jobs[i].rows.logits, jobs[0].rows.logits, N * 320 * sizeof(float));
    }
    assert_true(e->set_aside > 0);
    for (int i = 0; i < JOBS; i++) free(jobs[i].rows.logits);
    calla_engine_close(e);
}

/* ---- prompt_logprobs ---- */

typedef struct scored_prompt {
    uint32_t n;
    bool in_front, ordered; /* of every token that was sampled; alternatives: best first */
    int32_t ids[700], best[700];
    float logprobs[700];
    transcript answer;
} scored_prompt;

static void scored_event(void *user, const calla_event *event) {
    scored_prompt *p = user;
    if (event->kind != CALLA_EVENT_PROMPT_TOKEN) {
        transcript_event(&p->answer, event);
        return;
    }
    p->in_front = !p->answer.n && !atomic_load(&p->answer.done);
    p->best[p->n] = event->n_top ? event->top[0].id : -1;
    for (uint32_t i = 1; i < event->n_top; i++) p->ordered = p->ordered && event->top[i].logprob <= event->top[i - 1].logprob;
    p->ids[p->n] = event->id;
    p->logprobs[p->n++] = event->logprob;
}

static scored_prompt *start_scored(calla_session *s, calla_generate_options o, scored_prompt *p) {
    calla_error err;
    *p = (scored_prompt){.ordered = true, .answer.session = s};
    o.prompt_logprobs = true;
    if (calla_session_generate(s, &o, scored_event, p, &err)) fail_msg("%s", err.message);
    return p;
}

/* Each of ids [n] once, as calla_engine_score has it. */
static void assert_scored(calla_engine *e, const scored_prompt *p, const int32_t *ids, size_t n) {
    score s = new_score(e, ids, n);
    run_score(&s);
    assert_int_equal(s.status, CALLA_OK);
    assert_int_equal(p->n, n);
    assert_true(p->in_front && p->ordered);
    assert_memory_equal(p->ids, ids, n * sizeof *ids);
    assert_true(isnan(p->logprobs[0]));
    assert_int_equal(p->best[0], -1);
    assert_memory_equal(p->logprobs + 1, s.logprobs, (n - 1) * sizeof(float));
    for (size_t i = 1; i < n; i++) assert_int_equal(p->best[i], s.top1[i - 1]);
    free_score(&s);
}

/* The answer is the one that comes without; a session that goes on has all its tokens scored. */
static void test_prompt_of_an_answer(void **state) {
    (void)state;
    enum { N = 200 };
    static int32_t ids[N + 20 + 5];
    static transcript plain;
    static scored_prompt p;
    random_ids(ids, N + 25, 320, 6);
    calla_engine *e = open_tiny(300, 2, 64);
    calla_generate_options o = sampling_options(20, 8);
    generate_alone(e, ids, N, &o, &plain);
    calla_session *s = open_session(e, ids, N);
    start_scored(s, o, &p);
    calla_session_wait(s);
    assert_scored(e, &p, ids, N);
    assert_same(&p.answer, &plain);
    assert_int_equal(p.answer.prompt_done, N);
    memcpy(ids + N, plain.ids, 20 * sizeof *ids);
    assert_int_equal(calla_session_append(s, ids + N + 20, 5, NULL), CALLA_OK);
    start_scored(s, o, &p);
    calla_session_wait(s);
    assert_scored(e, &p, ids, N + 25);
    assert_int_equal(p.answer.n, 20);
    calla_session_close(s);
    calla_engine_close(e);
}

static void test_nothing_but_the_prompt(void **state) {
    (void)state;
    enum { N = 130 };
    static int32_t ids[N];
    static scored_prompt p;
    random_ids(ids, N, 320, 7);
    calla_engine *e = open_tiny(N, 1, 64);
    calla_generate_options o = greedy_options(5);
    o.only_prompt = true;
    for (int full = 0; full < 2; full++) { /* with room left, and in a window that the prompt fills: nothing can be generated */
        const size_t n = full ? N : N - 10;
        calla_session *s = open_session(e, ids, n);
        o.only_prompt = !full;
        start_scored(s, o, &p);
        calla_session_wait(s);
        assert_scored(e, &p, ids, n);
        assert_int_equal(p.answer.n, 0);
        assert_int_equal(p.answer.finish, CALLA_FINISH_LENGTH);
        assert_int_equal(calla_session_tokens(s), n);
        calla_session_close(s);
    }
    static transcript silent;
    o.only_prompt = true;
    generate_alone(e, ids, N - 1, &o, &silent);
    assert_int_equal(silent.n, 0);
    assert_int_equal(silent.prompt_done, N - 1);
    assert_int_equal(silent.finish, CALLA_FINISH_LENGTH);
    calla_engine_close(e);
}

static void test_prompts_when_pages_run_out(void **state) {
    (void)state;
    enum { N = 600, JOBS = 4 };
    static int32_t ids[N];
    static scored_prompt p[JOBS];
    random_ids(ids, N, 320, 9);
    calla_engine *e = open_tiny_with_pages(N + 50, JOBS, 6);
    calla_session *s[JOBS];
    for (int i = 0; i < JOBS; i++) start_scored(s[i] = open_session(e, ids, N), sampling_options(50, 2), &p[i]);
    for (int i = 0; i < JOBS; i++) calla_session_wait(s[i]);
    assert_true(e->set_aside > 0);
    for (int i = 0; i < JOBS; i++) {
        calla_session_close(s[i]);
        assert_same(&p[i].answer, &p[0].answer);
        assert_int_equal(p[i].answer.n, 50);
        assert_scored(e, &p[i], ids, N);
    }
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
    rows none = {0};
    assert_int_equal(calla_engine_score_rows(e, ids, 10, 10, keep_row, &none, &err), CALLA_E_ARGUMENT);
    assert_int_equal(calla_engine_score_rows(e, ids, 10, 0, NULL, &none, &err), CALLA_E_ARGUMENT);
    assert_int_equal(calla_engine_score_rows(e, ids, 51, 50, keep_row, &none, &err), CALLA_E_LIMIT);
    uint64_t bytes = 0;
    assert_int_equal(calla_engine_check_weights(e, &bytes, &err), CALLA_OK);
    assert_true(bytes > 10000);
    calla_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recorded),
        cmocka_unit_test(test_in_company),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_rows_when_pages_run_out),
        cmocka_unit_test(test_prompt_of_an_answer),
        cmocka_unit_test(test_nothing_but_the_prompt),
        cmocka_unit_test(test_prompts_when_pages_run_out),
        cmocka_unit_test(test_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
