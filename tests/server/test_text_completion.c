/* POST /v1/completions on a scripted engine: forms of prompts and answers, log-probabilities, refusals. */
#include "unit.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "harness.h"

#define PATH "/v1/completions"
#define SAY(text) "<|im_start|>user\\n" text "<|im_end|>" /* what the scripted engine answers */

HARNESS_OF_FILE(NULL, NULL)

static json_object *post(const char *body, int status, reply *r) { return harness_ask(&h, PATH, body, status, r); }

static void close_reply(json_object *tree, reply *r) {
    json_object_put(tree);
    reply_free(r);
}

/* The texts of a stream's first choice put together; events: how many had the choice. */
static char *streamed_text(const char *body, size_t *events, char *finish, size_t cap) {
    reply r;
    buffer text = {0};
    buffer_append_str(&text, "");
    harness_post_to(&h, PATH, body, &r);
    assert_int_equal(r.status, 200);
    bool done = false;
    *events = 0;
    *finish = 0;
    for (char *line = r.body.data, *end; line && *line; line = end + 1) {
        end = strchr(line, '\n');
        assert_non_null(end);
        *end = 0;
        if (strncmp(line, "data: ", 6) != 0) continue;
        done = !strcmp(line, "data: [DONE]");
        if (done) continue;
        json_object *event = NULL;
        if (json_parse(line + 6, strlen(line + 6), "event", &event, NULL)) fail_msg("no JSON: %s", line);
        if (json_int(event, "choices.0.index") == 0) {
            ++*events;
            buffer_append_str(&text, json_str(event, "choices.0.text"));
            if (*json_str(event, "choices.0.finish_reason")) snprintf(finish, cap, "%s", json_str(event, "choices.0.finish_reason"));
        }
        json_object_put(event);
    }
    assert_true(done);
    reply_free(&r);
    return buffer_take(&text);
}

static void test_an_answer(void **state) {
    (void)state;
    reply r;
    json_object *tree = post("{\"model\":\"m\",\"prompt\":\"" SAY("one \\ud83e\\udd80 two") "\"}", 200, &r);
    assert_string_equal(json_str(tree, "object"), "text_completion");
    assert_int_equal(strncmp(json_str(tree, "id"), "cmpl-", 5), 0);
    assert_string_equal(json_str(tree, "model"), "m");
    assert_string_equal(json_str(tree, "choices.0.text"), "one \xF0\x9F\xA6\x80 two");
    assert_string_equal(json_str(tree, "choices.0.finish_reason"), "stop");
    assert_null(json_at(tree, "choices.0.logprobs"));
    assert_int_equal(json_int(tree, "usage.total_tokens"),
                     json_int(tree, "usage.prompt_tokens") + json_int(tree, "usage.completion_tokens"));
    close_reply(tree, &r);
    size_t events;
    char finish[16],
        *text = streamed_text("{\"stream\":true,\"prompt\":\"" SAY("one \\ud83e\\udd80 two") "\"}", &events, finish, sizeof finish);
    assert_string_equal(text, "one \xF0\x9F\xA6\x80 two");
    assert_string_equal(finish, "stop");
    assert_true(events > 3);
    mem_free(text);
}

/* Thoughts and calls are plain text here. */
static void test_text_is_left_alone(void **state) {
    (void)state;
    reply r;
    json_object *tree = post("{\"prompt\":\"" SAY("<think>a</think>b<tool_call>c</tool_call>") "\",\"enable_thinking\":true}", 200, &r);
    char header[256];
    assert_string_equal(json_str(tree, "choices.0.text"), "<think>a</think>b<tool_call>c</tool_call>");
    assert_string_equal(reply_header(&r, "x-calla-ignored", header), "enable_thinking");
    close_reply(tree, &r);
}

static void test_several_prompts_and_answers(void **state) {
    (void)state;
    reply r;
    json_object *tree = post("{\"prompt\":[\"" SAY("@choice a") "\",\"" SAY("@choice b") "\"],\"n\":2,\"echo\":true}", 200, &r);
    static const char *const want[] = {"<|im_start|>user\n@choice a<|im_end|>0:a", "<|im_start|>user\n@choice a<|im_end|>1:a",
                                       "<|im_start|>user\n@choice b<|im_end|>2:b", "<|im_start|>user\n@choice b<|im_end|>3:b"};
    for (int i = 0; i < 4; i++) {
        char path[32];
        snprintf(path, sizeof path, "choices.%d.text", i);
        assert_string_equal(json_str(tree, path), want[i]);
    }
    close_reply(tree, &r);
}

