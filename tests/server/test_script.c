/* Answers that a file scripts, token by token: forms that no model gives at will, and an agent's loop of 70 rounds over the chat dialect. */
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/map.h"
#include "base/memory.h"
#include "harness.h"
#include "text/text.h"

static void open_with(harness *h, const char *script) {
    const fake_options fake = {.script = script, .context_tokens = 65536};
    harness_open(h, NULL, &fake);
}

/* A script that is written to a file, which is removed at once. */
static void open_with_text(harness *h, const buffer *script) {
    char path[] = "/tmp/calla-script-XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, script->data, script->n), script->n);
    close(fd);
    open_with(h, path);
    unlink(path);
}

static json_object *ask(harness *h, const char *path, const char *body) {
    reply r;
    harness_post_to(h, path, body, &r);
    if (r.status != 200) fail_msg("%s: %d %s", body, r.status, r.body.data);
    json_object *tree = reply_json_body(&r);
    reply_free(&r);
    return tree;
}

static void test_lines_of_a_file(void **state) {
    (void)state;
    harness h;
    reply r;
    char *path = path_join(getenv("CALLA_TEST_DATA"), "server/answers.jsonl");
    assert_non_null(path);
    open_with(&h, path);
    mem_free(path);
    const char *body = "{\"messages\":[{\"role\":\"user\",\"content\":\"Said.\"}],\"logprobs\":true,\"top_logprobs\":3}";
    json_object *tree = ask(&h, "/v1/chat/completions", body);
    assert_string_equal(json_str(tree, "choices.0.message.content"), "From a file.");
    json_object *entries = json_at(tree, "choices.0.logprobs.content");
    assert_true(json_object_get_double(json_at(entries, "0.logprob")) == -0.5);
    assert_int_equal(json_object_array_length(json_at(entries, "0.top_logprobs")), 2);
    assert_true(json_object_get_double(json_at(entries, "0.top_logprobs.1.logprob")) == -2.5);
    assert_int_equal(json_object_array_length(json_at(entries, "1.top_logprobs")), 1);
    json_object_put(tree);
    harness_post(&h, body, &r);
    assert_int_equal(r.status, 503);
    reply_free(&r);
    harness_post(&h, body, &r);
    assert_int_equal(r.status, 429);
    reply_free(&r);
    harness_post(&h, "{\"messages\":[{\"role\":\"user\",\"content\":\"Said.\"}],\"stream\":true,\"return_progress\":true}", &r);
    assert_int_equal(r.status, 200);
    assert_non_null(strstr(r.body.data, "\"prompt_progress\":{\"processed\":"));
    stream_sum s;
    stream_read(&r, 0, &s);
    assert_string_equal(s.reasoning.data, "Slow.");
    assert_string_equal(s.content.data, "Done.");
    assert_true(s.done_is_last);
    stream_free(&s);
    reply_free(&r);
    tree = ask(&h, "/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"Said.\"}],\"think\":false}");
    assert_string_equal(json_str(tree, "choices.0.message.content"), "Said."); /* the file is used up */
    json_object_put(tree);
    harness_close(&h);
}

/* A11: one token for each byte of what a text holds: every character is split. */
static void test_characters_split_over_tokens(void **state) {
    (void)state;
    static const char text[] = "\xF0\x9F\xA6\x80 \xE6\xBC\xA2\xE5\xAD\x97 e\xCC\x81 \xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x9A\x80!";
    harness h;
    buffer script = {0};
    open_with(&h, NULL);
    int32_t byte_id[256];
    for (int32_t id = 0; id < (int32_t)calla_text_vocabulary(h.text); id++) {
        size_t n;
        const char *bytes = tokenizer_bytes(h.text->tokenizer, id, &n);
        if (bytes && n == 1) byte_id[(unsigned char)*bytes] = id;
    }
    harness_close(&h);
    buffer_append_str(&script, "{\"ids\":[");
    for (size_t i = 0; i < sizeof text - 1; i++) buffer_printf(&script, "%s%d", i ? "," : "", (int)byte_id[(unsigned char)text[i]]);
    buffer_append_str(&script, "]}\n");
    open_with_text(&h, &script);
    reply r;
    harness_post(&h, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"think\":false,\"stream\":true}", &r);
    stream_sum s;
    stream_read(&r, 0, &s); /* fails where an event is not UTF-8 */
    assert_string_equal(s.content.data, text);
    assert_null(strstr(r.body.data, "\xEF\xBF\xBD"));
    stream_free(&s);
    reply_free(&r);
    buffer_free(&script);
    harness_close(&h);
}

#define TOOLS                                                                                                                              \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"read\",\"parameters\":{\"type\":\"object\",\"properties\":{\"path\":{"     \
    "\"type\":\"string\"},\"lines\":{\"type\":\"integer\"}}}}}]"

enum { ROUNDS = 70 };

