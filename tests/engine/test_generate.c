/* One job at a time: greedy answers of pocket as recorded, and what each option of generate means. */
#include "unit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "base/json.h"
#include "base/map.h"
#include "base/memory.h"
#include "support/arrays.h"
#include "transcript.h"

static calla_engine *pocket, *tiny;
static transcript a, b;

static int32_t *ids_of(json_object *chat, const char *key, size_t *n) {
    json_object *list = json_object_object_get(chat, key);
    *n = json_object_array_length(list);
    int32_t *ids = malloc(*n * sizeof *ids);
    assert_non_null(ids);
    for (size_t i = 0; i < *n; i++) ids[i] = json_object_get_int(json_object_array_get_idx(list, i));
    return ids;
}

static void check_greedy(calla_engine *e, json_object *chat) {
    size_t n_prompt, n_want;
    int32_t *ids = ids_of(chat, "prompt_ids", &n_prompt), *want = ids_of(chat, "greedy_ids", &n_want);
    assert_true(json_object_get_double(json_object_object_get(chat, "min_margin")) > 1e-2);
    calla_generate_options o = greedy_options(96); /* the recording stopped there */
    generate_alone(e, ids, n_prompt, &o, &a);
    assert_int_equal(a.n, n_want);
    assert_memory_equal(a.ids, want, n_want * sizeof *want);
    assert_int_equal(a.finish, n_want < 96 ? CALLA_FINISH_STOP : CALLA_FINISH_LENGTH);
    assert_int_equal(a.last_is_stop, n_want < 96);
    assert_int_equal(a.prompt_tokens, n_prompt);
    assert_int_equal(a.prompt_done, n_prompt);
    assert_int_equal(a.prompt_events, (n_prompt + 255) / 256); /* one a step */
    assert_int_equal(a.last.completion_tokens, n_want);
    free(ids);
    free(want);
}

/* tests/data/engine/pocket.greedy.json: float32 transformers; the smallest margin of each chat is above 1e-2, so every backend must say
 * the same. */
static void test_pocket_greedy(void **state) {
    (void)state;
    char *text;
    size_t n_text;
    json_object *chats;
    assert_int_equal(file_read(test_data("engine/pocket.greedy.json"), 1 << 20, &text, &n_text, NULL), CALLA_OK);
    assert_int_equal(json_parse(text, n_text, "pocket.greedy.json", &chats, NULL), CALLA_OK);
    assert_int_equal(json_object_array_length(chats), 18);
    for (size_t v = 0; backend_list[v]; v++) {
        const calla_engine_options o = {.model_dir = test_models("pocket"), .device = backend_list[v]->name, .context_tokens = 2048};
        calla_engine *e = NULL;
        calla_error err;
        calla_status status = calla_engine_open(&o, &e, &err);
        if (status == CALLA_E_UNSUPPORTED && v) continue; /* compiled in, but this machine has no such device */
        if (status) fail_msg("%s", err.message);
        for (size_t c = 0; c < 18; c += test_short() ? 9 : 1) check_greedy(e, json_object_array_get_idx(chats, c));
        calla_engine_close(e);
    }
    json_object_put(chats);
    mem_free(text);
}

static void test_info(void **state) {
    (void)state;
    calla_engine_info info;
    calla_engine_get_info(pocket, &info);
    assert_string_equal(info.model_name, "pocket");
    assert_int_equal(info.vocabulary, 8186);
    assert_int_equal(info.vocabulary_rows, 8192);
    assert_int_equal(info.context_tokens, 4096);
    assert_int_equal(info.model_context, 262144);
    assert_int_equal(info.max_sequences, 2);
    assert_true(info.weights_bytes > 12000000 && info.plan_bytes > 1000000);
    assert_true(info.defaults.temperature == 1.0f && info.defaults.top_k == 20 && info.defaults.repetition_penalty == 1.0f);
    assert_true(fabsf(info.defaults.top_p - 0.95f) < 1e-6f);
    assert_non_null(calla_engine_text(pocket));
    calla_engine_get_info(tiny, &info);
    assert_string_equal(info.model_name, "tiny-a");
    assert_null(calla_engine_text(tiny)); /* ids_only */
    assert_int_equal(info.vocabulary, 320);
}

static const int32_t prompt[] = {1, 17, 200, 45, 45, 3, 119, 8, 250, 33};
#define PROMPT prompt, sizeof prompt / sizeof *prompt

