/* Thoughts over HTTP on a scripted engine: switched off, held to a budget, and never all of the answer. */
#include "unit.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "harness.h"

HARNESS_OF_FILE(NULL, NULL)

/* The body's tree, the caller's. */
static json_object *ask(const char *say, const char *more) {
    reply r;
    char *json = chat_json(say, more);
    harness_post(&h, json, &r);
    mem_free(json);
    if (r.status != 200) fail_msg("%s: %d %s", say, r.status, r.body.data);
    json_object *tree = reply_json_body(&r);
    reply_free(&r);
    return tree;
}

static void expect(const char *say, const char *more, const char *reasoning, const char *content, const char *finish) {
    json_object *tree = ask(say, more);
    assert_string_equal(json_str(tree, "choices.0.message.reasoning_content"), reasoning);
    assert_string_equal(json_str(tree, "choices.0.message.reasoning"), reasoning);
    assert_string_equal(json_str(tree, "choices.0.message.content"), content);
    assert_string_equal(json_str(tree, "choices.0.finish_reason"), finish);
    json_object_put(tree);
    reply r;
    char streamed[512];
    snprintf(streamed, sizeof streamed, "%s%s\"stream\":true", more, *more ? "," : "");
    char *json = chat_json(say, streamed);
    harness_post(&h, json, &r);
    mem_free(json);
    stream_sum s;
    stream_read(&r, 0, &s);
    assert_string_equal(s.reasoning.data, reasoning);
    assert_string_equal(s.content.data, content);
    assert_string_equal(s.finish, finish);
    stream_free(&s);
    reply_free(&r);
}

/* A31. */
static void test_off_in_every_spelling(void **state) {
    (void)state;
    static const char *const rows[] = {"\"enable_thinking\":false",           "\"chat_template_kwargs\":{\"enable_thinking\":false}",
                                       "\"reasoning_effort\":\"none\"",       "\"think\":false",
                                       "\"reasoning\":{\"effort\":\"none\"}", "\"thinking\":{\"type\":\"disabled\"}",
                                       "\"model\":\"scripted-instruct\""};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) expect("Plain.", rows[i], "", "Plain.", "stop");
}

static void test_a_budget_closes_the_thought(void **state) {
    (void)state;
    const char *say = "one two three four five six</think>\n\nAnswer.";
    expect(say, "\"thinking_budget\":3", "one two three", "Answer.", "stop");
    expect(say, "\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":3}", "one two three", "Answer.", "stop");
    expect(say, "\"thinking_budget\":100", "one two three four five six", "Answer.", "stop"); /* it ended before */
    json_object *tree = ask(say, "\"thinking_budget\":3");
    const int64_t reasoning = json_int(tree, "usage.completion_tokens_details.reasoning_tokens");
    assert_true(reasoning >= 4 && reasoning <= 6); /* three words and what closes the thought */
    json_object_put(tree);
}

/* A35: whatever the model does, a part of the tokens is the answer's. */
static void test_a_runaway_thought_leaves_an_answer(void **state) {
    (void)state;
    json_object *tree = ask("@endless again ", "\"max_tokens\":40");
    assert_true(strlen(json_str(tree, "choices.0.message.reasoning_content")) > 20);
    assert_true(strlen(json_str(tree, "choices.0.message.content")) > 20);
    assert_string_equal(json_str(tree, "choices.0.finish_reason"), "length");
    assert_int_equal(json_int(tree, "usage.completion_tokens"), 40);
    json_object_put(tree);
    tree = ask("@endless again ", "\"max_tokens\":3"); /* no room for both: the thought is shown, and the reason */
    assert_true(strlen(json_str(tree, "choices.0.message.reasoning_content")) > 5);
    assert_string_equal(json_str(tree, "choices.0.finish_reason"), "length");
    json_object_put(tree);
}

/* A35: where the limit is too low for a thought and an answer the thought is shown, and that it was cut; from there on the answer has its
 * part. */
static void test_the_lowest_limits(void **state) {
    (void)state;
    bool answered = false;
    for (int most = 1; most <= 40; most++) {
        char more[32];
        snprintf(more, sizeof more, "\"max_tokens\":%d", most);
        json_object *tree = ask("@endless again ", more);
        assert_true(*json_str(tree, "choices.0.message.reasoning_content") != 0);
        assert_string_equal(json_str(tree, "choices.0.finish_reason"), "length");
        assert_int_equal(json_int(tree, "usage.completion_tokens"), most);
        const bool has_content = *json_str(tree, "choices.0.message.content") != 0;
        if (answered && !has_content) fail_msg("max_tokens %d leaves nothing, and fewer did", most);
        answered |= has_content;
        json_object_put(tree);
    }
    assert_true(answered);
}

#define TOOLS                                                                                                                              \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"weather\",\"parameters\":{\"type\":\"object\",\"properties\":{\"city\":{"  \
    "\"type\":\"string\"}}}}}]"

/* A34: a call that was begun within the thought goes on over the end of the budget. */
static void test_a_call_within_a_thought_is_not_cut(void **state) {
    (void)state;
    json_object *tree =
        ask("Look.\n<tool_call>\n<function=weather>\n<parameter=city>\nSan Francisco de los Romo\n</parameter>\n</function>\n"
            "</tool_call>",
            "\"thinking_budget\":8," TOOLS);
    assert_string_equal(json_str(tree, "choices.0.message.reasoning_content"), "Look.");
    assert_string_equal(json_str(tree, "choices.0.message.tool_calls.0.function.arguments"), "{\"city\":\"San Francisco de los Romo\"}");
    assert_string_equal(json_str(tree, "choices.0.finish_reason"), "tool_calls");
    json_object_put(tree);
}

static void test_a_cut_thought_is_continued(void **state) {
    (void)state;
    reply r;
    harness_post(&h,
                 "{\"messages\":[{\"role\":\"user\",\"content\":\"and more</think>\\n\\nDone.\"},{\"role\":\"assistant\",\"content\":\"\","
                 "\"reasoning_content\":\"Some\"}]}",
                 &r);
    assert_int_equal(r.status, 200);
    json_object *tree = reply_json_body(&r);
    assert_string_equal(json_str(tree, "choices.0.message.reasoning_content"), "and more");
    assert_string_equal(json_str(tree, "choices.0.message.content"), "Done.");
    json_object_put(tree);
    reply_free(&r);
    harness_post(&h, "{\"messages\":[{\"role\":\"user\",\"content\":\"the rest.\"},{\"role\":\"assistant\",\"content\":\"Half and\"}]}",
                 &r);
    tree = reply_json_body(&r);
    assert_string_equal(json_str(tree, "choices.0.message.content"), "the rest.");
    json_object_put(tree);
    reply_free(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_off_in_every_spelling),
        cmocka_unit_test(test_a_budget_closes_the_thought),
        cmocka_unit_test(test_a_runaway_thought_leaves_an_answer),
        cmocka_unit_test(test_the_lowest_limits),
        cmocka_unit_test(test_a_call_within_a_thought_is_not_cut),
        cmocka_unit_test(test_a_cut_thought_is_continued),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
