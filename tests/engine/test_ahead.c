/* test_ahead.c: the engine on a device that works by itself, so that each step is submitted before the one before is seen: what every job
 * says must be what it says step by step.  The device is ref behind a queue: what a step picks is handed out when it is collected. */
#include "unit.h"

#include <string.h>

#include "engine/engine.h"
#include "support/arrays.h"
#include "transcript.h"

enum { JOBS = 6, MOST_SAMPLES = 8, VOCABULARY = 320 };

static const backend_vtable *plain;
static backend_vtable ahead;

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
    described = batch;
    return plain->begin(b, batch, err);
}

static calla_status queue_submit(backend *b, calla_error *err) {
    const calla_status status = plain->finish(b, err);
    if (status) return status;
    ran_ahead += submitted > collected;
    assert_true(described->samples <= MOST_SAMPLES);
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
    submitted = collected = ran_ahead = 0;
    atomic_store(&collects_left, 1000000000);
}

static calla_engine *open_ahead(uint32_t context_tokens, uint32_t max_sequences, uint32_t pages) {
    const calla_engine_options o = {.model_dir = test_data("checkpoints/tiny-a"),
                                    .ids_only = true,
                                    .context_tokens = context_tokens,
                                    .max_sequences = max_sequences,
                                    .batch_rows = 64};
    calla_engine *e = NULL;
    calla_error err = {0};
    reset_queue();
    if (engine_open_on(&o, &ahead, pages * KV_PAGE_TOKENS, &e, &err)) fail_msg("%s", err.message);
    return e;
}

/* ---- jobs ---- */

static transcript alone[JOBS], together[JOBS];

typedef struct stripes { /* a guide: ids that are `made` modulo 3 */
    uint32_t made, mask[VOCABULARY / 32];
} stripes;
static stripes guides[JOBS];

static const uint32_t *stripes_mask(void *user) {
    stripes *s = user;
    memset(s->mask, 0, sizeof s->mask);
    for (uint32_t id = s->made % 3; id < VOCABULARY; id += 3) s->mask[id / 32] |= 1u << id % 32;
    return s->mask;
}

static void stripes_took(void *user, int32_t id) {
    stripes *s = user;
    assert_int_equal((uint32_t)id % 3, s->made % 3);
    s->made++;
}

/* Job 3 has penalties, 4 a bias, 5 a guide: these the device cannot run ahead of. */
static calla_generate_options options_of(uint32_t j, uint32_t max_tokens) {
    static const int32_t id = 17;
    static const float bias = 2;
    calla_generate_options o = sampling_options(max_tokens - j, j);
    if (j == 3) o.sampling.frequency_penalty = 0.2f;
    if (j == 4) o.sampling.bias_ids = &id, o.sampling.bias = &bias, o.sampling.n_bias = 1;
    if (j == 5) {
        guides[j] = (stripes){.made = 0};
        o.guide = (calla_guide){.mask = stripes_mask, .took = stripes_took, .user = &guides[j]};
    }
    return o;
}

static uint32_t prompt_of(uint32_t j, int32_t *ids) {
    const uint32_t lengths[JOBS] = {1, 200, 13, 65, 130, 40};
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
}

/* Three that the device can run ahead of, which end one after the other: nearly every step is submitted ahead. */
static void test_runs_ahead(void **state) {
    (void)state;
    run_alone(3, 60);
    calla_engine *e = open_ahead(700, 3, 0);
    run_together(e, 3, 60);
    calla_engine_close(e);
    assert_int_equal(submitted, collected);
    assert_true(ran_ahead > submitted * 9 / 10);
}

/* Beside others that it has to wait for, with places for all and for two. */
static void test_mixed(void **state) {
    (void)state;
    run_alone(JOBS, 60);
    for (uint32_t places = 2; places <= JOBS; places += 4) {
        calla_engine *e = open_ahead(700, places, 0);
        run_together(e, JOBS, 60);
        calla_engine_close(e);
        assert_int_equal(submitted, collected);
        assert_true(ran_ahead > 0 && ran_ahead < submitted);
    }
}

/* Jobs that are set aside for want of pages and come back. */
static void test_pages_run_out(void **state) {
    (void)state;
    run_alone(3, 200);
    calla_engine *e = open_ahead(450, 3, 2);
    run_together(e, 3, 200);
    assert_true(e->set_aside > 0 && ran_ahead > 0);
    calla_engine_close(e);
}

/* What the answer ended with is found one step late: that step is dropped, and the next answer goes on from the history.  The stop id is one
 * that the model picks by itself, since a bias is not run ahead of. */
static void test_dropped(void **state) {
    (void)state;
    static transcript first, t;
    int32_t ids[40];
    random_ids(ids, 40, VOCABULARY, 9);
    const calla_generate_options greedy = greedy_options(12);
    calla_generate_options o = sampling_options(12, 5);
    calla_engine *e = open_tiny_with_pages(700, 1, 0);
    generate_alone(e, ids, 40, &o, &alone[0]);
    calla_session *s = open_session(e, ids, 40);
    generate(s, &o, &first);
    generate(s, &greedy, &alone[1]);
    calla_session_close(s);
    calla_engine_close(e);

    e = open_ahead(700, 1, 0);
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
    assert_memory_equal(t.logprobs, alone[1].logprobs, (t.n < 8 ? t.n : 8) * sizeof *t.logprobs);
    calla_session_close(s);
    calla_engine_close(e);
    assert_int_equal(submitted, collected);
}

/* One is cancelled, by its own event or from outside, while steps with its rows are under way: the other does not show it. */
static void test_cancel(void **state) {
    (void)state;
    run_alone(2, 60);
    calla_engine *e = open_ahead(700, 2, 0);
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

/* A device that fails with two steps under way fails all that run, once, and the engine closes. */
static void test_broken_device(void **state) {
    (void)state;
    calla_engine *e = open_ahead(700, 3, 0);
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

int main(void) {
    plain = backend_find("ref");
    ahead = *plain;
    ahead.begin = queue_begin;
    ahead.submit = queue_submit;
    ahead.collect = queue_collect;
    ahead.sampled = queue_sampled;
    ahead.runs_ahead = queue_runs_ahead;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_runs_ahead),    cmocka_unit_test(test_mixed),
                                       cmocka_unit_test(test_pages_run_out), cmocka_unit_test(test_dropped),
                                       cmocka_unit_test(test_cancel),        cmocka_unit_test(test_broken_device)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
