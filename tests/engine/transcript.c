/* transcript.c: see transcript.h. */
#include "transcript.h"

#include <string.h>

#include "base/random.h"
#include "engine/engine.h"
#include "support/arrays.h"
#include "unit.h"

void transcript_event(void *user, const calla_event *event) {
    transcript *t = user;
    atomic_fetch_add(&t->events, 1);
    if (atomic_load(&t->done)) t->after_done++;
    t->last = *event;
    switch (event->kind) {
    case CALLA_EVENT_PROMPT:
        t->prompt_events++;
        t->prompt_tokens = event->prompt_tokens;
        t->prompt_done = event->prompt_done;
        break;
    case CALLA_EVENT_PROMPT_TOKEN: fail_msg("a token of the prompt that nobody asked for"); break;
    case CALLA_EVENT_TOKEN:
        t->ids[t->n] = event->id;
        t->logprobs[t->n] = event->logprob;
        for (uint32_t i = 0; i < 2 && i < event->n_top; i++) t->top[t->n][i] = event->top[i];
        t->last_is_stop = event->is_stop;
        t->n++;
        if (t->n == t->cancel_after) calla_session_cancel(t->session);
        break;
    case CALLA_EVENT_DONE:
        t->finish = event->finish;
        if (event->error) t->error = *event->error;
        atomic_fetch_add(&t->done, 1);
        break;
    }
}

calla_generate_options greedy_options(uint32_t max_tokens) {
    return (calla_generate_options){
        .sampling = {.top_p = 1, .repetition_penalty = 1},
        .max_tokens = max_tokens,
        .logprobs = true,
        .n_top_logprobs = 2,
    };
}

calla_generate_options sampling_options(uint32_t max_tokens, uint64_t seed) {
    calla_generate_options o = greedy_options(max_tokens);
    o.sampling.temperature = 1;
    o.sampling.seed = seed;
    o.ignore_stop = true;
    return o;
}

calla_generate_options stopping_options(uint32_t max_tokens) {
    static const int32_t stop = TINY_STOP;
    static const float bias = 1e6f;
    calla_generate_options o = greedy_options(max_tokens);
    o.sampling.bias_ids = &stop;
    o.sampling.bias = &bias;
    o.sampling.n_bias = 1;
    return o;
}

calla_engine *open_tiny(uint32_t context_tokens, uint32_t max_sequences, uint32_t batch_rows) {
    const calla_engine_options o = {.model_dir = test_data("checkpoints/tiny-a"),
                                    .ids_only = true,
                                    .device = "ref",
                                    .context_tokens = context_tokens,
                                    .max_sequences = max_sequences,
                                    .batch_rows = batch_rows};
    calla_engine *e = NULL;
    calla_error err = {0};
    calla_status status = calla_engine_open(&o, &e, &err);
    if (status) fail_msg("%s", err.message);
    return e;
}

calla_engine *open_tiny_with_pages(uint32_t context_tokens, uint32_t max_sequences, uint32_t pages) {
    const calla_engine_options o = {.model_dir = test_data("checkpoints/tiny-a"),
                                    .ids_only = true,
                                    .device = "ref",
                                    .context_tokens = context_tokens,
                                    .max_sequences = max_sequences,
                                    .batch_rows = 64};
    calla_engine *e = NULL;
    calla_error err = {0};
    if (engine_open_on(&o, NULL, pages * KV_PAGE_TOKENS, &e, &err)) fail_msg("%s", err.message);
    return e;
}

calla_session *open_session(calla_engine *e, const int32_t *ids, size_t n) {
    calla_session *s = NULL;
    calla_error err = {0};
    if (calla_session_open(e, &s, &err) || calla_session_append(s, ids, n, &err)) fail_msg("%s", err.message);
    return s;
}

void start(calla_session *s, const calla_generate_options *o, transcript *t) {
    uint32_t cancel_after = t->cancel_after;
    memset(t, 0, sizeof *t);
    t->cancel_after = cancel_after;
    t->session = s;
    calla_error err = {0};
    if (calla_session_generate(s, o, transcript_event, t, &err)) fail_msg("%s", err.message);
}

void generate(calla_session *s, const calla_generate_options *o, transcript *t) {
    start(s, o, t);
    calla_session_wait(s);
    assert_int_equal(atomic_load(&t->done), 1);
    assert_int_equal(t->after_done, 0);
}

void generate_alone(calla_engine *e, const int32_t *ids, size_t n, const calla_generate_options *o, transcript *t) {
    calla_session *s = open_session(e, ids, n);
    generate(s, o, t);
    calla_session_close(s);
}

void assert_same(const transcript *a, const transcript *b) {
    assert_int_equal(a->n, b->n);
    assert_int_equal(a->finish, b->finish);
    assert_memory_equal(a->ids, b->ids, a->n * sizeof *a->ids);
    assert_memory_equal(a->logprobs, b->logprobs, a->n * sizeof *a->logprobs);
}

void random_ids(int32_t *ids, uint32_t n, uint32_t vocabulary, uint64_t seed) {
    for (uint32_t i = 0; i < n; i++) ids[i] = (int32_t)(random_uniform(seed, 77, i) * (float)vocabulary);
}
