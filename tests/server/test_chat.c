/* POST /v1/chat/completions on a scripted engine: the forms of answers and errors. */
#include "unit.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "harness.h"

HARNESS_OF_FILE(NULL, NULL)

static void chat(const char *say, const char *more, reply *out) {
    char *json = chat_json(say, more);
    harness_post(&h, json, out);
    mem_free(json);
}

/* The same question whole and streamed must say the same. */
static void check_answer(const char *say, const char *more, const char *reasoning, const char *content, const char *calls,
                         const char *finish) {
    reply r;
    chat(say, more, &r);
    if (r.status != 200) fail_msg("%s: %d %s", say, r.status, r.body.data);
    json_object *tree = reply_json_body(&r);
    assert_string_equal(json_str(tree, "object"), "chat.completion");
    assert_string_equal(json_str(tree, "choices.0.message.reasoning_content"), reasoning);
    assert_string_equal(json_str(tree, "choices.0.message.content"), content);
    assert_string_equal(json_str(tree, "choices.0.finish_reason"), finish);
    json_object *list = json_at(tree, "choices.0.message.tool_calls");
    buffer got = {0};
    buffer_append_str(&got, "");
    for (size_t i = 0; list && i < json_object_array_length(list); i++) {
        json_object *call = json_object_array_get_idx(list, i);
        buffer_printf(&got, "%s(%s);", json_str(call, "function.name"), json_str(call, "function.arguments"));
        assert_int_equal(strlen(json_str(call, "id")), 29);
        assert_int_equal(strncmp(json_str(call, "id"), "call_", 5), 0);
    }
    assert_string_equal(got.data, calls);
    buffer_free(&got);
    const int64_t prompt = json_int(tree, "usage.prompt_tokens"), completion = json_int(tree, "usage.completion_tokens");
    assert_true(prompt > 0 && completion > 0);
    assert_int_equal(json_int(tree, "usage.total_tokens"), prompt + completion);
    reply_free(&r);

    char streamed[512];
    snprintf(streamed, sizeof streamed, "%s%s\"stream\":true,\"stream_options\":{\"include_usage\":true}", more, *more ? "," : "");
    chat(say, streamed, &r);
    assert_int_equal(r.status, 200);
    assert_true(r.whole);
    stream_sum s;
    stream_read(&r, 0, &s);
    assert_true(s.first_is_role);
    assert_true(s.done && s.done_is_last);
    assert_false(s.error);
    assert_string_equal(s.reasoning.data, reasoning);
    assert_string_equal(s.content.data, content);
    assert_string_equal(s.calls.data, calls);
    assert_string_equal(s.finish, finish);
    assert_int_equal(s.usages, 1);
    assert_true(json_object_equal(s.usage, json_at(tree, "usage")));
    stream_free(&s);
    reply_free(&r);
    json_object_put(tree);
}

static void test_content(void **state) {
    (void)state;
    const char *off = "\"enable_thinking\":false";
    check_answer("The capital of France is Paris.", off, "", "The capital of France is Paris.", "", "stop");
    check_answer("Emoji \xF0\x9F\xA6\x80\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x9A\x80 and \xE6\xBC\xA2\xE5\xAD\x97.", off, "",
                 "Emoji \xF0\x9F\xA6\x80\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x9A\x80 and \xE6\xBC\xA2\xE5\xAD\x97.", "", "stop");
    check_answer("\"quotes\" and \\ and\nlines", off, "", "\"quotes\" and \\ and\nlines", "", "stop");
}

static void test_thinking(void **state) {
    (void)state;
    check_answer("It is a question.\n</think>\n\nIt is Paris.", "", "It is a question.", "It is Paris.", "", "stop");
    check_answer("Only thoughts", "", "Only thoughts", "", "", "stop");
    check_answer("Plain.", "\"chat_template_kwargs\":{\"enable_thinking\":false}", "", "Plain.", "", "stop");
    /* What is said at top level outranks the keyword arguments. */
    check_answer("Plain.", "\"enable_thinking\":false,\"chat_template_kwargs\":{\"enable_thinking\":true}", "", "Plain.", "", "stop");
}

