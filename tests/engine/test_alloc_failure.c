/* Memory that runs out: opening pocket, one chat request, closing, with one allocation made to fail: each of the first 2,000, and, should
 * there be more, 500 random later ones.  Every run must end, with CALLA_E_NOMEM or the right answer, and leak nothing (the sanitizer's
 * run sees leaks). */
#include "unit.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "backend/backend.h"
#include "base/memory.h"
#include "base/random.h"
#include "calla.h"
#include "support/arrays.h"

#define FIRST 2000u
#define LATER 500u

static const char request[] =
    "{\"messages\":[{\"role\":\"user\",\"content\":\"What is the capital of France?\"}],\"enable_thinking\":false}";
static const char expected[] = "The capital of France is Paris.";

typedef struct answer_text {
    char text[256];
    size_t n;
    calla_answer *answer;
    calla_status status;
} answer_text;

static void on_piece(void *user, const calla_piece *piece) {
    answer_text *a = user;
    if (piece->kind != CALLA_PIECE_CONTENT || a->n + piece->n >= sizeof a->text) return;
    memcpy(a->text + a->n, piece->text, piece->n);
    a->n += piece->n;
}

static void on_event(void *user, const calla_event *event) {
    answer_text *a = user;
    bool stopped;
    if (event->kind == CALLA_EVENT_TOKEN && !event->is_stop && !a->status)
        a->status = calla_answer_push(a->answer, event->id, &stopped, NULL);
    if (event->kind == CALLA_EVENT_DONE && !a->status)
        a->status = event->error ? event->error->status : calla_answer_finish(a->answer, true, NULL);
}

static calla_status ask(calla_engine *engine, answer_text *a) {
    calla_session *session = NULL, *fork = NULL;
    calla_prompt prompt = {0};
    const calla_text *text = calla_engine_text(engine);
    calla_status status = calla_text_render(text, request, sizeof request - 1, &prompt, NULL);
    if (!status) {
        calla_answer_options options = {.thinking = prompt.thinking, .piece = on_piece, .user = a};
        status = calla_answer_open(text, &options, &a->answer, NULL);
    }
    if (!status) status = calla_session_open(engine, &session, NULL);
    if (!status) status = calla_session_append(session, prompt.ids.ids, prompt.ids.n, NULL);
    if (!status) status = calla_session_fork(session, &fork, NULL);
    if (!status) {
        const float bias[1] = {0.5f};
        calla_generate_options options = {.sampling = {.top_p = 1, .repetition_penalty = 1, .presence_penalty = 0.001f}, .max_tokens = 20};
        options.sampling.bias = bias; /* all that a job can allocate */
        options.sampling.bias_ids = prompt.ids.ids;
        options.sampling.n_bias = 1;
        status = calla_session_generate(fork, &options, on_event, a, NULL);
    }
    if (!status) calla_session_wait(fork);
    calla_session_close(fork);
    calla_session_close(session);
    calla_answer_close(a->answer);
    calla_prompt_free(&prompt);
    return status ? status : a->status;
}

static const char *device;

static calla_status run_all(answer_text *a) {
    calla_engine *engine = NULL;
    const calla_engine_options options = {
        .model_dir = test_models("pocket"), .device = device, .context_tokens = 256, .max_sequences = 1, .batch_rows = 32};
    *a = (answer_text){0};
    calla_status status = calla_engine_open(&options, &engine, NULL);
    if (!status) status = ask(engine, a);
    calla_engine_close(engine);
    return status;
}

static uint64_t victim; /* number of the allocation that fails, counted from the start of the run */
static uint64_t run_start;
static atomic_bool hit;

static int fail_victim(void *user, uint64_t number) {
    (void)user;
    if (number - run_start != victim) return 0;
    atomic_store(&hit, true);
    return 1;
}

/* One run in which allocation n fails: true if it failed in a way that the caller saw. */
static bool run_with_failure(uint64_t n) {
    static answer_text a;
    victim = n;
    run_start = mem_allocations();
    atomic_store(&hit, false);
    mem_set_failure(fail_victim, NULL);
    calla_status status = run_all(&a);
    mem_set_failure(NULL, NULL);
    if (!status)
        assert_string_equal(a.text, expected);
    else if (status != CALLA_E_NOMEM)
        fail_msg("allocation %llu failed, and the status was %s", (unsigned long long)n, calla_status_name(status));
    assert_true(!status || atomic_load(&hit));
    return status != CALLA_OK;
}

static void test_device(const char *name) {
    answer_text a;
    device = name;
    uint64_t before = mem_allocations();
    calla_status status = run_all(&a);
    if (status == CALLA_E_UNSUPPORTED && strcmp(name, "cpu")) return; /* compiled in, but this machine has no such device */
    assert_int_equal(status, CALLA_OK);
    assert_string_equal(a.text, expected);
    uint64_t all = mem_allocations() - before, failed = 0, tried = 0;
    assert_true(all > 50);
    for (uint64_t n = 0; n < FIRST && n < all; n++, tried++) failed += run_with_failure(n);
    for (uint32_t i = 0; i < LATER && all > FIRST; i++, tried++)
        failed += run_with_failure(FIRST + (uint64_t)((double)random_uniform(2026, 0, i) * (double)(all - FIRST)));
    print_message("%s: %llu allocations in a run; %llu made to fail, seen by the caller in %llu\n", name, (unsigned long long)all,
                  (unsigned long long)tried, (unsigned long long)failed);
    assert_true(failed * 2 > tried);         /* most allocations cannot be done without: the hook reaches them */
    assert_int_equal(run_all(&a), CALLA_OK); /* nothing is left broken */
}

static void test_each_failure(void **state) {
    (void)state;
    for (size_t i = 0; backend_list[i]; i++) test_device(backend_list[i]->name);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_each_failure)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
