/* POST /v1/responses on a scripted engine: answers whole and streamed, the order of events, tools of all kinds.  What the
 * server remembers of them is test_responses_stored.c. */
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "harness.h"

#define PATH "/v1/responses"
#define TOOL                                                                                                                               \
    "{\"type\":\"function\",\"name\":\"weather\",\"description\":\"The weather\",\"parameters\":{\"type\":\"object\","                     \
    "\"properties\":{\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\"}}}}"
#define CALL                                                                                                                               \
    "<tool_call>\\n<function=weather>\\n<parameter=city>\\nParis\\n</parameter>\\n<parameter=days>\\n3\\n</parameter>\\n</function>\\n</"  \
    "tool_call>"

HARNESS_OF_FILE(NULL, NULL)

/* {input, more}: input is the inside of a JSON string. */
static char *body_of(const char *input, const char *more) {
    buffer b = {0};
    buffer_printf(&b, "{\"input\":\"%s\"%s%s}", input, *more ? "," : "", more);
    return buffer_take(&b);
}

static json_object *post(const char *body, int status, reply *r) { return harness_ask(&h, PATH, body, status, r); }

/* The answer as "reasoning:…|message:…|function_call:name(arguments)|": what its output items say. */
static char *describe(json_object *response) {
    buffer out = {0};
    json_object *items = json_at(response, "output");
    buffer_append_str(&out, "");
    for (size_t i = 0; items && i < json_object_array_length(items); i++) {
        json_object *item = json_object_array_get_idx(items, i);
        const char *type = json_str(item, "type");
        buffer_printf(&out, "%s:", type);
        if (!strcmp(type, "function_call"))
            buffer_printf(&out, "%s(%s)", json_str(item, "name"), json_str(item, "arguments"));
        else if (!strcmp(type, "custom_tool_call"))
            buffer_printf(&out, "%s(%s)", json_str(item, "name"), json_str(item, "input"));
        else
            buffer_append_str(&out, json_str(item, "content.0.text"));
        buffer_append_str(&out, "|");
    }
    return buffer_take(&out);
}

/* ------------------------------------------------------------- streams --------------------------------------------------- */

/* What the deltas of a stream add up to, in the form of describe, and its last event's response. */
typedef struct stream {
    buffer sum;
    size_t events, keepalives;
    json_object *last; /* owned */
    char type[64];     /* of the last event */
} stream;

static void add_event(stream *s, const char *name, json_object *event) {
    const char *type = json_str(event, "type");
    assert_string_equal(name, type);
    assert_int_equal(json_int(event, "sequence_number"), (int64_t)s->events);
    if (!s->events) assert_string_equal(type, "response.created");
    s->events++;
    s->keepalives += !strcmp(type, "keepalive");
    if (!strcmp(type, "response.output_item.added")) {
        buffer_printf(&s->sum, "%s:", json_str(event, "item.type"));
        if (strstr(json_str(event, "item.type"), "call")) buffer_printf(&s->sum, "%s(", json_str(event, "item.name"));
    } else if (strstr(type, ".delta"))
        buffer_append_str(&s->sum, json_str(event, "delta"));
    else if (!strcmp(type, "response.output_item.done"))
        buffer_append_str(&s->sum, strstr(json_str(event, "item.type"), "call") ? ")|" : "|");
    snprintf(s->type, sizeof s->type, "%s", type);
    json_object_put(s->last);
    s->last = json_object_get(event);
}

static void read_stream(const char *body, stream *s) {
    reply r;
    *s = (stream){0};
    buffer_append_str(&s->sum, "");
    harness_post_to(&h, PATH, body, &r);
    assert_int_equal(r.status, 200);
    char name[64] = "";
    for (char *line = r.body.data, *end; line && *line; line = end + 1) {
        end = strchr(line, '\n');
        assert_non_null(end);
        *end = 0;
        if (!strncmp(line, "event: ", 7)) snprintf(name, sizeof name, "%s", line + 7);
        if (strncmp(line, "data: ", 6) != 0) continue;
        json_object *event = NULL;
        if (json_parse(line + 6, strlen(line + 6), "event", &event, NULL)) fail_msg("no JSON: %s", line);
        add_event(s, name, event);
        json_object_put(event);
    }
    reply_free(&r);
}