static void test_reasoning_tokens(void **state) {
    (void)state;
    reply r;
    chat("one two</think>\n\nthree", "", &r);
    json_object *tree = reply_json_body(&r);
    const int64_t reasoning = json_int(tree, "usage.completion_tokens_details.reasoning_tokens");
    const int64_t all = json_int(tree, "usage.completion_tokens");
    assert_true(reasoning >= 3 && reasoning < all); /* two words and the end of the thought */
    json_object_put(tree);
    reply_free(&r);
    chat("one! two!</think>\n\nthree", "", &r); /* `!` is token 0 */
    tree = reply_json_body(&r);
    assert_int_equal(json_int(tree, "usage.completion_tokens_details.reasoning_tokens"), reasoning + 2);
    json_object_put(tree);
    reply_free(&r);
    chat("three", "\"enable_thinking\":false", &r);
    tree = reply_json_body(&r);
    assert_int_equal(json_int(tree, "usage.completion_tokens_details.reasoning_tokens"), 0);
    json_object_put(tree);
    reply_free(&r);
}

#define TOOLS                                                                                                                              \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"weather\",\"description\":\"The weather\",\"parameters\":{\"type\":"       \
    "\"object\",\"properties\":{\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\"}},\"required\":[\"city\"]}}}]"

static void test_tools(void **state) {
    (void)state;
    const char *call = "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
                       "</function>\n</tool_call>";
    char two[1024];
    check_answer(call, "\"enable_thinking\":false," TOOLS, "", "", "weather({\"city\":\"Paris\",\"days\":3});", "tool_calls");
    snprintf(two, sizeof two, "Let me see.</think>\n\n%s\n%s", call, call);
    check_answer(two, TOOLS, "Let me see.", "", "weather({\"city\":\"Paris\",\"days\":3});weather({\"city\":\"Paris\",\"days\":3});",
                 "tool_calls");
    reply r;
    chat("No tools.", "\"enable_thinking\":false,\"tool_choice\":\"none\"," TOOLS, &r);
    json_object *with = reply_json_body(&r);
    reply_free(&r);
    chat("No tools.", "\"enable_thinking\":false", &r);
    json_object *without = reply_json_body(&r);
    assert_int_equal(json_int(with, "usage.prompt_tokens"), json_int(without, "usage.prompt_tokens")); /* none: not in the prompt */
    json_object_put(with);
    json_object_put(without);
    reply_free(&r);
}

static void test_stop(void **state) {
    (void)state;
    check_answer("The quick brown fox", "\"enable_thinking\":false,\"stop\":\"k bro\"", "", "The quic", "", "stop");
    check_answer("The quick brown fox", "\"enable_thinking\":false,\"stop\":[\"zebra\",\"fox\"]", "", "The quick brown ", "", "stop");
    check_answer("@endless ab", "\"enable_thinking\":false,\"stop\":[\"bab\"]", "", "a", "", "stop");
    assert_int_equal(harness_wait_idle(&h, 2000) < 0, 0); /* the endless one was cancelled */
}

static void test_length(void **state) {
    (void)state;
    check_answer("@endless a", "\"enable_thinking\":false,\"max_tokens\":5", "", "aaaaa", "", "length");
    check_answer("@endless a", "\"enable_thinking\":false,\"max_tokens\":9,\"max_completion_tokens\":3", "", "aaa", "", "length");
    reply r; /* clamped to what is left of the window of 4096 */
    chat("@endless a", "\"enable_thinking\":false,\"max_tokens\":1000000", &r);
    json_object *tree = reply_json_body(&r);
    assert_int_equal(json_int(tree, "usage.total_tokens"), 4096);
    assert_string_equal(json_str(tree, "choices.0.finish_reason"), "length");
    json_object_put(tree);
    reply_free(&r);
}

