/* test_ahead.c: the engine on a device that works by itself, so that each step is submitted before the one before is seen: what every job
 * says must be what it says step by step.  The device is ref behind a queue: what a step picks is handed out when it is collected.  It picks
 * in submit, or later, when it is told how. */
#include "unit.h"

#include <string.h>

#include "backend/ref/sample.h"
#include "base/memory.h"
#include "engine/engine.h"
#include "stripes.h"
#include "support/arrays.h"

enum { JOBS = 7, MOST_SAMPLES = 8, MOST_ROWS = 64, VOCABULARY = 320 };

static const backend_vtable *plain;
static backend_vtable at_once, later;
static const backend_vtable *const kinds[] = {&at_once, &later};

/* ---- the queue ---- */

static struct {
    sample_result results[MOST_SAMPLES];
} steps[2];
static const row_batch *described;
static uint32_t submitted, collected; /* in all */
static uint32_t ran_ahead;            /* submitted while another was under way */
static atomic_int collects_left;      /* the collect after so many fails */

static calla_status queue_begin(backend *b, const row_batch *batch, calla_error *err) {
    assert_true(submitted - collected < 2);
    assert_true(batch->samples <= MOST_SAMPLES);
    described = batch;
    return plain->begin(b, batch, err);
}

static calla_status queue_submit(backend *b, calla_error *err) {
    const calla_status status = plain->finish(b, err);
    if (status) return status;
    ran_ahead += submitted > collected;
    for (uint32_t i = 0; i < described->samples; i++) steps[submitted % 2].results[i] = *plain->sampled(b, i);
    submitted++;
    return CALLA_OK;
}

static calla_status queue_collect(backend *b, calla_error *err) {
    (void)b;
    assert_true(submitted > collected);
    collected++;
    return atomic_fetch_sub(&collects_left, 1) ? CALLA_OK : error_set(err, CALLA_E_DEVICE, "the abacus lost a bead");
}

/* The kind that picks later: ref gets the ids that the step before picked in place of their numbers, and no samples. */

static row_batch known;
static int32_t known_ids[MOST_ROWS];
static uint32_t picked; /* in all */
static void *scratch;

static calla_status later_begin(backend *b, const row_batch *batch, calla_error *err) {
    assert_int_equal(picked, submitted);
    assert_true(batch->rows <= MOST_ROWS);
    for (uint32_t i = 0; i < batch->rows; i++)
        known_ids[i] = batch->ids[i] < 0 ? steps[(submitted + 1) % 2].results[-1 - batch->ids[i]].id : batch->ids[i];
    known = *batch;
    known.ids = known_ids;
    known.samples = 0;
    known.last = NULL;
    const calla_status status = queue_begin(b, &known, err);
    described = batch;
    return status;
}

static calla_status later_submit(backend *b, calla_error *err) {
    const calla_status status = plain->finish(b, err);
    if (status) return status;
    ran_ahead += submitted > collected;
    submitted++;
    return CALLA_OK;
}

static void later_pick(backend *b) {
    picked++;
    assert_int_equal(picked, submitted);
    for (uint32_t i = 0; i < described->samples; i++)
        ref_sample(plain->logits(b, described->sample_of[i]), VOCABULARY, &described->sample[i], scratch,
                   &steps[(submitted - 1) % 2].results[i]);
}

static calla_status later_collect(backend *b, calla_error *err) {
    assert_true(picked > collected);
    return queue_collect(b, err);
}

static const sample_result *queue_sampled(backend *b, uint32_t sample) {
    (void)b;
    return &steps[(collected - 1) % 2].results[sample];
}

/* As on a device that leaves bias to the host. */
static bool queue_runs_ahead(const backend *b, uint32_t sample) {
    (void)b;
    return !described->sample[sample].n_bias;
}

static void reset_queue(void) {
    submitted = collected = ran_ahead = picked = 0;
    atomic_store(&collects_left, 1000000000);
}

static calla_engine *open_ahead(const backend_vtable *device, uint32_t context_tokens, uint32_t max_sequences, uint32_t pages) {
    const calla_engine_options o = {.model_dir = test_data("checkpoints/tiny-a"),
                                    .ids_only = true,
                                    .context_tokens = context_tokens,
                                    .max_sequences = max_sequences,
                                    .batch_rows = 64};
    calla_engine *e = NULL;
    calla_error err = {0};
    reset_queue();
    if (engine_open_on(&o, device, pages * KV_PAGE_TOKENS, &e, &err)) fail_msg("%s", err.message);
    return e;
}

/* ---- jobs ---- */

static transcript alone[JOBS], together[JOBS];

static stripes guide;