static void stream_done(stream *s) {
    buffer_free(&s->sum);
    json_object_put(s->last);
}

/* The same question whole and streamed says the same, item by item. */
static void check(const char *input, const char *more, const char *want, const char *status) {
    char *body = body_of(input, more), streaming[2048];
    reply r;
    json_object *tree = post(body, 200, &r);
    assert_string_equal(json_str(tree, "object"), "response");
    assert_string_equal(json_str(tree, "status"), status);
    char *got = describe(tree);
    assert_string_equal(got, want);
    const int64_t in = json_int(tree, "usage.input_tokens"), out = json_int(tree, "usage.output_tokens");
    assert_true(in > 0 && out > 0);
    assert_int_equal(json_int(tree, "usage.total_tokens"), in + out);
    mem_free(body);

    snprintf(streaming, sizeof streaming, "%s%s\"stream\":true", more, *more ? "," : "");
    body = body_of(input, streaming);
    stream s;
    read_stream(body, &s);
    assert_string_equal(s.sum.data, want);
    assert_string_equal(json_str(s.last, "response.status"), status);
    assert_int_equal(json_int(s.last, "response.usage.total_tokens"), in + out);
    char *last = describe(json_at(s.last, "response"));
    assert_string_equal(last, want);
    mem_free(last);
    stream_done(&s);
    mem_free(body);
    mem_free(got);
    json_object_put(tree);
    reply_free(&r);
}

static void test_answers(void **state) {
    (void)state;
    check("Hi.", "\"reasoning\":{\"effort\":\"none\"}", "message:Hi.|", "completed");
    check("I think.</think>\\n\\nHi \\ud83e\\udd80.", "", "reasoning:I think.|message:Hi \xF0\x9F\xA6\x80.|", "completed");
    check("I think.</think>\\n\\nNow:\\n" CALL, "\"tools\":[" TOOL "]",
          "reasoning:I think.|message:Now:|function_call:weather({\"city\":\"Paris\",\"days\":3})|", "completed");
    check(
        "I think.</think>\\n\\n" CALL "\\n" CALL, "\"tools\":[" TOOL "]",
        "reasoning:I think.|function_call:weather({\"city\":\"Paris\",\"days\":3})|function_call:weather({\"city\":\"Paris\",\"days\":3})|",
        "completed");
    check("Think " CALL, "\"tools\":[" TOOL "]", "reasoning:Think|function_call:weather({\"city\":\"Paris\",\"days\":3})|", "completed");
}

static void test_a_cut_answer_is_incomplete(void **state) {
    (void)state;
    reply r;
    json_object *tree = post("{\"input\":\"one two three four\",\"max_output_tokens\":2,\"enable_thinking\":false}", 200, &r);
    assert_string_equal(json_str(tree, "status"), "incomplete");
    assert_string_equal(json_str(tree, "incomplete_details.reason"), "max_output_tokens");
    assert_string_equal(json_str(tree, "output.0.status"), "incomplete");
    assert_string_equal(json_str(tree, "output.0.content.0.text"), "one two");
    json_object_put(tree);
    reply_free(&r);
    stream s;
    read_stream("{\"input\":\"one two three four\",\"max_output_tokens\":2,\"enable_thinking\":false,\"stream\":true}", &s);
    assert_string_equal(s.type, "response.incomplete");
    assert_string_equal(json_str(s.last, "response.output.0.status"), "incomplete");
    stream_done(&s);
}

