/* test_fork.c: forks of a session: the same answers as alone, to the last bit, and what was processed is not processed again. */
#include "unit.h"

#include <string.h>

#include "support/arrays.h"
#include "transcript.h"

enum { VOCABULARY = 320, PROMPT = 300 /* more than a page of K and V */, MORE = 20 };

static int32_t ids[PROMPT + MORE];
static transcript a, b, first;

static int make_ids(void **state) {
    (void)state;
    random_ids(ids, PROMPT + MORE, VOCABULARY, 7);
    return 0;
}

static calla_session *fork_of(const calla_session *s) {
    calla_session *fork = NULL;
    calla_error err = {0};
    if (calla_session_fork(s, &fork, &err)) fail_msg("%s", err.message);
    return fork;
}

static void append(calla_session *s, const int32_t *more, size_t n) {
    calla_error err = {0};
    if (calla_session_append(s, more, n, &err)) fail_msg("%s", err.message);
}

/* A session that has said `first` after the prompt, all but its last token processed. */
static calla_session *told(calla_engine *e) {
    const calla_generate_options o = greedy_options(3);
    calla_session *s = open_session(e, ids, PROMPT);
    generate(s, &o, &first);
    assert_int_equal(first.n, 3);
    return s;
}

/* What a session says that never was a fork, after the prompt, `first` and MORE ids. */
static void say_alone(calla_engine *e, const calla_generate_options *o, transcript *t) {
    calla_session *s = open_session(e, ids, PROMPT);
    append(s, first.ids, first.n);
    append(s, ids + PROMPT, MORE);
    generate(s, o, t);
    calla_session_close(s);
}

static void test_shared(void **state) {
    (void)state;
    calla_engine *e = open_tiny(512, 3, 64);
    calla_session *s = told(e), *one = fork_of(s), *two = fork_of(one); /* of a fork that has not begun */
    assert_int_equal(calla_session_tokens(two), PROMPT + 3);
    const calla_generate_options o = sampling_options(40, 5);
    append(one, ids + PROMPT, MORE);
    append(two, ids + PROMPT, MORE);
    generate(one, &o, &a);
    generate(two, &o, &b);
    assert_int_equal(a.prompt_tokens, 1 + MORE);
    assert_int_equal(b.prompt_tokens, 1 + MORE);
    assert_same(&a, &b);
    calla_session_close(one);
    calla_session_close(two);
    say_alone(e, &o, &b);
    assert_int_equal(b.prompt_tokens, PROMPT + 3 + MORE);
    assert_same(&a, &b);
    append(s, ids + PROMPT, MORE); /* what the forks did is nothing to it */
    generate(s, &o, &b);
    assert_int_equal(b.prompt_tokens, 1 + MORE);
    assert_same(&a, &b);
    calla_session_close(s);
    calla_engine_close(e);
}

static void test_together(void **state) {
    (void)state;
    calla_engine *e = open_tiny(512, 3, 64);
    calla_session *s = told(e), *one = fork_of(s), *two = fork_of(s);
    const calla_generate_options o = sampling_options(40, 5), other = sampling_options(40, 6);
    append(one, ids + PROMPT, MORE);
    append(two, ids + PROMPT, MORE);
    start(one, &o, &a);
    start(two, &other, &b);
    calla_session_wait(one);
    calla_session_wait(two);
    static transcript alone;
    say_alone(e, &o, &alone);
    assert_same(&a, &alone);
    say_alone(e, &other, &alone);
    assert_same(&b, &alone);
    calla_session_close(one);
    calla_session_close(two);
    calla_session_close(s);
    calla_engine_close(e);
}