/* Job 3 has penalties, 4 a guide, 5 forced tokens: these a device that picks at once cannot run ahead of; 6 a bias, which none here can. */
static calla_generate_options options_of(uint32_t j, uint32_t max_tokens) {
    static const int32_t id = 17;
    static const float bias = 2;
    calla_generate_options o = sampling_options(max_tokens - j, j);
    if (j == 3) o.sampling.frequency_penalty = 0.2f;
    if (j == 4) o.guide = stripes_guide(&guide, VOCABULARY, 3, 1);
    if (j == 5) o.force = (calla_force){.after = 7, .n = 2, .ids = {41, 43}};
    if (j == 6) o.sampling.bias_ids = &id, o.sampling.bias = &bias, o.sampling.n_bias = 1;
    return o;
}

static uint32_t prompt_of(uint32_t j, int32_t *ids) {
    const uint32_t lengths[JOBS] = {1, 200, 13, 65, 40, 90, 130};
    random_ids(ids, lengths[j], VOCABULARY, j + 1);
    return lengths[j];
}

static void run_alone(uint32_t n, uint32_t max_tokens) {
    calla_engine *e = open_tiny_with_pages(700, 1, 0);
    int32_t ids[256];
    for (uint32_t j = 0; j < n; j++) {
        const calla_generate_options o = options_of(j, max_tokens);
        const uint32_t n_ids = prompt_of(j, ids);
        generate_alone(e, ids, n_ids, &o, &alone[j]);
    }
    calla_engine_close(e);
}

static void run_together(calla_engine *e, uint32_t n, uint32_t max_tokens) {
    calla_session *s[JOBS];
    int32_t ids[256];
    for (uint32_t j = 0; j < n; j++) {
        const calla_generate_options o = options_of(j, max_tokens);
        s[j] = open_session(e, ids, prompt_of(j, ids));
        start(s[j], &o, &together[j]);
    }
    for (uint32_t j = 0; j < n; j++) {
        calla_session_wait(s[j]);
        calla_session_close(s[j]);
    }
    for (uint32_t j = 0; j < n; j++) assert_same(&alone[j], &together[j]);
    if (n > 4) assert_guided(&guide, &together[4]);
}

/* Those that the device can run ahead of, which end one after the other: nearly every step is submitted ahead. */
static void test_runs_ahead(void **state) {
    (void)state;
    for (uint32_t k = 0; k < 2; k++) {
        const uint32_t n = kinds[k] == &later ? 6 : 3;
        run_alone(n, 60);
        calla_engine *e = open_ahead(kinds[k], 700, n, 0);
        run_together(e, n, 60);
        calla_engine_close(e);
        assert_int_equal(submitted, collected);
        assert_true(ran_ahead > submitted * 9 / 10);
        if (kinds[k] == &later) assert_memory_equal(&together[5].ids[7], ((const int32_t[]){41, 43}), 2 * sizeof(int32_t));
    }
}

/* Beside others that it has to wait for, with places for all and for two. */
static void test_mixed(void **state) {
    (void)state;
    run_alone(JOBS, 60);
    for (uint32_t k = 0; k < 2; k++)
        for (uint32_t places = 2; places <= JOBS; places += 5) {
            calla_engine *e = open_ahead(kinds[k], 700, places, 0);
            run_together(e, JOBS, 60);
            calla_engine_close(e);
            assert_int_equal(submitted, collected);
            assert_true(ran_ahead > 0 && ran_ahead < submitted);
        }
}

/* Jobs that are set aside for want of pages and come back. */
static void test_pages_run_out(void **state) {
    (void)state;
    for (uint32_t k = 0; k < 2; k++) {
        const uint32_t n = kinds[k] == &later ? 6 : 3;
        run_alone(n, 200);
        calla_engine *e = open_ahead(kinds[k], 450, n, 2);
        run_together(e, n, 200);
        assert_true(e->set_aside > 0 && ran_ahead > 0);
        calla_engine_close(e);
    }
}

/* What the answer ended with is found one step late: that step is dropped, and the next answer goes on from the history.  The stop id is one
 * that the model picks by itself, since a bias is not run ahead of.  A device that picks later has penalties to read, but not of that step. */
static void check_dropped(const backend_vtable *device) {
    static transcript first, t;
    int32_t ids[40];
    random_ids(ids, 40, VOCABULARY, 9);
    const calla_generate_options greedy = greedy_options(12);
    calla_generate_options o = sampling_options(12, 5);
    if (device == &later) o.sampling.repetition_penalty = 1.2f;
    calla_engine *e = open_tiny_with_pages(700, 1, 0);
    generate_alone(e, ids, 40, &o, &alone[0]);
    calla_session *s = open_session(e, ids, 40);
    generate(s, &o, &first);
    generate(s, &greedy, &alone[1]);
    calla_session_close(s);
    calla_engine_close(e);

    e = open_ahead(device, 700, 1, 0);
    e->stop_ids[0] = alone[0].ids[4];
    e->n_stop_ids = 1;
    uint32_t until = 0; /* its first place in the answer */
    while (alone[0].ids[until] != e->stop_ids[0]) until++;
    o.ignore_stop = false;
    s = open_session(e, ids, 40);
    generate(s, &o, &t);
    assert_int_equal(t.finish, CALLA_FINISH_STOP);
    assert_int_equal(t.n, until + 1);
    assert_memory_equal(t.ids, alone[0].ids, t.n * sizeof *t.ids);
    assert_int_equal(t.after_done, 0);
    o.ignore_stop = true; /* goes on where the stop was */
    o.max_tokens = 12 - t.n;
    const uint32_t made = t.n;
    generate(s, &o, &t);
    assert_int_equal(t.prompt_tokens, 1);
    assert_memory_equal(t.ids, alone[0].ids + made, t.n * sizeof *t.ids);
    generate(s, &greedy, &t);
    const uint32_t both = t.n < alone[1].n ? t.n : alone[1].n; /* their stop ids differ */
    assert_true(both > 0);
    assert_memory_equal(t.logprobs, alone[1].logprobs, both * sizeof *t.logprobs);
    calla_session_close(s);
    calla_engine_close(e);
    assert_int_equal(submitted, collected);
}