static void test_a_failure_in_a_stream_is_told_in_it(void **state) {
    (void)state;
    stream s;
    read_stream("{\"input\":\"@fail=2 one two three four\",\"enable_thinking\":false,\"stream\":true}", &s);
    assert_string_equal(s.type, "response.failed");
    assert_string_equal(json_str(s.last, "response.status"), "failed");
    assert_string_equal(json_str(s.last, "response.error.code"), "device_failed");
    assert_non_null(strstr(json_str(s.last, "response.error.message"), "scripted device"));
    stream_done(&s);
}

/* A30. */
static void test_silence_is_kept_alive_by_events(void **state) {
    (void)state;
    stream s;
    read_stream("{\"input\":\"@prompt=1x2600 Hi.\",\"enable_thinking\":false,\"stream\":true}", &s);
    assert_in_range(s.keepalives, 1, 3);
    assert_string_equal(s.type, "response.completed");
    stream_done(&s);
}

static void test_progress_on_request(void **state) {
    (void)state;
    reply r;
    harness_post_to(&h, PATH, "{\"input\":\"@prompt=4x50 Hi.\",\"enable_thinking\":false,\"stream\":true,\"return_progress\":true}", &r);
    assert_int_equal(r.status, 200);
    assert_non_null(
        strstr(r.body.data, "event: keepalive\ndata: {\"type\":\"keepalive\",\"sequence_number\":2,\"prompt_progress\":{\"processed\":"));
    reply_free(&r);
}

/* The text of a free-text tool is withheld until its end, which must not look like death.  A30. */
static void test_a_withheld_input_is_kept_alive(void **state) {
    (void)state;
    stream s;
    read_stream("{\"input\":\"@token=35 </think><tool_call>\\n<function=patch>\\n<parameter=input>\\na b c d e f g h i j k l m n o p q r s "
                "t u v w x y "
                "z a b c d e f g h i j k l m n o p q r s t u v w x y z\\n</parameter>\\n</function>\\n</tool_call>\",\"stream\":true,"
                "\"tools\":[{\"type\":\"custom\",\"name\":\"patch\"}]}",
                &s);
    assert_true(s.keepalives >= 1);
    assert_string_equal(json_str(s.last, "response.output.0.name"), "patch");
    stream_done(&s);
}

static void test_half_a_surrogate_pair(void **state) {
    (void)state;
    check("\\ud83e and \\udd80 and \\ud83e\\udd80", "\"enable_thinking\":false",
          "message:\xEF\xBF\xBD and \xEF\xBF\xBD and \xF0\x9F\xA6\x80|", "completed");
}

static void test_fields_come_back(void **state) {
    (void)state;
    reply r;
    json_object *tree = post("{\"model\":\"gpt-x\",\"input\":\"Hi\",\"instructions\":\"Be \\\"brief\\\".\",\"metadata\":{\"a\":\"b\"},"
                             "\"enable_thinking\":false,\"temperature\":0.5,\"tools\":[" TOOL "],\"tool_choice\":\"none\",\"store\":false,"
                             "\"service_tier\":\"flex\",\"text\":{\"verbosity\":\"low\"},\"truncation\":\"auto\",\"something\":1}",
                             200, &r);
    char header[256];
    assert_string_equal(json_str(tree, "model"), "gpt-x");
    assert_string_equal(json_str(tree, "instructions"), "Be \"brief\".");
    assert_string_equal(json_str(tree, "metadata.a"), "b");
    assert_string_equal(json_str(tree, "tools.0.name"), "weather");
    assert_string_equal(json_str(tree, "tool_choice"), "none");
    assert_true(json_object_get_double(json_at(tree, "temperature")) == 0.5);
    assert_false(json_object_get_boolean(json_at(tree, "store")));
    assert_string_equal(reply_header(&r, "x-calla-ignored", header), "service_tier, text.verbosity, truncation, something");
    json_object_put(tree);
    reply_free(&r);
}