static void test_choices(void **state) {
    (void)state;
    reply r;
    chat("@choice same", "\"enable_thinking\":false,\"n\":3", &r);
    json_object *tree = reply_json_body(&r);
    assert_int_equal(json_object_array_length(json_at(tree, "choices")), 3);
    assert_string_equal(json_str(tree, "choices.0.message.content"), "0:same");
    assert_string_equal(json_str(tree, "choices.1.message.content"), "1:same");
    assert_string_equal(json_str(tree, "choices.2.message.content"), "2:same");
    json_object_put(tree);
    reply_free(&r);
    chat("@choice same", "\"enable_thinking\":false,\"n\":8,\"stream\":true", &r);
    for (int i = 0; i < 8; i++) {
        char want[16];
        snprintf(want, sizeof want, "%d:same", i);
        stream_sum s;
        stream_read(&r, i, &s);
        assert_true(s.first_is_role && s.done_is_last);
        assert_string_equal(s.content.data, want);
        assert_string_equal(s.finish, "stop");
        assert_int_equal(s.usages, 0); /* nobody asked */
        stream_free(&s);
    }
    reply_free(&r);
}

static void test_logprobs(void **state) {
    (void)state;
    reply r;
    const char *ask = "\"enable_thinking\":false,\"logprobs\":true,\"top_logprobs\":3,\"max_tokens\":8";
    chat("@endless one \xF0\x9F\xA6\x80 two", ask, &r);
    json_object *tree = reply_json_body(&r), *list = json_at(tree, "choices.0.logprobs.content");
    assert_int_equal(json_object_array_length(list), 8);
    json_object *first = json_object_array_get_idx(list, 0);
    assert_int_equal(json_object_array_length(json_at(first, "top_logprobs")), 3);
    assert_true(json_object_get_double(json_at(first, "logprob")) == -0.25);
    assert_true(json_object_get_double(json_at(first, "top_logprobs.2.logprob")) == -2.25);
    assert_string_equal(json_str(first, "token"), "one");
    assert_int_equal(json_int(first, "bytes.0"), 'o');
    assert_int_equal(json_object_array_length(json_at(first, "bytes")), 3);
    reply_free(&r);
    json_object_put(tree);
    char streamed[256];
    snprintf(streamed, sizeof streamed, "%s,\"stream\":true", ask);
    chat("@endless one \xF0\x9F\xA6\x80 two", streamed, &r);
    stream_sum s;
    stream_read(&r, 0, &s);
    assert_int_equal(s.logprobs, 8);
    stream_free(&s);
    reply_free(&r);
}

static void check_options(const char *more, const char *want) {
    reply r;
    char all[512];
    snprintf(all, sizeof all, "\"enable_thinking\":false%s%s", *more ? "," : "", more);
    chat("@options ", all, &r);
    if (r.status != 200) fail_msg("%s: %s", more, r.body.data);
    json_object *tree = reply_json_body(&r);
    const char *got = json_str(tree, "choices.0.message.content");
    if (!strstr(got, want)) fail_msg("%s: want %s in %s", more, want, got);
    json_object_put(tree);
    reply_free(&r);
}

/* A16: each parameter reaches the engine; what is absent or null is the engine's default. */
static void test_options(void **state) {
    (void)state;
    check_options("", "temperature=0.7 top_p=0.8 top_k=20 min_p=0 presence=1.5 frequency=0 repetition=1 ");
    check_options("\"temperature\":null,\"top_p\":null", "temperature=0.7 top_p=0.8 ");
    check_options("\"presence_penalty\":0", "temperature=0.7 top_p=0.8 top_k=20 min_p=0 presence=0 ");
    check_options("\"temperature\":0", "temperature=0 ");
    check_options("\"temperature\":1.5", "temperature=1.5 ");
    check_options("\"top_p\":0.5", "top_p=0.5 ");
    check_options("\"top_k\":40", "top_k=40 ");
    check_options("\"top_k\":-1", "top_k=0 ");
    check_options("\"min_p\":0.125", "min_p=0.125 ");
    check_options("\"presence_penalty\":1.5", "presence=1.5 ");
    check_options("\"frequency_penalty\":-0.5", "frequency=-0.5 ");
    check_options("\"repetition_penalty\":1.25", "repetition=1.25 ");
    check_options("\"seed\":42", "seed=42 ");
    check_options("\"seed\":-42", "seed=-42 ");
    check_options("\"seed\":18446744073709551615", "seed=-1 ");
    check_options("\"max_tokens\":777", "max_tokens=777 ");
    check_options("\"max_tokens\":777.0", "max_tokens=777 ");
    check_options("\"logprobs\":true,\"top_logprobs\":7", "logprobs=1 top_logprobs=7 ");
    check_options("\"logit_bias\":{\"5\":-100,\"17\":2.5}", "bias=5:-100,17:2.5,");
    reply a, b; /* no seed: another one each time */
    chat("@options ", "\"enable_thinking\":false", &a);
    chat("@options ", "\"enable_thinking\":false", &b);
    json_object *ta = reply_json_body(&a), *tb = reply_json_body(&b);
    assert_string_not_equal(json_str(ta, "choices.0.message.content"), json_str(tb, "choices.0.message.content"));
    json_object_put(ta);
    json_object_put(tb);
    reply_free(&a);
    reply_free(&b);
}

