/* Several jobs at once, on tiny-a: what each says must not depend on the others, nor on pages running out, nor on who was cancelled. */
#include "unit.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "engine/engine.h"
#include "transcript.h"

enum { JOBS = 6 };
static transcript alone[JOBS], together[JOBS];

static void pause_ms(long ms) { nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL); }

static calla_engine_status status_of(const calla_engine *e) {
    calla_engine_status status;
    calla_engine_get_status(e, &status);
    return status;
}

/* Prompts of 1 to 200 tokens, greedy and sampled, with and without penalties. */
static calla_generate_options options_of(uint32_t j, uint32_t max_tokens) {
    calla_generate_options o = sampling_options(max_tokens, j);
    if (j % 3 == 1) o.sampling.repetition_penalty = 1.1f;
    if (j % 3 == 2) o.sampling.frequency_penalty = 0.2f;
    return o;
}

static uint32_t prompt_of(uint32_t j, int32_t *ids) {
    const uint32_t lengths[JOBS] = {1, 200, 13, 65, 130, 40};
    random_ids(ids, lengths[j], 320, j + 1);
    return lengths[j];
}

static void run_together(calla_engine *e, uint32_t max_tokens, transcript *t) {
    calla_session *s[JOBS];
    int32_t ids[256];
    for (uint32_t j = 0; j < JOBS; j++) {
        s[j] = open_session(e, ids, prompt_of(j, ids));
        calla_generate_options o = options_of(j, max_tokens);
        start(s[j], &o, &t[j]);
    }
    for (uint32_t j = 0; j < JOBS; j++) {
        calla_session_wait(s[j]);
        assert_int_equal(atomic_load(&t[j].done), 1);
        assert_int_equal(t[j].prompt_done, t[j].prompt_tokens);
        calla_session_close(s[j]);
    }
    assert_int_equal(status_of(e).running + status_of(e).queued, 0);
}

static void run_alone(calla_engine *e, uint32_t max_tokens) {
    int32_t ids[256];
    for (uint32_t j = 0; j < JOBS; j++) {
        calla_generate_options o = options_of(j, max_tokens);
        uint32_t n = prompt_of(j, ids);
        generate_alone(e, ids, n, &o, &alone[j]);
    }
}

static void test_together_as_alone(void **state) {
    (void)state;
    calla_engine *e = open_tiny_with_pages(700, JOBS, 0);
    run_alone(e, 60);
    run_together(e, 60, together);
    for (int j = 0; j < JOBS; j++) assert_same(&alone[j], &together[j]);
    calla_engine_close(e);
    e = open_tiny_with_pages(700, 2, 0); /* four wait */
    run_together(e, 60, together);
    for (int j = 0; j < JOBS; j++) assert_same(&alone[j], &together[j]);
    calla_engine_close(e);
}

/* Six that grow to nine pages in all, in a pool of 6: jobs are set aside and come back, and no one can tell. */
static void test_pages_run_out(void **state) {
    (void)state;
    calla_engine *e = open_tiny_with_pages(450, JOBS, 0);
    run_alone(e, 200);
    assert_int_equal(e->set_aside, 0);
    calla_engine_close(e);
    e = open_tiny_with_pages(450, JOBS, 6);
    run_together(e, 200, together);
    assert_true(e->set_aside > 0);
    for (int j = 0; j < JOBS; j++) assert_same(&alone[j], &together[j]);
    calla_engine_close(e);
    e = open_tiny_with_pages(450, JOBS, 2); /* one window: little more than one after the other */
    run_together(e, 200, together);
    for (int j = 0; j < JOBS; j++) assert_same(&alone[j], &together[j]);
    calla_engine_close(e);
}