static void test_log_probabilities(void **state) {
    (void)state;
    reply r;
    const char *more = "\"include\":[\"message.output_text.logprobs\"],\"top_logprobs\":3";
    char *body = body_of("Why?</think>\\n\\none two", more);
    json_object *tree = post(body, 200, &r);
    json_object *whole = json_at(tree, "output.1.content.0.logprobs");
    assert_true(json_object_array_length(whole) >= 2);
    assert_int_equal(json_object_array_length(json_at(whole, "0.top_logprobs")), 3);
    mem_free(body);
    char streaming[256];
    snprintf(streaming, sizeof streaming, "%s,\"stream\":true", more);
    body = body_of("Why?</think>\\n\\none two", streaming);
    stream s;
    read_stream(body, &s);
    assert_true(json_object_equal(whole, json_at(s.last, "response.output.1.content.0.logprobs")));
    stream_done(&s);
    mem_free(body);
    json_object_put(tree);
    reply_free(&r);
}

static void test_thoughts_are_sealed_on_request(void **state) {
    (void)state;
    reply r;
    char *body = body_of("Why?</think>Because.", "\"include\":[\"reasoning.encrypted_content\"]");
    json_object *tree = post(body, 200, &r);
    assert_string_equal(json_str(tree, "output.0.encrypted_content"), "calla-thought:Why?");
    mem_free(body);
    json_object_put(tree);
    reply_free(&r);
}

/* -------------------------------------------------------------- tools ---------------------------------------------------- */

/* A33. */
static void test_tools_of_namespaces_and_free_text(void **state) {
    (void)state;
    const char *tools =
        "\"tools\":[{\"type\":\"namespace\",\"name\":\"mcp__files\",\"tools\":[{\"type\":\"function\",\"name\":\"read\","
        "\"parameters\":{\"type\":\"object\",\"properties\":{\"path\":{\"type\":\"string\"}}}}]},"
        "{\"type\":\"custom\",\"name\":\"patch\",\"format\":{\"type\":\"grammar\",\"syntax\":\"lark\",\"definition\":\"x\"}}]";
    const char *read =
        "So.</think>\\n<tool_call>\\n<function=mcp__files__read>\\n<parameter=path>\\na.c\\n</parameter>\\n</function>\\n</tool_call>";
    check(read, tools, "reasoning:So.|function_call:read({\"path\":\"a.c\"})|", "completed");
    const char *patch = "So.</think>\\n<tool_call>\\n<function=patch>\\n<parameter=input>\\n*** "
                        "\\\"Begin\\\"\\n+1\\n</parameter>\\n</function>\\n</tool_call>";
    check(patch, tools, "reasoning:So.|custom_tool_call:patch(*** \"Begin\"\n+1)|", "completed");
    reply r;
    char *body = body_of(read, tools);
    json_object *tree = post(body, 200, &r);
    assert_string_equal(json_str(tree, "output.1.namespace"), "mcp__files");
    json_object_put(tree);
    reply_free(&r);
    mem_free(body);
}

static void test_a_single_call_ends_the_answer(void **state) {
    (void)state;
    check("So.</think>\\n\\nNow:\\n" CALL "\\n" CALL "\\nMore.", "\"tools\":[" TOOL "],\"parallel_tool_calls\":false",
          "reasoning:So.|message:Now:|function_call:weather({\"city\":\"Paris\",\"days\":3})|", "completed");
    check("@endless </think>" CALL, "\"tools\":[" TOOL "],\"parallel_tool_calls\":false",
          "function_call:weather({\"city\":\"Paris\",\"days\":3})|", "completed");
    reply r;
    char *json =
        chat_json("</think><tool_call>\n<function=f>\n</function>\n</tool_call>\n<tool_call>\n<function=f>\n</function>\n</tool_call>",
                  "\"parallel_tool_calls\":false,\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]");
    harness_post(&h, json, &r);
    json_object *tree = reply_json_body(&r);
    assert_int_equal(json_object_array_length(json_at(tree, "choices.0.message.tool_calls")), 1);
    assert_string_equal(json_str(tree, "choices.0.finish_reason"), "tool_calls");
    json_object_put(tree);
    reply_free(&r);
    mem_free(json);
    harness_post_to(&h, "/v1/messages",
                    "{\"max_tokens\":99,\"tools\":[{\"name\":\"f\",\"input_schema\":{}}],\"tool_choice\":{\"type\":\"auto\","
                    "\"disable_parallel_tool_use\":true},\"messages\":[{\"role\":\"user\",\"content\":\"<tool_call>\\n<function=f>\\n"
                    "</function>\\n</tool_call>\\n<tool_call>\\n<function=f>\\n</function>\\n</tool_call>\"}]}",
                    &r);
    tree = reply_json_body(&r);
    assert_int_equal(json_object_array_length(json_at(tree, "content")), 1);
    assert_string_equal(json_str(tree, "stop_reason"), "tool_use");
    json_object_put(tree);
    reply_free(&r);
}