static void test_harmless(void **state) {
    (void)state;
    reply r;
    char value[256];
    chat("Hi",
         "\"enable_thinking\":false,\"user\":\"u\",\"metadata\":{},\"never_heard_of\":1,\"evil\\r\\nX-A: b\":1,\"model\":\"any "
         "\\\"model\\\"\"",
         &r);
    assert_int_equal(r.status, 200);
    assert_string_equal(reply_header(&r, "x-calla-ignored", value), "user, metadata, never_heard_of");
    assert_string_equal(reply_header(&r, "X-A", value), "");
    json_object *tree = reply_json_body(&r);
    assert_string_equal(json_str(tree, "model"), "any \"model\"");
    json_object_put(tree);
    reply_free(&r);
    chat("Hi", "\"stream\":true,\"store\":true,\"stream_options\":{\"include_obfuscation\":true}", &r);
    assert_string_equal(reply_header(&r, "x-calla-ignored", value), "store, stream_options.include_obfuscation");
    reply_free(&r);
    chat("Hi",
         "\"enable_thinking\":false,\"response_format\":{\"type\":\"text\"},\"modalities\":[\"text\"],\"parallel_tool_calls\":true,\"tool_"
         "choice\":\"auto\"",
         &r);
    assert_int_equal(r.status, 200);
    assert_string_equal(reply_header(&r, "x-calla-ignored", value), "");
    tree = reply_json_body(&r);
    assert_string_equal(json_str(tree, "model"), "scripted");
    json_object_put(tree);
    reply_free(&r);
}