/* Sessions keep their place in the model only while there is room: more idle sessions than places, each going on later. */
static void test_idle_sessions_give_way(void **state) {
    (void)state;
    calla_engine *e = open_tiny_with_pages(700, 2, 0);
    calla_session *s[JOBS];
    int32_t ids[256];
    calla_generate_options o = greedy_options(5);
    o.ignore_stop = true;
    for (uint32_t j = 0; j < JOBS; j++) {
        s[j] = open_session(e, ids, prompt_of(j, ids));
        generate(s[j], &o, &together[j]);
    }
    for (uint32_t j = 0; j < JOBS; j++) {
        generate(s[j], &o, &together[j]); /* again: five more */
        o.max_tokens = 10;
        uint32_t n = prompt_of(j, ids);
        generate_alone(e, ids, n, &o, &alone[j]);
        assert_memory_equal(alone[j].ids + 5, together[j].ids, 5 * sizeof(int32_t));
        assert_memory_equal(alone[j].logprobs + 5, together[j].logprobs, 5 * sizeof(float));
        assert_int_equal(together[j].prompt_tokens, j < JOBS - 2 ? n + 5 : together[j].prompt_tokens); /* had lost its place */
        o.max_tokens = 5;
    }
    for (uint32_t j = 0; j < JOBS; j++) calla_session_close(s[j]);
    calla_engine_close(e);
}

typedef struct first_token {
    const transcript *other;
    uint32_t other_events; /* of the other job when this one's first token came */
    bool seen;
} first_token;

static void watch_first_token(void *user, const calla_event *event) {
    first_token *f = user;
    if (event->kind != CALLA_EVENT_TOKEN || f->seen) return;
    f->seen = true;
    f->other_events = atomic_load(&f->other->events); /* each of them a chunk; both are told on the engine's thread */
}

/* A37: a short prompt beside a long one has its first token within two of its chunks: the one under way when it comes, and the next. */
static void test_first_token_beside_long_prompt(void **state) {
    (void)state;
    static int32_t ids[20000];
    random_ids(ids, 20000, 320, 5);
    calla_engine *e = open_tiny(20100, 2, 64);
    calla_generate_options o = greedy_options(1);
    calla_session *longer = open_session(e, ids, 20000);
    start(longer, &o, &together[0]);
    for (uint32_t i = 0; i < 5; i++) {
        calla_session *shorter = open_session(e, ids + i, 20);
        while (atomic_load(&together[0].events) < 3 * i + 1) pause_ms(1);
        first_token f = {.other = &together[0]};
        calla_error err;
        assert_int_equal(calla_session_generate(shorter, &o, watch_first_token, &f, &err), CALLA_OK);
        const uint32_t begun = atomic_load(&together[0].events);
        calla_session_wait(shorter);
        assert_true(f.seen);
        if (f.other_events > begun + 2) fail_msg("%u chunks of the long prompt came first", f.other_events - begun);
        calla_session_close(shorter);
    }
    assert_int_equal(atomic_load(&together[0].done), 0);
    calla_session_close(longer);
    calla_engine_close(e);
}

/* A short prompt beside a long one answers long before it. */
static void test_no_starving(void **state) {
    (void)state;
    static int32_t ids[20000];
    random_ids(ids, 20000, 320, 5);
    calla_engine *e = open_tiny(20100, 2, 64);
    calla_generate_options o = sampling_options(3, 1);
    calla_session *longer = open_session(e, ids, 20000), *shorter = open_session(e, ids, 30);
    start(longer, &o, &together[0]);
    generate(shorter, &o, &together[1]);
    assert_int_equal(together[1].n, 3);
    assert_int_equal(atomic_load(&together[0].done), 0);
    calla_session_close(longer); /* cancels */
    assert_int_equal(together[0].finish, CALLA_FINISH_CANCELLED);
    assert_int_equal(together[0].n, 0);
    assert_true(together[0].prompt_done < 20000);
    calla_session_close(shorter);
    calla_engine_close(e);
}