/* A33. */
static void test_tools_of_other_kinds_are_left_out(void **state) {
    (void)state;
    reply r;
    char header[256];
    json_object *tree = post("{\"input\":\"Hi\",\"enable_thinking\":false,\"tools\":[" TOOL ",{\"type\":\"web_search\"},"
                             "{\"type\":\"image_generation\",\"size\":\"auto\"},{\"type\":\"namespace\",\"name\":\"n\",\"tools\":[]}]}",
                             200, &r);
    assert_string_equal(reply_header(&r, "x-calla-warning", header),
                        "tools of type web_search were left out; tools of type image_generation were left out");
    json_object_put(tree);
    reply_free(&r);
}

/* A tool loop as agents make it: each request holds all that was before. */
static void test_seventy_rounds_of_tools(void **state) {
    (void)state;
    harness long_window;
    const fake_options fake = {.context_tokens = 65536};
    harness_open(&long_window, NULL, &fake);
    buffer items = {0};
    buffer_append_str(&items, "{\"role\":\"user\",\"content\":\"Round 0.</think>" CALL "\"}");
    const int rounds = getenv("CALLA_TEST_SHORT") ? 15 : 70;
    for (int round = 0; round < rounds; round++) {
        buffer body = {0};
        buffer_printf(&body, "{\"store\":false,\"include\":[\"reasoning.encrypted_content\"],\"tools\":[" TOOL "],\"input\":[");
        buffer_append(&body, items.data, items.n);
        buffer_append_str(&body, "]}");
        reply r;
        harness_post_to(&long_window, PATH, body.data, &r);
        assert_int_equal(r.status, 200);
        json_object *tree = reply_json_body(&r), *output = json_at(tree, "output");
        char want[64];
        snprintf(want, sizeof want, "Round %d.", round);
        assert_non_null(strstr(json_str(output, "0.content.0.text"), want));
        assert_string_equal(json_str(output, "1.type"), "function_call");
        assert_string_equal(json_str(output, "1.arguments"), "{\"city\":\"Paris\",\"days\":3}");
        for (size_t i = 0; i < json_object_array_length(output); i++)
            buffer_printf(&items, ",%s", json_object_to_json_string_ext(json_object_array_get_idx(output, i), JSON_C_TO_STRING_PLAIN));
        /* what the tool says is what the scripted model answers next, between the tags of the template */
        buffer_printf(
            &items,
            ",{\"type\":\"function_call_output\",\"call_id\":\"%s\",\"output\":[{\"type\":\"input_text\",\"text\":\"Round %d.</think>" CALL
            "\"}]}",
            json_str(output, "1.call_id"), round + 1);
        json_object_put(tree);
        reply_free(&r);
        buffer_free(&body);
    }
    buffer_free(&items);
    harness_close(&long_window);
}

/* ------------------------------------------------------------- refusals -------------------------------------------------- */