/* The other session is closed: what it has left in the model still serves. */
static void test_closed(void **state) {
    (void)state;
    for (uint32_t sequences = 1; sequences <= 2; sequences++) {
        calla_engine *e = open_tiny(512, sequences, 64);
        calla_session *s = told(e), *fork = fork_of(s);
        const calla_generate_options o = sampling_options(40, 5);
        calla_session_close(s);
        append(fork, ids + PROMPT, MORE);
        generate(fork, &o, &a);
        assert_int_equal(a.prompt_tokens, 1 + MORE);
        calla_session_close(fork);
        say_alone(e, &o, &b);
        assert_same(&a, &b);
        calla_engine_close(e);
    }
}

/* One place for two: the fork takes it, and the other session is processed again when it goes on. */
static void test_one_place(void **state) {
    (void)state;
    calla_engine *e = open_tiny(512, 1, 64);
    calla_session *s = told(e), *fork = fork_of(s);
    const calla_generate_options o = sampling_options(40, 5);
    append(s, ids + PROMPT, MORE);
    append(fork, ids + PROMPT, MORE);
    generate(fork, &o, &a);
    assert_int_equal(a.prompt_tokens, 1 + MORE);
    generate(s, &o, &b);
    assert_int_equal(b.prompt_tokens, PROMPT + 3 + MORE);
    assert_same(&a, &b);
    calla_session_close(fork);
    calla_session_close(s);
    calla_engine_close(e);
}

/* The other session has gone on, or lost its place, before the fork's job begins. */
static void test_too_late(void **state) {
    (void)state;
    const calla_generate_options o = sampling_options(40, 5), two = greedy_options(2);
    for (uint32_t how = 0; how < 2; how++) {
        calla_engine *e = open_tiny(512, how ? 1 : 2, 64);
        calla_session *s = told(e), *fork = fork_of(s);
        if (how)
            generate_alone(e, ids, 5, &two, &b);
        else
            generate(s, &two, &b);
        append(fork, ids + PROMPT, MORE);
        generate(fork, &o, &a);
        assert_int_equal(a.prompt_tokens, PROMPT + 3 + MORE);
        calla_session_close(fork);
        say_alone(e, &o, &b);
        assert_same(&a, &b);
        calla_session_close(s);
        calla_engine_close(e);
    }
}

static void count_prompt_token(void *user, const calla_event *event) { *(uint32_t *)user += event->kind == CALLA_EVENT_PROMPT_TOKEN; }

/* Log-probabilities of a prompt are of all of it, shared or not. */
static void test_prompt_logprobs(void **state) {
    (void)state;
    calla_engine *e = open_tiny(512, 2, 64);
    calla_session *s = told(e), *fork = fork_of(s);
    calla_generate_options o = greedy_options(1);
    calla_error err = {0};
    uint32_t counted = 0;
    o.prompt_logprobs = true;
    if (calla_session_generate(fork, &o, count_prompt_token, &counted, &err)) fail_msg("%s", err.message);
    calla_session_wait(fork);
    assert_int_equal(counted, PROMPT + 3);
    calla_session_close(fork);
    calla_session_close(s);
    calla_engine_close(e);
}

static void test_refused(void **state) {
    (void)state;
    calla_engine *e = open_tiny(512, 1, 64);
    calla_session *s = open_session(e, ids, PROMPT), *fork = fork_of(s); /* of one that has done nothing */
    const calla_generate_options o = sampling_options(100, 5);
    calla_error err = {0};
    start(s, &o, &a);
    calla_session *none = s;
    const calla_status status = calla_session_fork(s, &none, &err);
    if (!atomic_load(&a.done)) {
        assert_int_equal(status, CALLA_E_ARGUMENT);
        assert_non_null(strstr(err.message, "job under way"));
        assert_null(none);
    }
    calla_session_wait(s);
    generate(fork, &o, &b);
    assert_int_equal(b.prompt_tokens, PROMPT);
    assert_same(&a, &b);
    calla_session_close(fork);
    calla_session_close(s);
    calla_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shared),    cmocka_unit_test(test_together), cmocka_unit_test(test_closed),
        cmocka_unit_test(test_one_place), cmocka_unit_test(test_too_late), cmocka_unit_test(test_prompt_logprobs),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, make_ids, NULL);
}