static void test_token_ids_are_a_prompt(void **state) {
    (void)state;
    reply r;
    harness_post_to(&h, "/tokenize", "{\"content\":\"" SAY("ids") "\"}", &r);
    json_object *tokens = reply_json_body(&r);
    buffer body = {0};
    buffer_printf(&body, "{\"echo\":true,\"prompt\":%s}", json_object_to_json_string(json_at(tokens, "tokens")));
    close_reply(tokens, &r);
    json_object *tree = post(body.data, 200, &r);
    assert_string_equal(json_str(tree, "choices.0.text"), "<|im_start|>user\nids<|im_end|>ids");
    close_reply(tree, &r);
    buffer_free(&body);
    size_t events;
    char finish[16], *text = streamed_text("{\"stream\":true,\"echo\":true,\"prompt\":[\"" SAY("x") "\"]}", &events, finish, sizeof finish);
    assert_string_equal(text, "<|im_start|>user\nx<|im_end|>x");
    mem_free(text);
}

static void test_no_tokens_at_all(void **state) {
    (void)state;
    reply r;
    json_object *tree = post("{\"prompt\":[\"a\",\"b\"],\"max_tokens\":0,\"echo\":true}", 200, &r);
    assert_string_equal(json_str(tree, "choices.1.text"), "b");
    assert_string_equal(json_str(tree, "choices.1.finish_reason"), "length");
    assert_int_equal(json_int(tree, "usage.completion_tokens"), 0);
    close_reply(tree, &r);
    size_t events;
    char finish[16],
        *text = streamed_text("{\"stream\":true,\"prompt\":\"a b\",\"max_tokens\":0,\"echo\":true}", &events, finish, sizeof finish);
    assert_string_equal(text, "a b");
    assert_string_equal(finish, "length");
    mem_free(text);
}

/* Appends the lists of choice 0 to those of sum. */
static void add_lists(json_object *tree, json_object *sum) {
    json_object_object_foreach(sum, name, all) {
        char path[64];
        snprintf(path, sizeof path, "choices.0.logprobs.%s", name);
        json_object *part = json_at(tree, path);
        if (json_object_is_type(part, json_type_array))
            for (size_t i = 0; i < json_object_array_length(part); i++)
                json_object_array_add(all, json_object_get(json_object_array_get_idx(part, i)));
    }
}

/* Everything that a request says of choice 0, as one string: a stream and a whole answer must say the same. */
static char *all_of(const char *fields, bool stream) {
    buffer body = {0}, text = {0}, out = {0};
    reply r;
    json_object *sum = json_tokener_parse("{\"tokens\":[],\"token_logprobs\":[],\"top_logprobs\":[],\"text_offset\":[]}");
    buffer_printf(&body, "{\"stream\":%s,%s}", stream ? "true" : "false", fields);
    harness_post_to(&h, PATH, body.data, &r);
    if (r.status != 200) fail_msg("%s: %s", body.data, r.body.data);
    buffer_append_str(&text, "");
    for (char *line = r.body.data, *end; line && *line; line = end) {
        end = stream ? line + strcspn(line, "\n") : line + strlen(line);
        if (*end) *end++ = 0;
        json_object *tree = json_tokener_parse(stream && *line ? line + strlen("data: ") : line);
        if (json_int(tree, "choices.0.index") == 0) {
            buffer_append_str(&text, json_str(tree, "choices.0.text"));
            add_lists(tree, sum);
        }
        json_object_put(tree);
    }
    buffer_printf(&out, "%s %s", text.data, json_object_to_json_string_ext(sum, JSON_C_TO_STRING_PLAIN));
    json_object_put(sum);
    buffer_free(&body);
    buffer_free(&text);
    reply_free(&r);
    return buffer_take(&out);
}

