/* Guides: what a mask allows and nothing else is sampled, in any company, on every device, together with forced tokens. */
#include "unit.h"

#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "engine/engine.h"
#include "stripes.h"
#include "support/arrays.h"

enum { VOCABULARY = 320, WORDS = VOCABULARY / 32, JOBS = 6 }; /* of tiny-a */
static transcript alone[JOBS], together[JOBS];

static const int32_t prompt[] = {1, 17, 200, 45, 45, 3, 119, 8, 250, 33};
#define PROMPT prompt, sizeof prompt / sizeof *prompt

static void test_only_what_is_allowed(void **state) {
    (void)state;
    static stripes g;
    calla_engine *e = open_tiny(512, 1, 64);
    calla_generate_options o = sampling_options(40, 3);
    o.guide = stripes_guide(&g, VOCABULARY, 7, 4);
    generate_alone(e, PROMPT, &o, &alone[0]);
    assert_int_equal(alone[0].n, 40);
    assert_guided(&g, &alone[0]);
    assert_int_equal(g.asked, 40);
    /* of what is allowed the best is taken, as the model ranks it */
    o = greedy_options(1);
    float logits[VOCABULARY];
    calla_error err;
    assert_int_equal(calla_engine_score(e, PROMPT, NULL, NULL, logits, &err), CALLA_OK);
    int32_t best = 5;
    for (int32_t id = 5; id < VOCABULARY; id += 64)
        if (logits[id] > logits[best]) best = id;
    o.guide = stripes_guide(&g, VOCABULARY, 64, 5);
    generate_alone(e, PROMPT, &o, &alone[0]);
    assert_int_equal(alone[0].ids[0], best);
    /* log-probabilities stay the model's own, over everything */
    float scores[10];
    int32_t all[11];
    memcpy(all, prompt, sizeof prompt);
    all[10] = best;
    assert_int_equal(calla_engine_score(e, all, 11, scores, NULL, NULL, &err), CALLA_OK);
    assert_true(scores[9] - alone[0].logprobs[0] < 1e-5f && alone[0].logprobs[0] - scores[9] < 1e-5f);
    /* NULL is the same as no guide */
    o = sampling_options(40, 3);
    generate_alone(e, PROMPT, &o, &alone[0]);
    o.guide = stripes_guide(&g, VOCABULARY, 7, 4);
    g.free_after = 0;
    generate_alone(e, PROMPT, &o, &alone[1]);
    assert_same(&alone[0], &alone[1]);
    assert_guided(&g, &alone[1]);
    calla_engine_close(e);
}

static void test_stop_ids(void **state) {
    (void)state;
    static stripes g;
    calla_engine *e = open_tiny(512, 1, 64);
    /* one that is allowed alone: whatever its chances, the answer ends there */
    calla_generate_options o = greedy_options(50);
    o.guide = stripes_guide(&g, VOCABULARY, VOCABULARY, TINY_STOP);
    generate_alone(e, PROMPT, &o, &alone[0]);
    assert_int_equal(alone[0].n, 1);
    assert_int_equal(alone[0].finish, CALLA_FINISH_STOP);
    assert_int_equal(g.took, 1);
    /* one that is forbidden does not come, however likely */
    o = stopping_options(50);
    o.guide = stripes_guide(&g, VOCABULARY, 5, 3); /* 3 and 4 modulo 5 */
    g.free_after = 9;
    generate_alone(e, PROMPT, &o, &alone[0]);
    assert_int_equal(alone[0].n, 10);
    assert_int_equal(alone[0].finish, CALLA_FINISH_STOP);
    assert_guided(&g, &alone[0]);
    calla_engine_close(e);
}

/* What is forced comes whatever the guide says, and the guide is told of it.  Behind it the guide alone says whether the answer may end; where
 * it says nothing, it may not. */
static void test_with_forced_tokens(void **state) {
    (void)state;
    static stripes g;
    calla_engine *e = open_tiny(512, 1, 64);
    calla_generate_options o = sampling_options(12, 4);
    o.force = (calla_force){.after = 3, .n = 2, .ids = {100, 319}};
    o.guide = stripes_guide(&g, VOCABULARY, 9, 1);
    generate_alone(e, PROMPT, &o, &alone[0]);
    assert_int_equal(alone[0].n, 12);
    assert_int_equal(g.took, 12);
    assert_memory_equal(g.ids, alone[0].ids, 12 * sizeof(int32_t));
    for (uint32_t i = 0; i < 12; i++) {
        if (i == 3 || i == 4)
            assert_int_equal(alone[0].ids[i], i == 3 ? 100 : 319);
        else
            assert_int_equal((uint32_t)alone[0].ids[i] % 9, stripes_rest_at(&g, i));
    }
    o = stopping_options(12);
    o.force = (calla_force){.n = 2, .ids = {7, 8}};
    o.guide = stripes_guide(&g, VOCABULARY, VOCABULARY, TINY_STOP); /* after two tokens: the stop id alone */
    generate_alone(e, PROMPT, &o, &alone[0]);
    assert_true(alone[0].n == 3 && alone[0].ids[2] == TINY_STOP);
    o.guide = stripes_guide(&g, VOCABULARY, VOCABULARY, TINY_STOP);
    g.free_after = 0;
    generate_alone(e, PROMPT, &o, &alone[0]);
    assert_true(alone[0].n == 4 && alone[0].ids[2] != TINY_STOP && alone[0].ids[3] == TINY_STOP);
    calla_engine_close(e);
}

