/* Fields that other servers know, in every dialect: honoured under their foreign names, refused by name where they would change the answer, and
 * left alone where their value asks for nothing.  And what a reply says of how its answer was made. */
#include "unit.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "harness.h"

HARNESS_OF_FILE(NULL, NULL)

#define USER(text) "{\"role\":\"user\",\"content\":\"" text "\"}"
#define OFF "\"enable_thinking\":false,"

static const struct {
    const char *path, *body; /* says "@options", so that the answer is what the engine was asked for */
} dialects[] = {
    {"/v1/chat/completions", OFF "\"messages\":[" USER("@options ") "]"},
    {"/v1/responses", OFF "\"input\":\"@options \""},
    {"/v1/messages", OFF "\"messages\":[" USER("@options ") "]"},
    {"/v1/completions", "\"prompt\":\"<|im_start|>user\\n@options <|im_end|>\""},
};
enum { DIALECTS = sizeof dialects / sizeof *dialects };

static json_object *ask(size_t dialect, const char *more, int status, reply *r) {
    char body[1024];
    snprintf(body, sizeof body, "{%s,%s}", dialects[dialect].body, more);
    return harness_ask(&h, dialects[dialect].path, body, status, r);
}

static void test_foreign_names_are_honoured(void **state) {
    (void)state;
    static const struct {
        const char *field, *option;
    } rows[] = {
        {"\"max_tokens\":700", "max_tokens=700 "},        {"\"max_completion_tokens\":700", "max_tokens=700 "},
        {"\"max_output_tokens\":700", "max_tokens=700 "}, {"\"n_predict\":700", "max_tokens=700 "},
        {"\"num_predict\":700", "max_tokens=700 "},       {"\"max_new_tokens\":700", "max_tokens=700 "},
        {"\"repeat_penalty\":1.1", "repetition=1.1 "},    {"\"ignore_eos\":true", "ignore_stop=1 "},
        {"\"stop\":\" top_p\"", "temperature="},          {"\"stop_sequences\":[\" top_p\"]", "temperature="},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (size_t k = 0; k < DIALECTS; k++) {
            reply r;
            char ignored[256], more[200];
            /* ignore_eos: the script would begin again */
            snprintf(more, sizeof more, "%s%s", rows[i].field, strstr(rows[i].field, "eos") ? ",\"max_tokens\":300" : "");
            json_object *tree = ask(k, more, 200, &r);
            const char *text = r.body.data;
            if (!strstr(text, rows[i].option)) fail_msg("%s %s: %s", dialects[k].path, rows[i].field, text);
            if (strstr(rows[i].field, "stop")) assert_null(strstr(text, "min_p="));
            assert_string_equal(reply_header(&r, "x-calla-ignored", ignored), "");
            json_object_put(tree);
            reply_free(&r);
        }
}

/* -1 is all that the window has left, and so is leaving it out. */
static void test_no_limit(void **state) {
    (void)state;
    static const char *const rows[] = {"\"n_predict\":-1", "\"num_predict\":-2", "\"max_new_tokens\":-1", "\"max_tokens\":-1",
                                       "\"user\":\"u\""};
    char want[64] = "";
    for (size_t i = sizeof rows / sizeof *rows; i--;) {
        reply r;
        json_object *tree = ask(0, rows[i], 200, &r);
        const char *found = strstr(r.body.data, "max_tokens=");
        assert_non_null(found);
        if (!*want) snprintf(want, sizeof want, "%.*s", (int)strcspn(found, " "), found);
        assert_int_equal(strncmp(found, want, strlen(want)), 0);
        json_object_put(tree);
        reply_free(&r);
    }
}

static void test_what_changes_the_answer_is_refused(void **state) {
    (void)state;
    static const char *const rows[] = {
        "\"min_tokens\":5",         "\"typical_p\":0.9",
        "\"mirostat\":2",           "\"xtc_probability\":0.5",
        "\"dry_multiplier\":0.8",   "\"use_beam_search\":true",
        "\"repeat_last_n\":64",     "\"truncate_prompt_tokens\":100",
        "\"bad_words\":[\"x\"]",    "\"allowed_token_ids\":[1]",
        "\"options\":{\"seed\":1}", "\"format\":\"json\"",
        "\"chat_template\":\"{}\"", "\"prompt_logprobs\":1",
        "\"max_length\":100",       "\"n_predict\":0",
        "\"stop_token_ids\":[-1]",  "\"stop_token_ids\":7",
        "\"num_beams\":4",          "\"include_stop_str_in_output\":true",
        "\"do_sample\":false",      "\"reasoning_format\":\"none\"",
        "\"lora\":[{\"id\":0}]",    "\"max_output_tokens\":0",
        "\"guidance_scale\":1.5",   "\"add_generation_prompt\":false",
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (size_t k = 0; k < DIALECTS; k++) {
            char name[64], want[80];
            snprintf(name, sizeof name, "%.*s", (int)strcspn(rows[i] + 1, "\""), rows[i] + 1);
            json_object *tree = ask(k, rows[i], 400, NULL);
            snprintf(want, sizeof want, "%s", json_str(tree, "error.message"));
            if (strncmp(want, name, strlen(name)) != 0) fail_msg("%s %s: %s", dialects[k].path, rows[i], json_object_to_json_string(tree));
            json_object_put(tree);
        }
}

/* What belongs to another dialect says so. */
static void test_requests_at_the_wrong_place(void **state) {
    (void)state;
    static const struct {
        const char *path, *body, *words;
    } rows[] = {
        {"/v1/responses", "{\"messages\":[" USER("Hi") "]}", "/v1/chat/completions"},
        {"/v1/completions", "{\"messages\":[" USER("Hi") "]}", "/v1/chat/completions"},
        {"/v1/chat/completions", "{\"input\":\"Hi\"}", "/v1/responses"},
        {"/v1/messages", "{\"prompt\":\"Hi\"}", "/v1/completions"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_object *tree = harness_ask(&h, rows[i].path, rows[i].body, 400, NULL);
        assert_non_null(strstr(json_str(tree, "error.message"), rows[i].words));
        json_object_put(tree);
    }
}

/* As programs send them that send everything. */
static void test_values_that_ask_for_nothing(void **state) {
    (void)state;
    static const char neutral[] =
        "\"min_tokens\":0,\"typical_p\":1.0,\"typical\":1,\"tfs_z\":1,\"top_a\":0,\"mirostat\":0,\"mirostat_tau\":5,\"dynatemp_range\":0,"
        "\"xtc_probability\":0,\"dry_multiplier\":0,\"use_beam_search\":false,\"length_penalty\":1,\"repeat_last_n\":-1,\"bad_words\":[],"
        "\"options\":{},\"skip_special_tokens\":true,\"include_stop_str_in_output\":false,\"ignore_eos\":false,\"n_probs\":0,"
        "\"stop_token_ids\":[],\"add_generation_prompt\":true,\"n_predict\":null,\"do_sample\":true,\"num_beams\":1,\"lora\":[],"
        "\"reasoning_format\":\"auto\",\"top_n_sigma\":-1,\"guidance_scale\":1.0,\"negative_prompt\":\"\",\"cache_prompt\":true,\"id_"
        "slot\":-1";
    for (size_t k = 0; k < DIALECTS; k++) json_object_put(ask(k, neutral, 200, NULL));
}

static void test_ids_that_end_the_answer(void **state) {
    (void)state;
    json_object *ids = harness_ask(&h, "/tokenize", "{\"content\":\" three\"}", 200, NULL);
    char json[300];
    for (int stream = 0; stream < 2; stream++) {
        snprintf(json, sizeof json, "{" OFF "\"stream\":%s,\"stop_token_ids\":[%d],\"messages\":[" USER("one two three four") "]}",
                 stream ? "true" : "false", (int)json_int(ids, "tokens.0"));
        reply r;
        stream_sum sum = {0};
        harness_post(&h, json, &r);
        assert_int_equal(r.status, 200);
        if (stream) {
            stream_read(&r, 0, &sum);
            assert_string_equal(sum.content.data, "one two");
            assert_string_equal(sum.finish, "stop");
            stream_free(&sum);
        } else {
            assert_non_null(strstr(r.body.data, "\"content\":\"one two\""));
            assert_non_null(strstr(r.body.data, "\"finish_reason\":\"stop\""));
        }
        reply_free(&r);
    }
    json_object_put(ids);
}

/* A last message of the assistant is continued, unless the client says that it is not. */
static void test_the_final_message(void **state) {
    (void)state;
#define LAST "{\"messages\":[" USER("Hi") ",{\"role\":\"assistant\",\"content\":\"Well\"}]"
    static const struct {
        const char *body, *end;
    } rows[] = {
        {LAST "}", "Well"},
        {LAST ",\"continue_final_message\":true}", "Well"},
        {LAST ",\"continue_final_message\":false}", "Well<|im_end|>\n<|im_start|>assistant\n<think>\n"},
        {"{\"messages\":[" USER("Hi") "],\"continue_final_message\":false}", "Hi<|im_end|>\n<|im_start|>assistant\n<think>\n"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_object *tree = harness_ask(&h, "/apply-template", rows[i].body, 200, NULL);
        const char *prompt = json_str(tree, "prompt");
        const size_t n = strlen(prompt), n_end = strlen(rows[i].end);
        if (n < n_end || strcmp(prompt + n - n_end, rows[i].end) != 0) fail_msg("%s: %s", rows[i].body, prompt);
        json_object_put(tree);
    }
    json_object *tree =
        harness_ask(&h, "/v1/chat/completions", "{\"messages\":[" USER("Hi") "],\"continue_final_message\":true}", 400, NULL);
    assert_string_equal(json_str(tree, "error.param"), "continue_final_message");
    json_object_put(tree);
}

/* A16: what the answer was made with, once every default was filled in, streamed or not; with the seed it can be had again. */
static void test_a16_effective_sampling_is_told(void **state) {
    (void)state;
    static const char *const want[] = {
        "temperature=0.7 top_p=0.8 top_k=20 min_p=0 presence_penalty=1.5 frequency_penalty=2 repetition_penalty=1 seed=5 max_tokens=90",
        "temperature=1 top_p=0.95 top_k=20 min_p=0 presence_penalty=0 frequency_penalty=2 repetition_penalty=1 seed=5 max_tokens=90",
    };
    for (size_t k = 0; k < DIALECTS; k++)
        for (int stream = 0; stream < 2; stream++) {
            char body[512], header[256];
            reply r;
            snprintf(body, sizeof body, "{%s,\"frequency_penalty\":2,\"seed\":5,\"max_tokens\":90,\"stream\":%s}", dialects[k].body,
                     stream ? "true" : "false");
            harness_post_to(&h, dialects[k].path, body, &r);
            assert_int_equal(r.status, 200);
            assert_string_equal(reply_header(&r, "x-calla-sampling", header), want[k == 3]); /* no turns, no mode: the checkpoint's own */
            reply_free(&r);
        }
    char first[256], second[256];
    reply r;
    json_object_put(ask(0, "\"user\":\"u\"", 200, &r));
    const char *seed = strstr(reply_header(&r, "x-calla-sampling", first), " seed=");
    long long drawn = -1;
    assert_int_equal(seed ? sscanf(seed, " seed=%lld", &drawn) : 0, 1);
    assert_true(drawn >= 0 && drawn < 1ll << 53); /* a client that reads it as a double can send it back */
    reply_free(&r);
    json_object_put(ask(0, "\"user\":\"u\"", 200, &r));
    assert_string_not_equal(reply_header(&r, "x-calla-sampling", second), first); /* another seed */
    reply_free(&r);
    json_object_put(harness_ask(&h, "/tokenize", "{\"content\":\"x\"}", 200, &r));
    assert_string_equal(reply_header(&r, "x-calla-sampling", first), "");
    reply_free(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_foreign_names_are_honoured),
        cmocka_unit_test(test_no_limit),
        cmocka_unit_test(test_what_changes_the_answer_is_refused),
        cmocka_unit_test(test_values_that_ask_for_nothing),
        cmocka_unit_test(test_requests_at_the_wrong_place),
        cmocka_unit_test(test_ids_that_end_the_answer),
        cmocka_unit_test(test_the_final_message),
        cmocka_unit_test(test_a16_effective_sampling_is_told),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