static void test_bad_fields(void **state) {
    (void)state;
    static const struct {
        const char *more, *param;
    } rows[] = {
        {"\"response_format\":\"json\"", "response_format"},
        {"\"response_format\":{\"type\":\"xml\"}", "response_format"},
        {"\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{}}", "response_format"},
        {"\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{},\"strict\":1}}", "response_format"},
        {"\"tool_choice\":\"sometimes\"," TOOLS, "tool_choice"},
        {"\"tool_choice\":\"required\"", "tool_choice"},
        {"\"tool_choice\":{\"type\":\"function\"}," TOOLS, "tool_choice"},
        {"\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"other\"}}," TOOLS, "tool_choice"},
        {"\"tool_choice\":{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":\"auto\",\"tools\":[]}}," TOOLS, "tool_choice"},
        {"\"tool_choice\":{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":\"auto\",\"tools\":[{\"name\":\"other\"}]}}," TOOLS,
         "tool_choice"},
        {"\"parallel_tool_calls\":1", "parallel_tool_calls"},
        {"\"functions\":[{}]", "functions"},
        {"\"modalities\":[\"text\",\"audio\"]", "modalities"},
        {"\"audio\":{\"voice\":\"x\"}", "audio"},
        {"\"web_search_options\":{}", "web_search_options"},
        {"\"guided_json\":5", "guided_json"},
        {"\"guided_regex\":{}", "guided_regex"},
        {"\"guided_choice\":[]", "guided_choice"},
        {"\"guided_choice\":[\"a\",1]", "guided_choice"},
        {"\"guided_choice\":[\"a\"],\"guided_regex\":\"a\"", "guided_regex"},
        {"\"structured_outputs\":{\"grammar\":\"root ::= a\"}", "structured_outputs.grammar"},
        {"\"grammar\":\"root ::= a\"", "grammar"},
        {"\"temperature\":2.1", "temperature"},
        {"\"temperature\":-0.1", "temperature"},
        {"\"temperature\":\"1\"", "temperature"},
        {"\"temperature\":1e400", "temperature"},
        {"\"top_p\":1.5", "top_p"},
        {"\"top_k\":1.5", "top_k"},
        {"\"n\":0", "n"},
        {"\"n\":9", "n"},
        {"\"max_tokens\":0", "max_tokens"},
        {"\"max_tokens\":-3", "max_tokens"},
        {"\"max_tokens\":1.5", "max_tokens"},
        {"\"max_completion_tokens\":true", "max_completion_tokens"},
        {"\"presence_penalty\":3", "presence_penalty"},
        {"\"repetition_penalty\":0", "repetition_penalty"},
        {"\"seed\":1.5", "seed"},
        {"\"seed\":\"x\"", "seed"},
        {"\"stop\":5", "stop"},
        {"\"stop\":\"\"", "stop"},
        {"\"stop\":[\"a\",5]", "stop"},
        {"\"stop\":\"a\\u0000b\"", "stop"},
        {"\"stop\":[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\",\"10\",\"11\",\"12\",\"13\",\"14\",\"15\",\"16\",\"17\"]",
         "stop"},
        {"\"logprobs\":1", "logprobs"},
        {"\"top_logprobs\":5", "top_logprobs"},
        {"\"logprobs\":true,\"top_logprobs\":21", "top_logprobs"},
        {"\"logit_bias\":{\"x\":1}", "logit_bias"},
        {"\"logit_bias\":{\"-1\":1}", "logit_bias"},
        {"\"logit_bias\":{\"99999999\":1}", "logit_bias"},
        {"\"logit_bias\":{\"5\":101}", "logit_bias"},
        {"\"logit_bias\":[]", "logit_bias"},
        {"\"stream\":\"yes\"", "stream"},
        {"\"stream_options\":{\"include_usage\":true}", "stream_options"},
        {"\"stream\":true,\"stream_options\":{\"include_usage\":1}", "stream_options.include_usage"},
        {"\"enable_thinking\":\"no\"", "enable_thinking"},
        {"\"chat_template_kwargs\":[]", "chat_template_kwargs"},
        {"\"chat_template_kwargs\":{\"enable_thinking\":0}", "chat_template_kwargs.enable_thinking"},
        {"\"model\":5", "model"},
        {"\"tools\":{}", "tools"},
        {"\"tools\":[{\"type\":\"function\",\"function\":{}}]", "tools[0]"},
        {"\"messages\":[]", "messages"},
        {"\"messages\":\"hi\"", "messages"},
        {"\"messages\":[5]", "messages[0]"},
        {"\"messages\":[{\"content\":\"x\"}]", "messages[0].role"},
        {"\"messages\":[{\"role\":\"wizard\",\"content\":\"x\"}]", "messages[0].role"},
        {"\"messages\":[{\"role\":\"user\"}]", "messages[0].content"},
        {"\"messages\":[{\"role\":\"user\",\"content\":5}]", "messages[0].content"},
        {"\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{\"url\":\"data:\"}}]}]",
         "messages[0].content[0]"},
        {"\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]", "messages[0].content[0]"},
        {"\"messages\":[{\"role\":\"assistant\",\"content\":\"\"}]", "messages"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        reply r;
        chat("Hi", rows[i].more, &r); /* of two equal keys the last holds */
        if (r.status != 400) fail_msg("%s: %d %s", rows[i].more, r.status, r.body.data);
        json_object *tree = reply_json_body(&r);
        if (strcmp(json_str(tree, "error.param"), rows[i].param)) fail_msg("%s: %s", rows[i].more, r.body.data);
        assert_string_equal(json_str(tree, "error.type"), "invalid_request_error");
        assert_true(strlen(json_str(tree, "error.message")) > 10);
        json_object_put(tree);
        reply_free(&r);
    }
}

static void test_bad_bodies(void **state) {
    (void)state;
    static const char *const rows[] = {"",
                                       "{",
                                       "[]",
                                       "null",
                                       "\"x\"",
                                       "{}",
                                       "{\"messages\":null}",
                                       "{'messages':[]}",
                                       "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],}",
                                       "{\"messages\":[{\"role\":\"user\",\"content\":\"a\nb\"}]}",
                                       "{\"messages\":[{\"role\":\"user\",\"content\":\"\xFF\"}]}",
                                       "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]} x",
                                       "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"seed\":99999999999999999999}",
                                       "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"temperature\":NaN}"};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        reply r;
        harness_post(&h, rows[i], &r);
        if (r.status != 400) fail_msg("%s: %d %s", rows[i], r.status, r.body.data);
        json_object *tree = reply_json_body(&r);
        assert_true(*json_str(tree, "error.message") != 0);
        json_object_put(tree);
        reply_free(&r);
    }
}