/* What a model that is asked to read file after file writes in round i. */
static void write_round(unsigned i, buffer *out) {
    buffer_printf(out,
                  "File %u is next.\n</think>\n\n<tool_call>\n<function=read>\n<parameter=path>\nsrc/%u.c\n</parameter>\n"
                  "<parameter=lines>\n%u\n</parameter>\n</function>\n</tool_call>",
                  i, i, i);
}

static char *prompt_of(harness *h, const char *messages) {
    buffer body = {0};
    buffer_printf(&body, "{\"messages\":[%s]," TOOLS "}", messages);
    json_object *tree = ask(h, "/apply-template", body.data);
    const char *prompt = json_str(tree, "prompt");
    char *out = mem_strndup(prompt, strlen(prompt));
    json_object_put(tree);
    buffer_free(&body);
    return out;
}

/* A42: each round is a structured call, and its prompt begins with the one before and what the model said to it, byte for byte. */
static void test_seventy_rounds(void **state) {
    (void)state;
    harness h;
    buffer script = {0}, messages = {0}, said = {0};
    for (unsigned i = 0; i < ROUNDS; i++) {
        buffer_clear(&said);
        write_round(i, &said);
        buffer_append_str(&script, "{\"text\":");
        json_append_string(&script, said.data, said.n);
        buffer_append_str(&script, "}\n");
    }
    buffer_append_str(&script, "{\"text\":\"Enough.</think>\\n\\nAll read.\"}\n");
    open_with_text(&h, &script);
    buffer_append_str(&messages, "{\"role\":\"system\",\"content\":\"Read.\"},{\"role\":\"user\",\"content\":\"Read all of them.\"}");
    char *prompt = prompt_of(&h, messages.data);
    for (unsigned i = 0; i < ROUNDS; i++) {
        buffer body = {0};
        buffer_printf(&body, "{\"messages\":[%s]," TOOLS "}", messages.data);
        json_object *tree = ask(&h, "/v1/chat/completions", body.data), *message = json_at(tree, "choices.0.message");
        char want[64];
        snprintf(want, sizeof want, "{\"path\":\"src/%u.c\",\"lines\":%u}", i, i);
        assert_string_equal(json_str(tree, "choices.0.finish_reason"), "tool_calls");
        assert_int_equal(json_object_array_length(json_at(message, "tool_calls")), 1);
        assert_string_equal(json_str(message, "tool_calls.0.function.arguments"), want);
        assert_null(json_at(message, "content"));
        buffer_printf(&messages, ",%s,{\"role\":\"tool\",\"tool_call_id\":\"%s\",\"content\":\"Contents of %u.\"}",
                      json_object_to_json_string_ext(message, JSON_C_TO_STRING_PLAIN), json_str(message, "tool_calls.0.id"), i);
        json_object_put(tree);
        buffer_free(&body);
        char *next = prompt_of(&h, messages.data);
        buffer_clear(&said);
        write_round(i, &said);
        const size_t n = strlen(prompt);
        assert_memory_equal(next, prompt, n);
        assert_memory_equal(next + n, said.data, said.n);
        mem_free(prompt);
        prompt = next;
    }
    buffer body = {0};
    buffer_printf(&body, "{\"messages\":[%s]," TOOLS "}", messages.data);
    json_object *tree = ask(&h, "/v1/chat/completions", body.data);
    assert_string_equal(json_str(tree, "choices.0.message.content"), "All read.");
    json_object_put(tree);
    mem_free(prompt);
    buffer_free(&body);
    buffer_free(&script);
    buffer_free(&messages);
    buffer_free(&said);
    harness_close(&h);
}

/* A30: arguments that can only be sent whole: the client is told meanwhile that there is life.  A30 (chat). */
static void test_withheld_arguments(void **state) {
    (void)state;
    harness h;
    buffer script = {0};
    buffer_append_str(&script, "{\"token_ms\":40,\"text\":\"<tool_call>\\n<function=edit>\\n<parameter=edits>\\n[");
    for (int i = 0; i < 40; i++) buffer_printf(&script, "%d, ", i);
    buffer_append_str(&script, "40]\\n</parameter>\\n</function>\\n</tool_call>\"}\n");
    open_with_text(&h, &script);
    reply r;
    harness_post(&h,
                 "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"think\":false,\"stream\":true,\"tools\":[{\"type\":\"function\","
                 "\"function\":{\"name\":\"edit\",\"parameters\":{\"properties\":{\"edits\":{\"type\":\"array\"}}}}}]}",
                 &r);
    stream_sum s;
    stream_read(&r, 0, &s);
    assert_true(s.comments >= 2);
    assert_int_equal(strncmp(s.calls.data, "edit({\"edits\":[0,1,2,", 21), 0);
    assert_string_equal(s.finish, "tool_calls");
    stream_free(&s);
    reply_free(&r);
    buffer_free(&script);
    harness_close(&h);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines_of_a_file),
        cmocka_unit_test(test_characters_split_over_tokens),
        cmocka_unit_test(test_seventy_rounds),
        cmocka_unit_test(test_withheld_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