static void test_dropped(void **state) {
    (void)state;
    for (uint32_t k = 0; k < 2; k++) check_dropped(kinds[k]);
}

/* One is cancelled, by its own event or from outside, while steps with its rows are under way: the other does not show it. */
static void check_cancel(const backend_vtable *device) {
    run_alone(2, 60);
    calla_engine *e = open_ahead(device, 700, 2, 0);
    int32_t ids[256];
    calla_generate_options o = options_of(0, 60);
    calla_session *s = open_session(e, ids, prompt_of(0, ids)), *other = open_session(e, ids, prompt_of(1, ids));
    start(s, &o, &together[0]);
    o = options_of(1, 60);
    assert_int_equal(prompt_of(1, ids), 200);
    memset(&together[1], 0, sizeof together[1]);
    start(other, &o, &together[1]);
    calla_session_cancel(other);
    calla_session_wait(other);
    assert_int_equal(together[1].finish, CALLA_FINISH_CANCELLED);
    for (int i = 0; i < 3; i++) { /* again and again in the same place */
        calla_error err;
        memset(&together[1], 0, sizeof together[1]);
        together[1].session = other;
        together[1].cancel_after = 3;
        if (calla_session_generate(other, &o, transcript_event, &together[1], &err)) fail_msg("%s", err.message);
        calla_session_wait(other);
        assert_int_equal(together[1].n, 3);
        assert_int_equal(together[1].finish, CALLA_FINISH_CANCELLED);
        assert_memory_equal(together[1].ids, alone[1].ids + 3 * i, 3 * sizeof(int32_t));
        assert_int_equal(together[1].after_done, 0);
    }
    calla_session_wait(s);
    assert_same(&alone[0], &together[0]);
    calla_session_close(other);
    calla_session_close(s);
    calla_engine_close(e);
    assert_int_equal(submitted, collected);
}

static void test_cancel(void **state) {
    (void)state;
    for (uint32_t k = 0; k < 2; k++) check_cancel(kinds[k]);
}

/* A device that fails with two steps under way fails all that run, once, and the engine closes. */
static void check_broken(const backend_vtable *device) {
    calla_engine *e = open_ahead(device, 700, 3, 0);
    calla_session *s[3];
    int32_t ids[256];
    atomic_store(&collects_left, 20);
    for (uint32_t j = 0; j < 3; j++) {
        const calla_generate_options o = options_of(j, 60);
        s[j] = open_session(e, ids, prompt_of(j, ids));
        together[j].cancel_after = 0;
        start(s[j], &o, &together[j]);
    }
    for (uint32_t j = 0; j < 3; j++) {
        calla_session_wait(s[j]);
        assert_int_equal(atomic_load(&together[j].done), 1);
        assert_int_equal(together[j].finish, CALLA_FINISH_ERROR);
        assert_non_null(strstr(together[j].error.message, "bead"));
        calla_session_close(s[j]);
    }
    calla_engine_close(e);
}

static void test_broken_device(void **state) {
    (void)state;
    for (uint32_t k = 0; k < 2; k++) check_broken(kinds[k]);
}

int main(void) {
    plain = backend_find("ref");
    at_once = *plain;
    at_once.begin = queue_begin;
    at_once.submit = queue_submit;
    at_once.collect = queue_collect;
    at_once.sampled = queue_sampled;
    at_once.runs_ahead = queue_runs_ahead;
    later = at_once;
    later.begin = later_begin;
    later.submit = later_submit;
    later.pick = later_pick;
    later.collect = later_collect;
    scratch = mem_alloc(ref_sample_scratch_bytes(VOCABULARY));
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_runs_ahead),    cmocka_unit_test(test_mixed),
                                       cmocka_unit_test(test_pages_run_out), cmocka_unit_test(test_dropped),
                                       cmocka_unit_test(test_cancel),        cmocka_unit_test(test_broken_device)};
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    mem_free(scratch);
    return failed;
}