static void test_messages(void **state) {
    (void)state;
    static const char *const rows[] = {
        "{\"enable_thinking\":false,\"messages\":[{\"role\":\"developer\",\"content\":\"Be "
        "brief.\"},{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"Echo\"}]}]}",
        "{\"enable_thinking\":false,\"messages\":[{\"role\":\"user\",\"content\":\"A\"},{\"role\":\"assistant\",\"content\":\"B\","
        "\"reasoning_content\":\"C\"},"
        "{\"role\":\"user\",\"content\":\"Echo\"}]}",
        "{\"enable_thinking\":false,\"messages\":[{\"role\":\"user\",\"content\":\"Echo\"},{\"role\":\"assistant\",\"content\":null,\"tool_"
        "calls\":[{\"id\":\"call_1\","
        "\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"call_"
        "1\",\"content\":\"r\"}]}",
        "{\"enable_thinking\":false,\"messages\":[{\"role\":\"user\",\"content\":\"Lone "
        "\\ud800\"},{\"role\":\"assistant\",\"content\":\"ok\"},{\"role\":\"user\",\"content\":\"Echo\"}]}",
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        reply r;
        harness_post(&h, rows[i], &r);
        if (r.status != 200) fail_msg("%s: %d %s", rows[i], r.status, r.body.data);
        json_object *tree = reply_json_body(&r);
        if (i != 2) assert_string_equal(json_str(tree, "choices.0.message.content"), "Echo"); /* results of tools are a user's turn, too */
        json_object_put(tree);
        reply_free(&r);
    }
}

static void test_context_length(void **state) {
    (void)state;
    buffer long_text = {0};
    while (long_text.n < 60000) buffer_append_str(&long_text, "words of a long prompt ");
    reply r;
    chat(long_text.data, "\"stream\":true", &r);
    assert_int_equal(r.status, 400);
    json_object *tree = reply_json_body(&r);
    assert_string_equal(json_str(tree, "error.code"), "context_length_exceeded");
    unsigned window = 0, tokens = 0;
    assert_int_equal(sscanf(json_str(tree, "error.message"),
                            "This model's maximum context length is %u tokens. However, your messages resulted in %u tokens.", &window,
                            &tokens),
                     2);
    assert_int_equal(window, 4096);
    assert_true(tokens > 4096);
    json_object_put(tree);
    reply_free(&r);
    /* The same through the worker. */
    while (long_text.n < 600000) buffer_append_str(&long_text, "words of a long prompt ");
    chat(long_text.data, "", &r);
    assert_int_equal(r.status, 400);
    reply_free(&r);
    buffer_free(&long_text);
}

/* A body large enough for the worker whose prompt is small. */
static void test_large_body(void **state) {
    (void)state;
    buffer more = {0};
    buffer_append_str(&more, "\"enable_thinking\":false,\"metadata\":{\"filler\":\"");
    while (more.n < 400000) buffer_append_str(&more, "filler ");
    buffer_append_str(&more, "\"}");
    reply r;
    chat("Large.", more.data, &r);
    assert_int_equal(r.status, 200);
    json_object *tree = reply_json_body(&r);
    assert_string_equal(json_str(tree, "choices.0.message.content"), "Large.");
    json_object_put(tree);
    reply_free(&r);
    buffer_free(&more);
}