/* The prompt's own log-probabilities, in front of the answer's or alone; its first token has none. */
static void test_log_probabilities_of_the_prompt(void **state) {
    (void)state;
    static const char *const bodies[] = {
        "\"echo\":true,\"logprobs\":1,\"prompt\":\"ab c\",\"max_tokens\":0",
        "\"echo\":true,\"logprobs\":2,\"prompt\":\"" SAY("one \\ud83e\\udd80 two") "\"",
        "\"echo\":true,\"logprobs\":0,\"prompt\":\"" SAY("@endless a") "\",\"max_tokens\":3,\"stop\":\"user\"",
        "\"echo\":true,\"logprobs\":1,\"prompt\":[\"e\\u0301 x\",\"y\"],\"max_tokens\":0", /* normalized: e and accent become one letter */
        "\"echo\":true,\"logprobs\":1,\"prompt\":[220,99,220],\"max_tokens\":0",           /* of which one is a part of a letter */
    };
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        char *whole = all_of(bodies[i], false), *stream = all_of(bodies[i], true);
        assert_string_equal(whole, stream);
        mem_free(whole);
        mem_free(stream);
    }
    reply r;
    json_object *tree = post("{\"echo\":true,\"logprobs\":2,\"prompt\":\"" SAY("one two") "\",\"n\":2}", 200, &r);
    for (int choice = 0; choice < 2; choice++) {
        char path[40];
        snprintf(path, sizeof path, "choices.%d.logprobs", choice);
        json_object *l = json_at(tree, path), *values = json_at(l, "token_logprobs"), *tops = json_at(l, "top_logprobs");
        const size_t n = json_object_array_length(values), n_prompt = (size_t)json_int(tree, "usage.prompt_tokens");
        assert_true(n > n_prompt); /* the answer's behind the prompt's */
        assert_int_equal(json_object_array_length(tops), n);
        assert_null(json_object_array_get_idx(values, 0));
        assert_null(json_object_array_get_idx(tops, 0));
        assert_true(json_object_get_double(json_object_array_get_idx(values, 1)) == -0.5);
        assert_true(json_object_get_double(json_object_array_get_idx(values, n_prompt - 1)) == -0.5);
        assert_true(json_object_get_double(json_object_array_get_idx(values, n_prompt)) == -0.25);
        assert_int_equal(json_object_object_length(json_object_array_get_idx(tops, 1)), 2);
        assert_string_equal(json_str(l, "tokens.0"), "<|im_start|>");
        assert_int_equal(json_int(l, "text_offset.1"), 12);
    }
    close_reply(tree, &r);
    tree = post("{\"echo\":true,\"logprobs\":1,\"prompt\":[\"e\\u0301 x\"],\"max_tokens\":0}", 200, &r);
    assert_string_equal(json_str(tree, "choices.0.text"), "\xC3\xA9 x"); /* the text that the tokens are */
    close_reply(tree, &r);
}

static void test_stop_strings_and_limits(void **state) {
    (void)state;
    reply r;
    json_object *tree = post("{\"prompt\":\"" SAY("The quick brown fox") "\",\"stop\":\"k bro\"}", 200, &r);
    assert_string_equal(json_str(tree, "choices.0.text"), "The quic");
    assert_string_equal(json_str(tree, "choices.0.finish_reason"), "stop");
    close_reply(tree, &r);
    tree = post("{\"prompt\":\"" SAY("@endless a") "\",\"max_tokens\":3}", 200, &r);
    assert_string_equal(json_str(tree, "choices.0.finish_reason"), "length");
    assert_int_equal(json_int(tree, "usage.completion_tokens"), 3);
    close_reply(tree, &r);
}

static void test_log_probabilities(void **state) {
    (void)state;
    reply r;
    json_object *tree = post("{\"prompt\":\"" SAY("one \\ud83e\\udd80 two") "\",\"logprobs\":2}", 200, &r);
    json_object *l = json_at(tree, "choices.0.logprobs");
    const size_t n = json_object_array_length(json_at(l, "tokens"));
    assert_int_equal(json_object_array_length(json_at(l, "token_logprobs")), n);
    assert_int_equal(json_object_array_length(json_at(l, "top_logprobs")), n);
    assert_int_equal(json_object_array_length(json_at(l, "text_offset")), n);
    assert_string_equal(json_str(l, "tokens.0"), "one");
    assert_int_equal(strncmp(json_str(l, "tokens.1"), "bytes:\\x20\\xf0", 14), 0); /* a part of the crab */
    char path[32];
    snprintf(path, sizeof path, "text_offset.%zu", n - 1);
    assert_int_equal(json_int(l, path), 5); /* " two" behind five characters */
    assert_int_equal(json_object_object_length(json_at(l, "top_logprobs.0")), 2);
    close_reply(tree, &r);
    tree = post("{\"prompt\":\"" SAY("one") "\",\"logprobs\":0}", 200, &r); /* the token itself is always listed */
    assert_int_equal(json_object_object_length(json_at(tree, "choices.0.logprobs.top_logprobs.0")), 1);
    assert_non_null(json_at(tree, "choices.0.logprobs.top_logprobs.0.one"));
    close_reply(tree, &r);
}