static void test_lengths(void **state) {
    (void)state;
    calla_generate_options o = sampling_options(7, 1);
    generate_alone(tiny, PROMPT, &o, &a);
    assert_int_equal(a.n, 7);
    assert_int_equal(a.finish, CALLA_FINISH_LENGTH);
    o.max_tokens = 0; /* to the end of the window of 512 */
    calla_session *s = open_session(tiny, PROMPT);
    generate(s, &o, &b);
    assert_int_equal(b.n, 512 - 10);
    assert_int_equal(b.finish, CALLA_FINISH_LENGTH);
    assert_memory_equal(a.ids, b.ids, sizeof(int32_t) * 7);
    assert_int_equal(calla_session_tokens(s), 512);
    generate(s, &o, &b); /* full */
    assert_int_equal(b.n, 0);
    assert_int_equal(b.finish, CALLA_FINISH_LENGTH);
    calla_error err;
    assert_int_equal(calla_session_append(s, prompt, 1, &err), CALLA_E_LIMIT);
    assert_non_null(strstr(err.message, "512"));
    calla_session_close(s);
}

static void test_stop_ids(void **state) {
    (void)state;
    calla_generate_options o = sampling_options(400, 3); /* ignores stop ids */
    const int32_t stop = 2;                              /* tiny-a's eos_token_id, made likelier */
    const float bias = 2;
    o.sampling.bias_ids = &stop;
    o.sampling.bias = &bias;
    o.sampling.n_bias = 1;
    generate_alone(tiny, PROMPT, &o, &a);
    assert_int_equal(a.n, 400);
    uint32_t first = 0;
    while (first < a.n && a.ids[first] != stop) first++;
    assert_true(first > 0 && first < 399);
    o.ignore_stop = false;
    generate_alone(tiny, PROMPT, &o, &b);
    assert_int_equal(b.n, first + 1);
    assert_int_equal(b.finish, CALLA_FINISH_STOP);
    assert_true(b.last_is_stop);
    assert_memory_equal(a.ids, b.ids, b.n * sizeof *b.ids);
}

/* Forced tokens come where they were ordered, unless another one was there before; behind them the answer does not end. */
static void test_forced_tokens(void **state) {
    (void)state;
    calla_generate_options o = greedy_options(12);
    o.ignore_stop = true;
    generate_alone(tiny, PROMPT, &o, &a);
    o.force = (calla_force){.after = 4, .n = 3, .ids = {100, 319, 0}};
    o.logprobs = true;
    generate_alone(tiny, PROMPT, &o, &b);
    assert_int_equal(b.n, 12);
    assert_memory_equal(a.ids, b.ids, 4 * sizeof *a.ids);
    assert_true(b.ids[4] == 100 && b.ids[5] == 319 && b.ids[6] == 0);
    o.force.n_unless = 2;
    o.force.unless[0] = a.ids[3];
    o.force.unless[1] = -1;
    generate_alone(tiny, PROMPT, &o, &b);
    assert_memory_equal(a.ids, b.ids, 12 * sizeof *a.ids);
    o.force.unless[0] = a.ids[5]; /* comes too late */
    generate_alone(tiny, PROMPT, &o, &b);
    assert_int_equal(b.ids[4], a.ids[4] == a.ids[5] ? a.ids[4] : 100);
    /* A stop id that is ever so likely does not come behind the forced ones, and then it does. */
    o = stopping_options(12);
    o.force = (calla_force){.n = 2, .ids = {7, 8}};
    generate_alone(tiny, PROMPT, &o, &b);
    assert_int_equal(b.n, 4);
    assert_true(b.ids[0] == 7 && b.ids[1] == 8 && b.ids[2] != TINY_STOP && b.ids[3] == TINY_STOP);
    assert_int_equal(b.finish, CALLA_FINISH_STOP);
    calla_error err;
    calla_session *s = open_session(tiny, PROMPT);
    o.force.ids[1] = 320;
    assert_int_equal(calla_session_generate(s, &o, transcript_event, &b, &err), CALLA_E_ARGUMENT);
    o.force.n = CALLA_MAX_FORCED + 1;
    assert_int_equal(calla_session_generate(s, &o, transcript_event, &b, &err), CALLA_E_ARGUMENT);
    calla_session_close(s);
}

static void test_seeds(void **state) {
    (void)state;
    calla_generate_options o = sampling_options(60, 42);
    generate_alone(tiny, PROMPT, &o, &a);
    generate_alone(tiny, PROMPT, &o, &b);
    assert_same(&a, &b);
    o.sampling.choice = 1;
    generate_alone(tiny, PROMPT, &o, &b);
    assert_memory_not_equal(a.ids, b.ids, 60 * sizeof *a.ids);
    o.sampling.choice = 0;
    o.sampling.seed = 43;
    generate_alone(tiny, PROMPT, &o, &b);
    assert_memory_not_equal(a.ids, b.ids, 60 * sizeof *a.ids);
    o = sampling_options(60, 42);
    o.sampling.top_k = 1;
    generate_alone(tiny, PROMPT, &o, &a);
    o.sampling.temperature = 0;
    generate_alone(tiny, PROMPT, &o, &b);
    assert_same(&a, &b);
}