static void test_engine_errors(void **state) {
    (void)state;
    reply r;
    char value[256];
    chat("@fail=2 one two three four", "\"enable_thinking\":false", &r);
    assert_int_equal(r.status, 503);
    json_object *tree = reply_json_body(&r);
    assert_string_equal(json_str(tree, "error.type"), "server_error");
    assert_string_equal(json_str(tree, "error.message"), "the scripted device failed");
    json_object_put(tree);
    reply_free(&r);
    chat("@fail=2 one two three four", "\"enable_thinking\":false,\"stream\":true", &r);
    assert_int_equal(r.status, 200);
    stream_sum s;
    stream_read(&r, 0, &s);
    assert_true(s.error);
    assert_false(s.done);
    assert_string_equal(s.finish, "");
    assert_true(s.content.n > 0);
    stream_free(&s);
    reply_free(&r);
    chat("@refuse x", "", &r);
    assert_int_equal(r.status, 429);
    assert_string_equal(reply_header(&r, "Retry-After", value), "1");
    reply_free(&r);
    chat("@refuse x", "\"n\":4,\"stream\":true", &r); /* nothing has begun, so that the status can still tell */
    assert_int_equal(r.status, 429);
    reply_free(&r);
    chat("Still alive.", "\"enable_thinking\":false", &r);
    assert_int_equal(r.status, 200);
    reply_free(&r);
}

static void test_models(void **state) {
    (void)state;
    reply r;
    harness_get(&h, "/v1/models", &r);
    json_object *tree = reply_json_body(&r);
    assert_string_equal(json_str(tree, "data.0.id"), "scripted");
    assert_int_equal(json_int(tree, "data.0.context_window"), 4096);
    assert_string_equal(json_str(tree, "data.1.id"), "scripted-thinking");
    assert_string_equal(json_str(tree, "data.2.id"), "scripted-instruct");
    json_object_put(tree);
    reply_free(&r);
    harness_get(&h, "/v1/models/scripted?x=1", &r);
    assert_int_equal(r.status, 200);
    tree = reply_json_body(&r);
    assert_string_equal(json_str(tree, "object"), "model");
    json_object_put(tree);
    reply_free(&r);
    harness_get(&h, "/v1/models/scripted-instruct", &r);
    assert_int_equal(r.status, 200);
    reply_free(&r);
    harness_get(&h, "/v1/models/other", &r);
    assert_int_equal(r.status, 404);
    tree = reply_json_body(&r);
    assert_string_equal(json_str(tree, "error.code"), "model_not_found");
    json_object_put(tree);
    reply_free(&r);
}

/* Last: the engine does not come back. */
static void test_broken_engine(void **state) {
    (void)state;
    reply r;
    harness_get(&h, "/health", &r);
    assert_int_equal(r.status, 200);
    reply_free(&r);
    fake_engine_break(h.engine);
    harness_get(&h, "/health", &r);
    assert_int_equal(r.status, 503);
    json_object *tree = reply_json_body(&r);
    assert_string_equal(json_str(tree, "status"), "failed");
    assert_string_equal(json_str(tree, "message"), "the scripted device broke");
    json_object_put(tree);
    reply_free(&r);
    chat("Hi", "", &r);
    assert_int_equal(r.status, 503);
    reply_free(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_content),       cmocka_unit_test(test_thinking),       cmocka_unit_test(test_reasoning_tokens),
        cmocka_unit_test(test_tools),         cmocka_unit_test(test_stop),           cmocka_unit_test(test_length),
        cmocka_unit_test(test_choices),       cmocka_unit_test(test_logprobs),       cmocka_unit_test(test_options),
        cmocka_unit_test(test_harmless),      cmocka_unit_test(test_bad_fields),     cmocka_unit_test(test_bad_bodies),
        cmocka_unit_test(test_messages),      cmocka_unit_test(test_context_length), cmocka_unit_test(test_large_body),
        cmocka_unit_test(test_engine_errors), cmocka_unit_test(test_models),         cmocka_unit_test(test_broken_engine),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