static void test_progress_is_told_when_asked_for(void **state) {
    (void)state;
    reply r;
    harness_post_to(
        &h, PATH,
        "{\"stream\":true,\"return_progress\":true,\"stream_options\":{\"include_usage\":true},\"prompt\":\"" SAY("@prompt=2x50 one") "\"}",
        &r);
    const char *told = strstr(r.body.data, "\"choices\":[],\"prompt_progress\":{\"processed\":"), *text = strstr(r.body.data, "\"text\"");
    assert_true(told && text && told < text);
    assert_non_null(strstr(told, ",\"cached\":0},\"usage\":null}\n"));
    reply_free(&r);
}

/* There are no turns here: what concerns them has no effect, and is named. */
static void test_fields_of_turns_are_named(void **state) {
    (void)state;
    static const char *const fields[] = {"enable_thinking\":true",
                                         "think\":\"low\"",
                                         "thinking_budget\":9",
                                         "thinking_budget_tokens\":9",
                                         "reasoning_budget\":9",
                                         "thinking_token_budget\":9",
                                         "reasoning_effort\":\"low\"",
                                         "reasoning\":{}",
                                         "parallel_tool_calls\":false",
                                         "preserve_thinking\":true",
                                         "thinking\":{}",
                                         "continue_final_message\":false",
                                         "chat_template_kwargs\":{\"enable_thinking\":true}"};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        char body[160], header[256], name[32];
        reply r;
        snprintf(body, sizeof body, "{\"prompt\":\"" SAY("one") "\",\"%s}", fields[i]);
        json_object *tree = post(body, 200, &r);
        snprintf(name, sizeof name, "%.*s", (int)strcspn(fields[i], "\""), fields[i]);
        assert_string_equal(reply_header(&r, "x-calla-ignored", header), name);
        assert_string_equal(json_str(tree, "choices.0.text"), "one");
        close_reply(tree, &r);
    }
}

static void test_a_failure_in_a_stream(void **state) {
    (void)state;
    reply r;
    harness_post_to(&h, PATH, "{\"stream\":true,\"prompt\":\"" SAY("@fail=2 a b c d") "\"}", &r);
    assert_non_null(strstr(r.body.data, "data: {\"error\":{\"message\":\"the scripted device failed\""));
    assert_null(strstr(r.body.data, "[DONE]"));
    reply_free(&r);
}

static void test_refusals_name_the_field(void **state) {
    (void)state;
    static const struct {
        const char *body, *param;
    } cases[] = {
        {"{}", "prompt"},
        {"{\"prompt\":{}}", "prompt"},
        {"{\"prompt\":\"\"}", "prompt"},
        {"{\"prompt\":[]}", "prompt"},
        {"{\"prompt\":[true]}", "prompt"},
        {"{\"prompt\":[\"a\",7]}", "prompt"},
        {"{\"prompt\":[1,99999999]}", "prompt"},
        {"{\"prompt\":\"a\",\"suffix\":\"b\"}", "suffix"},
        {"{\"prompt\":\"a\",\"best_of\":3}", "best_of"},
        {"{\"prompt\":\"a\",\"logprobs\":21}", "logprobs"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        reply r;
        json_object *tree = post(cases[i].body, 400, &r);
        assert_string_equal(json_str(tree, "error.param"), cases[i].param);
        close_reply(tree, &r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_answer),
        cmocka_unit_test(test_text_is_left_alone),
        cmocka_unit_test(test_several_prompts_and_answers),
        cmocka_unit_test(test_token_ids_are_a_prompt),
        cmocka_unit_test(test_no_tokens_at_all),
        cmocka_unit_test(test_stop_strings_and_limits),
        cmocka_unit_test(test_log_probabilities),
        cmocka_unit_test(test_log_probabilities_of_the_prompt),
        cmocka_unit_test(test_progress_is_told_when_asked_for),
        cmocka_unit_test(test_fields_of_turns_are_named),
        cmocka_unit_test(test_a_failure_in_a_stream),
        cmocka_unit_test(test_refusals_name_the_field),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