/* An answer, then more: the same as all of it at once. */
static void test_turns(void **state) {
    (void)state;
    int32_t more[] = {5, 6, 7, 8, 9, 300}, all[64];
    calla_generate_options o = sampling_options(20, 9);
    calla_session *s = open_session(tiny, PROMPT);
    generate(s, &o, &a);
    assert_int_equal(calla_session_tokens(s), 30);
    memcpy(all, prompt, sizeof prompt);
    memcpy(all + 10, a.ids, 20 * sizeof *all);
    memcpy(all + 30, more, sizeof more);
    calla_error err;
    assert_int_equal(calla_session_append(s, more, 6, &err), CALLA_OK);
    generate(s, &o, &a);
    assert_int_equal(a.prompt_tokens, 7); /* the last token of the answer and the six */
    calla_session_close(s);
    generate_alone(tiny, all, 36, &o, &b);
    assert_same(&a, &b);
    /* generating without appending goes on where it ended */
    o.max_tokens = 10;
    s = open_session(tiny, all, 36);
    generate(s, &o, &a);
    assert_memory_equal(a.ids, b.ids, 10 * sizeof *a.ids);
    generate(s, &o, &a);
    assert_memory_equal(a.ids, b.ids + 10, 10 * sizeof *a.ids);
    calla_session_close(s);
}

static void test_logprobs(void **state) {
    (void)state;
    calla_generate_options o = sampling_options(30, 5);
    int32_t all[40];
    float scores[39];
    generate_alone(tiny, PROMPT, &o, &a);
    memcpy(all, prompt, sizeof prompt);
    memcpy(all + 10, a.ids, 30 * sizeof *all);
    calla_error err;
    assert_int_equal(calla_engine_score(tiny, all, 40, scores, NULL, NULL, &err), CALLA_OK);
    for (int i = 0; i < 30; i++) {
        assert_true(fabsf(scores[9 + i] - a.logprobs[i]) < 1e-5f);
        assert_true(a.top[i][0].logprob >= a.top[i][1].logprob && a.top[i][0].logprob >= a.logprobs[i]);
    }
    o.logprobs = false;
    o.n_top_logprobs = 0;
    o.sampling.top_k = 1;
    generate_alone(tiny, PROMPT, &o, &a);
    assert_true(a.logprobs[0] == 0.0f && a.last.n_top == 0);
}

/* A15, A16: penalties reach the sampler; what stands in the prompt is not generated. */
static void test_penalties_and_bias(void **state) {
    (void)state;
    calla_generate_options o = greedy_options(100);
    o.ignore_stop = true;
    o.sampling.repetition_penalty = 1000; /* positive logits vanish, negative ones grow: a token is not said twice, nor one of the prompt */
    o.sampling.presence_penalty = 1000;
    generate_alone(tiny, PROMPT, &o, &a);
    bool said[320] = {false};
    for (uint32_t i = 0; i < a.n; i++) {
        assert_false(said[a.ids[i]]);
        said[a.ids[i]] = true;
    }
    o = greedy_options(5);
    o.ignore_stop = true;
    int32_t id = 123;
    float bias = 1e6f;
    o.sampling.bias_ids = &id;
    o.sampling.bias = &bias;
    o.sampling.n_bias = 1;
    calla_session *s = open_session(tiny, PROMPT);
    start(s, &o, &a);
    id = 7; /* the arrays are copied */
    calla_session_wait(s);
    calla_session_close(s);
    for (int i = 0; i < 5; i++) assert_int_equal(a.ids[i], 123);
    /* presence counts generated tokens only: 45 stands in the prompt and may be said once */
    id = 45;
    bias = 500;
    o.sampling.presence_penalty = 1000;
    generate_alone(tiny, PROMPT, &o, &a);
    assert_int_equal(a.ids[0], 45);
    assert_int_not_equal(a.ids[1], 45);
    /* frequency: 500 is used up after two of 300 */
    o.sampling.presence_penalty = 0;
    o.sampling.frequency_penalty = 300;
    generate_alone(tiny, PROMPT, &o, &a);
    assert_true(a.ids[0] == 45 && a.ids[1] == 45 && a.ids[2] != 45);
}

typedef struct bad_option {
    const char *name;
    calla_sampling sampling;
} bad_option;