static void test_cancel(void **state) {
    (void)state;
    static int32_t ids[30000];
    random_ids(ids, 30000, 320, 6);
    calla_engine *e = open_tiny(32000, 2, 1024);
    calla_generate_options o = sampling_options(40, 8);
    calla_session *s = open_session(e, ids, 30000), *other = open_session(e, ids, 20), *waiting = open_session(e, ids, 25);

    /* while the prompt is processed; another one goes on as if nothing had been */
    generate_alone(e, ids, 20, &o, &alone[0]);
    start(s, &o, &together[0]);
    start(other, &o, &together[1]);
    start(waiting, &o, &together[2]);
    while (!atomic_load(&together[0].events)) pause_ms(1);
    uint64_t at = clock_now_ns();
    calla_session_cancel(waiting); /* from the queue */
    calla_session_cancel(s);
    calla_session_wait(s);
    calla_session_wait(waiting);
    assert_true(clock_now_ns() - at < 1000000000u);
    assert_int_equal(together[0].finish, CALLA_FINISH_CANCELLED);
    assert_int_equal(together[2].finish, CALLA_FINISH_CANCELLED);
    assert_int_equal(together[0].n + together[2].n, 0);
    calla_session_wait(other);
    assert_same(&alone[0], &together[1]);
    assert_int_equal(calla_session_tokens(s), 30000);
    calla_session_close(s);
    calla_session_close(other);

    /* a cancelled session goes on: after a queued cancel, and after one between tokens */
    generate(waiting, &o, &together[2]);
    generate_alone(e, ids, 25, &o, &alone[1]);
    assert_same(&alone[1], &together[2]);
    calla_session_close(waiting);
    s = open_session(e, ids, 20);
    together[0].cancel_after = 7; /* from the event itself */
    generate(s, &o, &together[0]);
    assert_int_equal(together[0].finish, CALLA_FINISH_CANCELLED);
    assert_int_equal(together[0].n, 7);
    assert_int_equal(calla_session_tokens(s), 27);
    together[0].cancel_after = 0;
    o.max_tokens = 33;
    generate(s, &o, &together[0]);
    assert_memory_equal(alone[0].ids + 7, together[0].ids, 33 * sizeof(int32_t));
    calla_session_cancel(s); /* of an idle session: nothing, and not the next job either */
    o.max_tokens = 1;
    generate(s, &o, &together[0]);
    assert_int_equal(together[0].n, 1);
    calla_session_close(s);
    calla_engine_close(e);
}

/* Closing the engine ends what runs and what waits, once each. */
static void test_close_while_running(void **state) {
    (void)state;
    static int32_t ids[20000];
    random_ids(ids, 20000, 320, 7);
    calla_engine *e = open_tiny(20100, 1, 64);
    calla_session *s[3];
    calla_generate_options o = sampling_options(10, 1);
    for (int j = 0; j < 3; j++) {
        s[j] = open_session(e, ids, 20000);
        start(s[j], &o, &together[j]);
    }
    while (!atomic_load(&together[0].events)) pause_ms(1);
    assert_int_equal(status_of(e).running, 1);
    assert_int_equal(status_of(e).queued, 2);
    calla_error err;
    assert_int_equal(calla_session_append(s[0], ids, 1, &err), CALLA_E_ARGUMENT); /* busy */
    assert_int_equal(calla_session_generate(s[0], &o, transcript_event, &together[0], &err), CALLA_E_ARGUMENT);
    uint64_t at = clock_now_ns();
    for (int j = 0; j < 3; j++) calla_session_close(s[j]);
    calla_engine_close(e);
    assert_true(clock_now_ns() - at < 2000000000u);
    for (int j = 0; j < 3; j++) {
        assert_int_equal(together[j].finish, CALLA_FINISH_CANCELLED);
        assert_int_equal(atomic_load(&together[j].done), 1);
    }
    calla_engine_close(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_together_as_alone),
        cmocka_unit_test(test_pages_run_out),
        cmocka_unit_test(test_idle_sessions_give_way),
        cmocka_unit_test(test_no_starving),
        cmocka_unit_test(test_first_token_beside_long_prompt),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_close_while_running),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