/* Of six jobs every second one is guided, each by its own; with so few pages that some are set aside and processed again. */
static void run_jobs(calla_engine *e, transcript *t, bool at_once) {
    static stripes g[JOBS];
    const uint32_t lengths[JOBS] = {1, 200, 13, 65, 130, 40};
    calla_session *s[JOBS];
    int32_t ids[256];
    for (uint32_t j = 0; j < JOBS; j++) {
        random_ids(ids, lengths[j], VOCABULARY, j + 1);
        calla_generate_options o = sampling_options(200, j);
        if (j % 3 == 2) o.sampling.frequency_penalty = 0.2f;
        const calla_guide guide = stripes_guide(&g[j], VOCABULARY, 5 + j, j);
        if (j % 2) o.guide = guide;
        if (j == 3) o.force = (calla_force){.after = 20, .n = 2, .ids = {11, 12}};
        s[j] = open_session(e, ids, lengths[j]);
        start(s[j], &o, &t[j]);
        if (!at_once) calla_session_wait(s[j]);
    }
    for (uint32_t j = 0; j < JOBS; j++) {
        calla_session_wait(s[j]);
        calla_session_close(s[j]);
        assert_int_equal(t[j].n, 200);
        assert_int_equal(g[j].took, j % 2 ? 200 : 0);
        if (j % 2 && j != 3) assert_guided(&g[j], &t[j]);
    }
}

static void test_together_as_alone(void **state) {
    (void)state;
    calla_engine *e = open_tiny_with_pages(450, JOBS, 0);
    run_jobs(e, alone, false);
    run_jobs(e, together, true);
    for (int j = 0; j < JOBS; j++) assert_same(&alone[j], &together[j]);
    calla_engine_close(e);
    e = open_tiny_with_pages(450, JOBS, 6);
    run_jobs(e, together, true);
    assert_true(e->set_aside > 0);
    for (int j = 0; j < JOBS; j++) assert_same(&alone[j], &together[j]);
    calla_engine_close(e);
}

/* Answers to one prompt, each with a guide of its own. */
static void test_choices(void **state) {
    (void)state;
    static stripes g[4];
    calla_engine *e = open_tiny(512, 4, 64);
    calla_session *s[4];
    for (uint32_t j = 0; j < 4; j++) {
        calla_generate_options o = sampling_options(60, 5);
        o.sampling.choice = j;
        o.guide = stripes_guide(&g[j], VOCABULARY, 3, j % 3);
        s[j] = open_session(e, PROMPT);
        start(s[j], &o, &together[j]);
    }
    for (uint32_t j = 0; j < 4; j++) {
        calla_session_wait(s[j]);
        calla_session_close(s[j]);
        assert_int_equal(together[j].n, 60);
        assert_guided(&g[j], &together[j]);
    }
    assert_memory_not_equal(together[0].ids, together[3].ids, 60 * sizeof(int32_t));
    calla_engine_close(e);
}

/* Rows of one batch with and without a mask, greedy ones too: where a device samples itself, it must not overlook one. */
static void test_every_device(void **state) {
    (void)state;
    static stripes g[4];
    for (size_t v = 0; backend_list[v]; v++) {
        const calla_engine_options options = {.model_dir = test_data("checkpoints/tiny-a"),
                                              .device = backend_list[v]->name,
                                              .ids_only = true,
                                              .context_tokens = 256,
                                              .max_sequences = 4};
        calla_engine *e = NULL;
        calla_error err;
        calla_status status = calla_engine_open(&options, &e, &err);
        if (status == CALLA_E_UNSUPPORTED && v) continue; /* compiled in, but this machine has no such device */
        if (status) fail_msg("%s", err.message);
        calla_session *s[4];
        for (uint32_t j = 0; j < 4; j++) {
            calla_generate_options o = j < 2 ? greedy_options(30) : sampling_options(30, j);
            o.logprobs = false;
            o.n_top_logprobs = 0;
            o.ignore_stop = true;
            const calla_guide guide = stripes_guide(&g[j], VOCABULARY, 4 + j, 1);
            if (j % 2) o.guide = guide;
            s[j] = open_session(e, PROMPT);
            start(s[j], &o, &together[j]);
        }
        for (uint32_t j = 0; j < 4; j++) {
            calla_session_wait(s[j]);
            calla_session_close(s[j]);
            assert_int_equal(together[j].n, 30);
            if (j % 2) assert_guided(&g[j], &together[j]);
        }
        calla_engine_close(e);
    }
}

static const uint32_t *nothing(void *user) { return user; }
static void ignore(void *user, int32_t id) { (void)user, (void)id; }

static void test_errors(void **state) {
    (void)state;
    static uint32_t none[WORDS];
    calla_engine *e = open_tiny(512, 1, 64);
    calla_session *s = open_session(e, PROMPT);
    calla_generate_options o = greedy_options(5);
    o.guide = (calla_guide){.mask = nothing, .took = ignore, .user = none};
    generate(s, &o, &alone[0]);
    assert_int_equal(alone[0].n, 0);
    assert_int_equal(alone[0].finish, CALLA_FINISH_ERROR);
    assert_int_equal(alone[0].error.status, CALLA_E_INTERNAL);
    assert_non_null(strstr(alone[0].error.message, "guide"));
    o.guide = (calla_guide){0}; /* of the job before: forgotten */
    generate(s, &o, &alone[0]);
    assert_int_equal(alone[0].n, 5);
    o.guide.mask = nothing;
    calla_error err;
    assert_int_equal(calla_session_generate(s, &o, transcript_event, &alone[0], &err), CALLA_E_ARGUMENT);
    assert_non_null(strstr(err.message, "guide"));
    calla_session_close(s);
    calla_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_only_what_is_allowed),
        cmocka_unit_test(test_stop_ids),
        cmocka_unit_test(test_with_forced_tokens),
        cmocka_unit_test(test_together_as_alone),
        cmocka_unit_test(test_choices),
        cmocka_unit_test(test_every_device),
        cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