static void test_arguments(void **state) {
    (void)state;
    const float inf = INFINITY;
    const int32_t id = 320;
    const float one = 1;
    const bad_option bad[] = {
        {"temperature", {.temperature = -0.1f, .top_p = 1, .repetition_penalty = 1}},
        {"temperature", {.temperature = NAN, .top_p = 1, .repetition_penalty = 1}},
        {"top_p", {.top_p = 1.01f, .repetition_penalty = 1}},
        {"top_p", {.top_p = NAN, .repetition_penalty = 1}},
        {"min_p", {.top_p = 1, .min_p = -1, .repetition_penalty = 1}},
        {"presence_penalty", {.top_p = 1, .presence_penalty = NAN, .repetition_penalty = 1}},
        {"frequency_penalty", {.top_p = 1, .frequency_penalty = inf, .repetition_penalty = 1}},
        {"repetition_penalty", {.top_p = 1}},
        {"logit bias", {.top_p = 1, .repetition_penalty = 1, .bias_ids = &id, .bias = &one, .n_bias = 1}},
        {"logit bias", {.top_p = 1, .repetition_penalty = 1, .bias_ids = prompt, .bias = &inf, .n_bias = 1}},
        {"logit bias", {.top_p = 1, .repetition_penalty = 1, .bias_ids = NULL, .bias = &one, .n_bias = 1}},
    };
    calla_session *s = open_session(tiny, PROMPT);
    calla_error err;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        calla_generate_options o = {.sampling = bad[i].sampling};
        assert_int_equal(calla_session_generate(s, &o, transcript_event, &a, &err), CALLA_E_ARGUMENT);
        assert_non_null(strstr(err.message, bad[i].name));
    }
    calla_generate_options o = greedy_options(1);
    o.n_top_logprobs = CALLA_MAX_TOP_LOGPROBS + 1;
    assert_int_equal(calla_session_generate(s, &o, transcript_event, &a, &err), CALLA_E_ARGUMENT);
    const int32_t ids[2] = {3, 320}, negative[1] = {-1};
    assert_int_equal(calla_session_append(s, ids, 2, &err), CALLA_E_ARGUMENT);
    assert_non_null(strstr(err.message, "320"));
    assert_int_equal(calla_session_append(s, negative, 1, &err), CALLA_E_ARGUMENT);
    assert_int_equal(calla_session_tokens(s), 10); /* nothing of a refused append stays */
    calla_session_close(s);
    assert_int_equal(calla_session_open(tiny, &s, &err), CALLA_OK);
    o = greedy_options(1);
    assert_int_equal(calla_session_generate(s, &o, transcript_event, &a, &err), CALLA_E_ARGUMENT); /* nothing to go on from */
    calla_session_close(s);
    calla_session_close(NULL);
}

static void test_open_arguments(void **state) {
    (void)state;
    const char *dir = test_data("checkpoints/tiny-a");
    const struct {
        calla_engine_options o;
        calla_status status;
        const char *says;
    } bad[] = {
        {{.model_dir = dir, .ids_only = true, .device = "abacus"}, CALLA_E_ARGUMENT, "abacus"},
        {{.model_dir = dir, .ids_only = true, .context_tokens = 262145}, CALLA_E_ARGUMENT, "262144"},
        {{.model_dir = dir, .ids_only = true, .max_sequences = 100000}, CALLA_E_ARGUMENT, "sequences"},
        {{.model_dir = dir, .ids_only = true, .max_sequences = 8, .batch_rows = 7}, CALLA_E_ARGUMENT, "batch rows"},
        {{.model_dir = "/nowhere/at/all"}, CALLA_E_IO, "/nowhere/at/all"},
        {{.model_dir = dir}, CALLA_E_IO, "tokenizer.json"}, /* it has none: with ids_only only */
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        calla_engine *e = tiny;
        calla_error err;
        assert_int_equal(calla_engine_open(&bad[i].o, &e, &err), bad[i].status);
        assert_null(e);
        assert_non_null(strstr(err.message, bad[i].says));
    }
}

static int open_engines(void **state) {
    (void)state;
    const calla_engine_options o = {.model_dir = test_models("pocket"), .context_tokens = 4096, .max_sequences = 2};
    if (calla_engine_open(&o, &pocket, NULL)) return -1;
    tiny = open_tiny(512, 1, 64);
    return 0;
}

static int close_engines(void **state) {
    (void)state;
    calla_engine_close(pocket);
    calla_engine_close(tiny);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pocket_greedy), cmocka_unit_test(test_info),           cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_stop_ids),      cmocka_unit_test(test_forced_tokens),  cmocka_unit_test(test_seeds),
        cmocka_unit_test(test_turns),         cmocka_unit_test(test_logprobs),       cmocka_unit_test(test_penalties_and_bias),
        cmocka_unit_test(test_arguments),     cmocka_unit_test(test_open_arguments),
    };
    return cmocka_run_group_tests(tests, open_engines, close_engines);
}