static void test_refusals_name_the_field(void **state) {
    (void)state;
    static const struct {
        const char *body, *param, *code;
    } cases[] = {
        {"{}", "input", "missing_parameter"},
        {"{\"input\":7}", "input", ""},
        {"{\"input\":[]}", "input", ""},
        {"{\"input\":[7]}", "input[0]", ""},
        {"{\"input\":[{\"role\":\"robot\",\"content\":\"x\"}]}", "input[0]", ""},
        {"{\"input\":[{\"role\":\"user\"}]}", "input[0].content", ""},
        {"{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_image\",\"image_url\":\"data:x\"}]}]}", "input[0].content[0]",
         "unsupported_content"},
        {"{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_file\",\"file_id\":\"f\"}]}]}", "input[0].content[0]",
         "unsupported_content"},
        {"{\"input\":[{\"type\":\"function_call\",\"arguments\":\"{}\"}]}", "input[0]", ""},
        {"{\"input\":\"x\",\"tools\":[{\"type\":\"function\"}]}", "tools[0]", ""},
        {"{\"input\":\"x\",\"tools\":[{\"type\":\"namespace\",\"name\":\"n\",\"tools\":[{}]}]}", "tools[0].tools[0]", ""},
        {"{\"input\":\"x\",\"tool_choice\":\"required\"}", "tool_choice", ""},
        {"{\"input\":\"x\",\"tool_choice\":\"many\"}", "tool_choice", "unsupported_parameter"},
        {"{\"input\":\"x\",\"text\":{\"format\":{\"type\":\"grammar\"}}}", "text.format", "unsupported_parameter"},
        {"{\"input\":\"x\",\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":\"a\"}}}", "text.format", ""},
        {"{\"input\":\"x\",\"background\":true}", "background", "unsupported_parameter"},
        {"{\"input\":\"x\",\"reasoning\":{\"effort\":\"a lot\"}}", "reasoning.effort", ""},
        {"{\"input\":\"x\",\"max_output_tokens\":0}", "max_output_tokens", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        reply r;
        json_object *tree = post(cases[i].body, 400, &r);
        assert_string_equal(json_str(tree, "error.param"), cases[i].param);
        assert_string_equal(json_str(tree, "error.code"), cases[i].code);
        json_object_put(tree);
        reply_free(&r);
    }
}

static void test_a_prompt_that_does_not_fit(void **state) {
    (void)state;
    buffer body = {0};
    buffer_append_str(&body, "{\"stream\":true,\"input\":\"");
    for (int i = 0; i < 9000; i++) buffer_append_str(&body, "long ");
    buffer_append_str(&body, "\"}");
    reply r;
    json_object *tree = post(body.data, 400, &r);
    assert_string_equal(json_str(tree, "error.code"), "context_length_exceeded");
    assert_non_null(
        strstr(json_str(tree, "error.message"), "This model's maximum context length is 4096 tokens. However, your messages resulted in "));
    json_object_put(tree);
    reply_free(&r);
    buffer_free(&body);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_a_cut_answer_is_incomplete),
        cmocka_unit_test(test_a_failure_in_a_stream_is_told_in_it),
        cmocka_unit_test(test_silence_is_kept_alive_by_events),
        cmocka_unit_test(test_progress_on_request),
        cmocka_unit_test(test_a_withheld_input_is_kept_alive),
        cmocka_unit_test(test_half_a_surrogate_pair),
        cmocka_unit_test(test_fields_come_back),
        cmocka_unit_test(test_log_probabilities),
        cmocka_unit_test(test_thoughts_are_sealed_on_request),
        cmocka_unit_test(test_tools_of_namespaces_and_free_text),
        cmocka_unit_test(test_a_single_call_ends_the_answer),
        cmocka_unit_test(test_tools_of_other_kinds_are_left_out),
        cmocka_unit_test(test_seventy_rounds_of_tools),
        cmocka_unit_test(test_refusals_name_the_field),
        cmocka_unit_test(test_a_prompt_that_does_not_fit),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
