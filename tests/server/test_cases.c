/* test_cases.c: what users of other servers reported and a running server alone can show, in every dialect.  The numbers are those of the
 * project's case log; tests of other cases carry their numbers where they are.  The scripted engine answers what the user says. */
#include "unit.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "harness.h"

HARNESS_OF_FILE(NULL, NULL)

#define CHAT "/v1/chat/completions"
#define MESSAGES "/v1/messages"
#define RESPONSES "/v1/responses"
#define COMPLETIONS "/v1/completions"
#define OFF "\"enable_thinking\":false,"
#define USER(text) "{\"role\":\"user\",\"content\":\"" text "\"}"
#define ASSISTANT(text) "{\"role\":\"assistant\",\"content\":\"" text "\"}"
#define SYSTEM(text) "{\"role\":\"system\",\"content\":\"" text "\"}"

static json_object *post(const char *path, const char *json, int status) { return harness_ask(&h, path, json, status, NULL); }

/* The answer's text, wherever the dialect puts it. */
static const char *text_of(json_object *tree) {
    static const char *const places[] = {"choices.0.message.content", "choices.0.text", "content.0.text", "output.0.content.0.text"};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (*json_str(tree, places[i])) return json_str(tree, places[i]);
    return "";
}

static void expect_text(const char *path, const char *json, const char *text) {
    json_object *tree = post(path, json, 200);
    if (strcmp(text_of(tree), text) != 0) fail_msg("%s %s: %s", path, json, json_object_to_json_string(tree));
    json_object_put(tree);
}

/* A01: system messages that are not the first, with the same prompt in all dialects. */
static void test_a01_system_messages_anywhere(void **state) {
    (void)state;
#define TURNS USER("One.") "," ASSISTANT("Two.") "," SYSTEM("Be brief.") "," USER("Paris.")
    json_object *chat = post(CHAT, "{" OFF "\"messages\":[" TURNS "]}", 200);
    json_object *messages = post(MESSAGES, "{" OFF "\"max_tokens\":20,\"messages\":[" TURNS "]}", 200);
    json_object *responses = post(RESPONSES, "{" OFF "\"input\":[" TURNS "]}", 200);
    assert_string_equal(text_of(chat), "Paris.");
    assert_string_equal(text_of(messages), "Paris.");
    assert_string_equal(text_of(responses), "Paris.");
    const int64_t tokens = json_int(chat, "usage.prompt_tokens");
    assert_true(tokens > 0);
    assert_int_equal(json_int(messages, "usage.input_tokens"), tokens);
    assert_int_equal(json_int(responses, "usage.input_tokens"), tokens);
    json_object_put(chat), json_object_put(messages), json_object_put(responses);
#define TWO "{\"role\":\"developer\",\"content\":\"A\"},{\"role\":\"developer\",\"content\":\"B\"}," USER("Paris.")
    expect_text(CHAT, "{" OFF "\"messages\":[" TWO "]}", "Paris.");
    expect_text(RESPONSES, "{" OFF "\"input\":[" TWO "]}", "Paris.");
}

/* All that a stream says, its log-probabilities aside: the letters of each delta, whatever the dialect calls it. */
static char *streamed(const char *path, const char *json) {
    static const char *const places[] = {"choices.0.delta.content", "choices.0.text", "delta.text", "delta"};
    reply r;
    buffer out = {0};
    buffer_append_str(&out, "");
    harness_post_to(&h, path, json, &r);
    if (r.status != 200) fail_msg("%s %s: %d %s", path, json, r.status, r.body.data);
    for (char *line = strtok(r.body.data, "\n"); line; line = strtok(NULL, "\n")) {
        if (strncmp(line, "data: {", 7) != 0) continue;
        json_object *event = json_tokener_parse(line + 6);
        const char *type = json_str(event, "type");
        for (size_t i = 0; i < sizeof places / sizeof *places && !strstr(type, "reasoning"); i++)
            if (*json_str(event, places[i])) {
                buffer_append_str(&out, json_str(event, places[i]));
                break;
            }
        json_object_put(event);
    }
    reply_free(&r);
    return buffer_take(&out);
}

/* A10: nothing of a stop string is sent, wherever the tokens cut it, streamed or not, behind a thought or without one; within the thought
 * it stops nothing. */
