/* A device that breaks: wraps the plain backend and makes a chosen step fail.  And one that wants other steps. */
#include "unit.h"

#include <stdatomic.h>
#include <string.h>

#include "engine/engine.h"
#include "support/arrays.h"
#include "transcript.h"

static const backend_vtable *plain;
static atomic_int steps_left; /* the step after so many fails, once */
static calla_status fault;

static calla_status failing_finish(backend *b, calla_error *err) {
    calla_status status = plain->finish(b, err);
    if (status || atomic_fetch_sub(&steps_left, 1) != 0) return status;
    return error_set(err, fault, "the abacus lost a bead");
}

/* A model that has gone mad: no logit is a number. */
static const sample_result *no_sample(backend *b, uint32_t sample) {
    static const sample_result none = {.id = -1};
    return atomic_load(&steps_left) < 0 ? &none : plain->sampled(b, sample);
}

static calla_engine *open_with(const backend_vtable *vt, uint32_t batch_rows) {
    const calla_engine_options o = {.model_dir = test_data("checkpoints/tiny-a"),
                                    .ids_only = true,
                                    .context_tokens = 300,
                                    .max_sequences = 2,
                                    .batch_rows = batch_rows};
    calla_engine *e = NULL;
    calla_error err = {0};
    if (engine_open_on(&o, vt, 0, &e, &err)) fail_msg("%s", err.message);
    return e;
}

static calla_engine *open_on(const backend_vtable *vt) { return open_with(vt, 16); }

static const int32_t prompt[40] = {1, 2, 3, 4, 5};

static void test_broken_device(void **state) {
    (void)state;
    static transcript t[3];
    backend_vtable broken = *plain;
    broken.finish = failing_finish;
    fault = CALLA_E_DEVICE;
    atomic_store(&steps_left, 10);
    calla_engine *e = open_on(&broken);
    calla_session *s[3];
    calla_generate_options o = sampling_options(200, 1);
    for (int i = 0; i < 3; i++) { /* two run, one waits */
        s[i] = open_session(e, prompt, 40);
        start(s[i], &o, &t[i]);
    }
    for (int i = 0; i < 3; i++) {
        calla_session_wait(s[i]);
        assert_int_equal(atomic_load(&t[i].done), 1);
        assert_int_equal(t[i].finish, CALLA_FINISH_ERROR);
        assert_int_equal(t[i].error.status, CALLA_E_DEVICE);
        assert_non_null(strstr(t[i].error.message, "bead"));
    }
    assert_true(t[0].n > 0 && t[2].n == 0);
    calla_engine_status status;
    calla_engine_get_status(e, &status);
    assert_true(status.failed);
    assert_non_null(strstr(status.message, "bead"));
    assert_int_equal(status.running + status.queued, 0);
    calla_error err;
    assert_int_equal(calla_session_generate(s[0], &o, transcript_event, &t[0], &err), CALLA_E_DEVICE);
    assert_non_null(strstr(err.message, "bead"));
    assert_int_equal(calla_engine_score(e, prompt, 5, NULL, NULL, NULL, &err), CALLA_E_DEVICE);
    for (int i = 0; i < 3; i++) calla_session_close(s[i]);
    calla_engine_close(e);
}

static void break_soon(void *user, const calla_event *event) {
    transcript *t = user;
    transcript_event(user, event);
    if (t->n == 5 && event->kind == CALLA_EVENT_TOKEN) atomic_store(&steps_left, 3);
}

/* Another failure costs only the job that came last; the other one's answer does not show it. */
static void test_one_job_fails(void **state) {
    (void)state;
    static transcript alone, t[2];
    backend_vtable broken = *plain;
    broken.finish = failing_finish;
    fault = CALLA_E_NOMEM;
    atomic_store(&steps_left, 1000000);
    calla_engine *e = open_on(&broken);
    calla_generate_options o = sampling_options(60, 1);
    generate_alone(e, prompt, 40, &o, &alone);
    calla_session *s[2];
    for (int i = 0; i < 2; i++) s[i] = open_session(e, prompt, 40);
    calla_error err;
    start(s[0], &o, &t[0]);
    assert_int_equal(calla_session_generate(s[1], &o, break_soon, &t[1], &err), CALLA_OK);
    for (int i = 0; i < 2; i++) calla_session_wait(s[i]);
    assert_int_equal(t[1].finish, CALLA_FINISH_ERROR);
    assert_int_equal(t[1].error.status, CALLA_E_NOMEM);
    calla_engine_status status;
    calla_engine_get_status(e, &status);
    assert_false(status.failed);
    assert_same(&alone, &t[0]);
    /* the failed one goes on where it was */
    uint32_t made = t[1].n;
    generate(s[1], &o, &t[1]);
    assert_memory_equal(t[1].ids, alone.ids + made, (60 - made) * sizeof(int32_t));
    for (int i = 0; i < 2; i++) calla_session_close(s[i]);
    calla_engine_close(e);
}

static void test_no_token(void **state) {
    (void)state;
    static transcript t, alone;
    backend_vtable broken = *plain;
    broken.finish = failing_finish; /* counts the steps */
    broken.sampled = no_sample;
    fault = CALLA_OK;
    atomic_store(&steps_left, 1000000);
    calla_engine *e = open_on(&broken);
    calla_generate_options o = sampling_options(20, 1);
    generate_alone(e, prompt, 40, &o, &alone);
    atomic_store(&steps_left, 6); /* three for the prompt, then three more */
    calla_session *s = open_session(e, prompt, 40);
    generate(s, &o, &t);
    assert_int_equal(t.finish, CALLA_FINISH_ERROR);
    assert_int_equal(t.error.status, CALLA_E_INTERNAL);
    assert_int_equal(t.n, 4);
    atomic_store(&steps_left, 1000000);
    generate(s, &o, &t); /* the next one begins from the history */
    assert_memory_equal(t.ids, alone.ids + 4, 16 * sizeof(int32_t));
    calla_session_close(s);
    calla_engine_close(e);
}

/* The rows of a step are the device's, unless the caller says how many; the plan has room for them. */
static void test_rows_of_a_step(void **state) {
    (void)state;
    static transcript t;
    const uint32_t asked[3] = {16, 0, 48}, expected[3] = {16, 32, 48};
    uint64_t plan_bytes = 0;
    backend_vtable wide = *plain;
    wide.batch_rows = 32;
    for (int i = 0; i < 3; i++) {
        calla_engine *e = open_with(&wide, asked[i]);
        calla_engine_info info;
        calla_engine_get_info(e, &info);
        assert_int_equal(info.batch_rows, expected[i]);
        assert_true(info.plan_bytes > plan_bytes);
        plan_bytes = info.plan_bytes;
        calla_generate_options o = sampling_options(1, 1);
        generate_alone(e, prompt, 40, &o, &t);
        assert_int_equal(t.prompt_events, (40 + expected[i] - 1) / expected[i]);
        calla_engine_close(e);
    }
}

int main(void) {
    plain = backend_find("ref");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_broken_device),
        cmocka_unit_test(test_one_job_fails),
        cmocka_unit_test(test_no_token),
        cmocka_unit_test(test_rows_of_a_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