static void test_a10_stop_strings(void **state) {
    (void)state;
#define FOX "The quick brown fox.\\nUser: more"
    static const struct {
        const char *stop, *text;
    } stops[] = {{"ck br", "The qui"}, {"\\nUser:", "The quick brown fox."}, {"quick brown fox", "The "}};
    static const struct {
        const char *path, *name, *body;
    } rows[] = {
        {CHAT, "stop", OFF "\"messages\":[" USER(FOX) "]"},
        {CHAT, "stop", "\"messages\":[" USER("User: ck br quick brown fox</think>" FOX) "]"},
        {MESSAGES, "stop_sequences", "\"max_tokens\":90,\"messages\":[" USER(FOX) "]"},
        {COMPLETIONS, "stop", "\"prompt\":\"<|im_start|>user\\n" FOX "<|im_end|>\\n<|im_start|>assistant\\n\""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (size_t k = 0; k < sizeof stops / sizeof *stops; k++) {
            char json[512];
            snprintf(json, sizeof json, "{%s,\"%s\":[\"%s\"]}", rows[i].body, rows[i].name, stops[k].stop);
            json_object *tree = post(rows[i].path, json, 200);
            assert_string_equal(text_of(tree), stops[k].text);
            assert_string_equal(json_str(tree, *json_str(tree, "stop_reason") ? "stop_reason" : "choices.0.finish_reason"),
                                *json_str(tree, "stop_reason") ? "stop_sequence" : "stop");
            json_object_put(tree);
            snprintf(json, sizeof json, "{%s,\"%s\":[\"%s\"],\"stream\":true}", rows[i].body, rows[i].name, stops[k].stop);
            char *text = streamed(rows[i].path, json);
            assert_string_equal(text, stops[k].text);
            mem_free(text);
        }
}

/* A03, A05, A06: slips of the model reach the client as calls or as text, and never as an error; streamed ones show no tags. */
static void test_a06_slips_are_answers(void **state) {
    (void)state;
#define FUNCTION "<function=f>\\n<parameter=a>\\n1\\n</parameter>\\n"
#define CALLED "f({\"a\":\"1\"});"
    static const struct {
        const char *say, *calls, *content;
    } rows[] = {
        {"I look.\\n<tool_call>\\n" FUNCTION "</function>\\n</tool_call>", CALLED, ""}, /* the thought is open */
        {"</think><tool_call>\\n" FUNCTION "</parameter>\\n</function>\\n</tool_call>", CALLED, ""},
        {"</think>" FUNCTION "</function>", CALLED, ""},
        {"</think><invoke>\\n" FUNCTION "</function>\\n</invoke>", CALLED, "<invoke></invoke>"},
        {"</think><function=f>\\n</function>", "f({});", ""}, /* without what is required: letters are held to nothing */
        {"</think><function=unknown>\\n</function>", "", "<function=unknown>\n</function>"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char json[1024];
        reply r;
        stream_sum s;
        snprintf(json, sizeof json,
                 "{\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}],\"tools\":[{\"type\":\"function\",\"function\":{"
                 "\"name\":"
                 "\"f\",\"parameters\":{\"properties\":{\"a\":{\"type\":\"string\"}},\"required\":[\"a\"]}}}]}",
                 rows[i].say);
        harness_post(&h, json, &r);
        assert_int_equal(r.status, 200);
        stream_read(&r, 0, &s);
        assert_string_equal(s.calls.data, rows[i].calls);
        assert_string_equal(s.content.data, rows[i].content);
        assert_string_equal(s.finish, *rows[i].calls ? "tool_calls" : "stop");
        if (!i) assert_string_equal(s.reasoning.data, "I look.");
        stream_free(&s);
        reply_free(&r);
    }
}

/* A12: half a surrogate pair, which editors cut and agents resend for ever: U+FFFD, and never a refusal. */
static void test_a12_half_a_surrogate_pair(void **state) {
    (void)state;
#define SAID "a\\ud83d b\\udd80 \\ud83e\\udd80."
#define GOT "a\xEF\xBF\xBD b\xEF\xBF\xBD \xF0\x9F\xA6\x80."
    expect_text(CHAT, "{" OFF "\"messages\":[" USER(SAID) "]}", GOT);
    expect_text(MESSAGES, "{\"max_tokens\":20,\"messages\":[" USER(SAID) "]}", GOT);
    expect_text(RESPONSES, "{" OFF "\"input\":[" USER(SAID) "]}", GOT);
    expect_text(COMPLETIONS, "{\"prompt\":\"<|im_start|>user\\n" SAID "<|im_end|>\\n<|im_start|>assistant\\n\"}", GOT);
}

/* Takes the next event of a stream; NULL at its end. */
static json_object *next_event(char **at) {
    char *data = strstr(*at, "data: "), *end = data ? strchr(data, '\n') : NULL;
    if (!end || data[6] != '{') return NULL;
    *end = 0;
    *at = end + 1;
    json_object *tree = json_tokener_parse(data + 6);
    assert_non_null(tree);
    return tree;
}

/* A13: a chunk of usage, without choices and the last of all, for those who asked for it and nobody else. */
static void check_usage_chunk(const char *path, const char *body, const char *more, bool wanted) {
    char json[512];
    snprintf(json, sizeof json, "{%s,\"stream\":true%s}", body, more);
    reply r;
    harness_post_to(&h, path, json, &r);
    assert_int_equal(r.status, 200);
    char *at = r.body.data;
    size_t chunks = 0, last = 0, n = 0;
    for (json_object *event; (event = next_event(&at)); json_object_put(event)) {
        n++;
        json_object *choices = json_at(event, "choices"), *usage = json_at(event, "usage");
        assert_true(json_object_is_type(choices, json_type_array));
        if (json_object_array_length(choices) > 0) {
            assert_true(!usage || json_object_is_type(usage, json_type_null));
            continue;
        }
        chunks++, last = n;
        assert_true(json_int(event, "usage.prompt_tokens") > 0 && json_int(event, "usage.completion_tokens") > 0);
        assert_true(json_int(event, "usage.prompt_tokens_details.cached_tokens") >= 0);
    }
    if (chunks != wanted || (wanted && last != n))
        fail_msg("%s %s: %zu chunks of usage, the last is %zu of %zu", path, json, chunks, last, n);
    assert_non_null(strstr(at, "data: [DONE]"));
    reply_free(&r);
}

static void test_a13_usage_on_request(void **state) {
    (void)state;
    static const struct {
        const char *path, *body;
    } rows[] = {{CHAT, OFF "\"messages\":[" USER("Paris.") "]"},
                {COMPLETIONS, "\"prompt\":\"<|im_start|>user\\nParis.<|im_end|>\\n<|im_start|>assistant\\n\""}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_usage_chunk(rows[i].path, rows[i].body, "", false);
        check_usage_chunk(rows[i].path, rows[i].body, ",\"stream_options\":{}", false);
        check_usage_chunk(rows[i].path, rows[i].body, ",\"stream_options\":{\"include_usage\":false}", false);
        check_usage_chunk(rows[i].path, rows[i].body, ",\"stream_options\":{\"include_usage\":true}", true);
    }
}

/* A14: the log-probabilities of a stream are those of the whole answer. */
static void test_a14_logprobs_of_a_stream(void **state) {
    (void)state;
#define ASK OFF "\"messages\":[" USER("@endless one two \xF0\x9F\xA6\x80 three") "],\"logprobs\":true,\"top_logprobs\":3,\"max_tokens\":8"
    json_object *tree = post(CHAT, "{" ASK "}", 200), *want = json_at(tree, "choices.0.logprobs.content"), *got = json_object_new_array();
    assert_int_equal(json_object_array_length(want), 8);
    for (size_t i = 0; i < 8; i++)
        assert_int_equal(json_object_array_length(json_at(json_object_array_get_idx(want, i), "top_logprobs")), 3);
    reply r;
    harness_post_to(&h, CHAT, "{" ASK ",\"stream\":true}", &r);
    char *at = r.body.data;
    for (json_object *event; (event = next_event(&at)); json_object_put(event)) {
        json_object *list = json_at(event, "choices.0.logprobs.content");
        for (size_t i = 0; list && i < json_object_array_length(list); i++)
            json_object_array_add(got, json_object_get(json_object_array_get_idx(list, i)));
    }
    assert_string_equal(json_object_to_json_string(got), json_object_to_json_string(want));
    reply_free(&r);
    json_object_put(got), json_object_put(tree);
}

/* A17: what does not fit is refused with both numbers, whichever message is the long one; nothing is dropped. */
static void test_a17_prompts_that_do_not_fit(void **state) {
    (void)state;
    buffer words = {0};
    for (int i = 0; i < 4200; i++) buffer_append_str(&words, "word ");
    static const struct {
        const char *path, *before, *after;
    } rows[] = {
        {CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"The secret is blue. ", "What is it?\"}]}"},
        {CHAT, "{\"stream\":true,\"messages\":[{\"role\":\"system\",\"content\":\"", "\"}," USER("Hi") "]}"},
        {CHAT,
         "{\"messages\":[" SYSTEM("S") "," USER("Look.") ",{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"c\",\"type\":"
                                                         "\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]},{\"role\":"
                                                         "\"tool\",\"tool_call_id\":\"c\",\"content\":\"",
         "\"}]}"},
        {MESSAGES, "{\"max_tokens\":9,\"system\":\"S\",\"messages\":[{\"role\":\"user\",\"content\":\"", "\"}]}"},
        {MESSAGES,
         "{\"max_tokens\":9,\"stream\":true,\"messages\":[" USER("Look.") ",{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\","
                                                                          "\"id\":\"c\",\"name\":\"f\",\"input\":{}}]},{\"role\":\"user\","
                                                                          "\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"c\","
                                                                          "\"content\":\"",
         "\"}]}]}"},
        {RESPONSES, "{\"instructions\":\"", "\",\"input\":\"Hi\"}"},
        {RESPONSES,
         "{\"input\":[" USER("Look.") ",{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"f\",\"arguments\":\"{}\"},"
                                      "{\"type\":\"function_call_output\",\"call_id\":\"c\",\"output\":\"",
         "\"}]}"},
        {COMPLETIONS, "{\"prompt\":\"", "\"}"},
    };
    const uint32_t generated = fake_engine_stats(h.engine).generated;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        buffer json = {0};
        buffer_printf(&json, "%s%s%s", rows[i].before, words.data, rows[i].after);
        json_object *tree = post(rows[i].path, json.data, 400);
        const char *message = json_str(tree, "error.message"), *second = strpbrk(message, "0123456789");
        unsigned a = 0, b = 0;
        if (second) sscanf(second, "%u", &a), second += strspn(second, "0123456789"), second = strpbrk(second, "0123456789");
        if (second) sscanf(second, "%u", &b);
        if ((a == 4096 ? b : a) <= 4200 || (a != 4096 && b != 4096)) fail_msg("%s row %zu: %s", rows[i].path, i, message);
        if (strcmp(rows[i].path, MESSAGES) != 0) assert_string_equal(json_str(tree, "error.code"), "context_length_exceeded");
        json_object_put(tree);
        buffer_free(&json);
    }
    assert_int_equal(fake_engine_stats(h.engine).generated, generated);
    buffer_free(&words);
}

/* A31: each way to ask for no thoughts, in the dialect that has it. */
static void test_a31_no_thoughts(void **state) {
    (void)state;
    static const struct {
        const char *path, *body;
    } rows[] = {
        {CHAT, "{\"enable_thinking\":false,\"messages\":[" USER("Plain.") "]}"},
        {CHAT, "{\"chat_template_kwargs\":{\"enable_thinking\":false},\"messages\":[" USER("Plain.") "]}"},
        {CHAT, "{\"reasoning_effort\":\"none\",\"messages\":[" USER("Plain.") "]}"},
        {CHAT, "{\"think\":false,\"messages\":[" USER("Plain.") "]}"},
        {RESPONSES, "{\"reasoning\":{\"effort\":\"none\"},\"input\":[" USER("Plain.") "]}"},
        {MESSAGES, "{\"max_tokens\":9,\"thinking\":{\"type\":\"disabled\"},\"messages\":[" USER("Plain.") "]}"},
        /* of two that contradict each other the one nearer to the top counts */
        {CHAT, "{\"enable_thinking\":false,\"chat_template_kwargs\":{\"enable_thinking\":true},\"messages\":[" USER("Plain.") "]}"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_object *tree = post(rows[i].path, rows[i].body, 200);
        if (strcmp(text_of(tree), "Plain.") != 0) fail_msg("row %zu: %s", i, json_object_to_json_string(tree));
        assert_true(json_int(tree, "usage.completion_tokens_details.reasoning_tokens") <= 0);
        assert_true(json_int(tree, "usage.output_tokens_details.reasoning_tokens") <= 0);
        json_object_put(tree);
    }
}

/* A32: a last message of the assistant's is taken, with thoughts and without: an empty one ignored, a beginning continued. */
static void test_a32_a_last_message_of_the_assistant(void **state) {
    (void)state;
    static const char *const last[] = {"", "Half a", "<think>\\nHm.\\n</think>\\n\\nHalf a"};
    static const struct {
        const char *path, *before;
    } rows[] = {{CHAT, "\"messages\""}, {MESSAGES, "\"max_tokens\":90,\"messages\""}, {RESPONSES, "\"input\""}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (size_t j = 0; j < sizeof last / sizeof *last; j++)
            for (int thinking = 0; thinking < 2; thinking++) {
                buffer json = {0};
                buffer_printf(&json, "{\"enable_thinking\":%s,%s:[" USER("x</think>y") "," ASSISTANT("%s") "]}",
                              thinking ? "true" : "false", rows[i].before, last[j]);
                json_object_put(post(rows[i].path, json.data, 200));
                buffer_free(&json);
            }
}

/* A39: no web page drives the server: not from another site, not without the browser asking first, not by another name. */
static void test_a39_web_pages(void **state) {
    (void)state;
    static const char *const paths[] = {CHAT,        MESSAGES,      MESSAGES "/count_tokens", RESPONSES, COMPLETIONS,
                                        "/tokenize", "/detokenize", "/apply-template"};
    static const struct {
        const char *headers;
        int status;
    } rows[] = {
        {"Host: localhost\r\nOrigin: https://evil.example\r\nContent-Type: application/json\r\n", 403},
        {"Host: localhost\r\nOrigin: null\r\nContent-Type: application/json\r\n", 403},
        {"Host: evil.example\r\nContent-Type: application/json\r\n", 403},
        {"Host: evil.example\r\nOrigin: http://evil.example\r\nContent-Type: application/json\r\n", 403}, /* rebound */
        {"Host: localhost\r\nContent-Type: text/plain\r\n", 415},
        {"Host: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n", 415},
        {"Host: localhost\r\nContent-Type: multipart/form-data; boundary=x\r\n", 415},
        {"Host: localhost\r\n", 415},
        {"Host: localhost\r\nOrigin: https://evil.example\r\nContent-Type: text/plain\r\n", 403},
    };
    static const char body[] = "{\"max_tokens\":9,\"messages\":[" USER("Hi") "]}";
    const uint32_t generated = fake_engine_stats(h.engine).generated;
    char value[256];
    for (size_t p = 0; p < sizeof paths / sizeof *paths; p++)
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            char request[512];
            client c;
            reply r;
            snprintf(request, sizeof request, "POST %s HTTP/1.1\r\n%sContent-Length: %zu\r\n\r\n%s", paths[p], rows[i].headers,
                     strlen(body), body);
            client_open(&c, h.port);
            client_send_str(&c, request);
            client_read_reply(&c, &r, 5000);
            if (r.status != rows[i].status) fail_msg("%s: status %d, want %d", request, r.status, rows[i].status);
            assert_string_equal(reply_header(&r, "Access-Control-Allow-Origin", value), "");
            assert_string_equal(reply_header(&r, "Access-Control-Allow-Credentials", value), "");
            reply_free(&r);
            client_close(&c);
        }
    assert_int_equal(fake_engine_stats(h.engine).generated, generated);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a01_system_messages_anywhere),
        cmocka_unit_test(test_a06_slips_are_answers),
        cmocka_unit_test(test_a10_stop_strings),
        cmocka_unit_test(test_a12_half_a_surrogate_pair),
        cmocka_unit_test(test_a13_usage_on_request),
        cmocka_unit_test(test_a14_logprobs_of_a_stream),
        cmocka_unit_test(test_a17_prompts_that_do_not_fit),
        cmocka_unit_test(test_a31_no_thoughts),
        cmocka_unit_test(test_a32_a_last_message_of_the_assistant),
        cmocka_unit_test(test_a39_web_pages),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
