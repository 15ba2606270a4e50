/* Answers that are held to a form, over HTTP on a scripted engine, which writes of its script what the form lets it: documents, calls that must
 * come, strict calls, in each dialect, whole and streamed. */
#include "unit.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "harness.h"

static harness h;

static int setup(void **state) {
    (void)state;
    log_set_level(LOG_ERROR);
    harness_open(&h, NULL, NULL);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    harness_close(&h);
    return 0;
}

#define OFF "\"enable_thinking\":false,"
#define SCHEMA                                                                                                                             \
    "{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\"}},\"required\":[\"city\","         \
    "\"days\"],\"additionalProperties\":false}"
#define FORMAT "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"trip\",\"strict\":true,\"schema\":" SCHEMA "}}"
#define PARIS "{\"city\":\"Paris\",\"days\":3}"

/* ---------------------------------------------------------- answers ------------------------------------------------------ */

/* What the first choice of a chat answer says; calls as "name(arguments);" each. */
typedef struct said {
    buffer reasoning, content, calls;
    char finish[32], warning[256];
} said;

static void said_free(said *s) {
    buffer_free(&s->reasoning);
    buffer_free(&s->content);
    buffer_free(&s->calls);
}

static void post_chat(const char *say, const char *more, reply *r) {
    char *json = chat_json(say, more);
    harness_post(&h, json, r);
    mem_free(json);
}

static said ask(const char *say, const char *more) {
    said s = {0};
    reply r;
    post_chat(say, more, &r);
    if (r.status != 200) fail_msg("%s, %s: %d %s", say, more, r.status, r.body.data);
    json_object *tree = reply_json_body(&r), *calls = json_at(tree, "choices.0.message.tool_calls");
    buffer_append_str(&s.reasoning, json_str(tree, "choices.0.message.reasoning_content"));
    buffer_append_str(&s.content, json_str(tree, "choices.0.message.content"));
    buffer_append_str(&s.calls, "");
    for (size_t i = 0; calls && i < json_object_array_length(calls); i++) {
        json_object *call = json_object_array_get_idx(calls, i);
        buffer_printf(&s.calls, "%s(%s);", json_str(call, "function.name"), json_str(call, "function.arguments"));
    }
    snprintf(s.finish, sizeof s.finish, "%s", json_str(tree, "choices.0.finish_reason"));
    reply_header(&r, "x-calla-warning", s.warning);
    json_object_put(tree);
    reply_free(&r);
    return s;
}

/* The stream must say the same. */
static void check_stream(const char *say, const char *more, const said *want) {
    reply r;
    char streamed[4096];
    assert_true((size_t)snprintf(streamed, sizeof streamed, "%s,\"stream\":true", more) < sizeof streamed);
    post_chat(say, streamed, &r);
    assert_int_equal(r.status, 200);
    stream_sum s;
    stream_read(&r, 0, &s);
    assert_true(s.done_is_last && !s.error);
    assert_string_equal(s.reasoning.data, want->reasoning.data);
    assert_string_equal(s.content.data, want->content.data);
    assert_string_equal(s.calls.data, want->calls.data);
    assert_string_equal(s.finish, want->finish);
    stream_free(&s);
    reply_free(&r);
}

static void expect(const char *say, const char *more, const char *reasoning, const char *content, const char *calls, const char *finish) {
    said s = ask(say, more);
    if (strcmp(s.reasoning.data, reasoning) || strcmp(s.content.data, content) || strcmp(s.calls.data, calls) || strcmp(s.finish, finish))
        fail_msg("%s, %s: reasoning \"%s\", content \"%s\", calls \"%s\", %s", say, more, s.reasoning.data, s.content.data, s.calls.data,
                 s.finish);
    assert_string_equal(s.warning, "");
    check_stream(say, more, &s);
    said_free(&s);
}

/* The content is a trip: a city, which is returned, and a number of days.  The caller's. */
static char *expect_trip(const char *say, const char *more) {
    said s = ask(say, more);
    json_object *trip = NULL;
    calla_error err;
    if (json_parse(s.content.data, s.content.n, "content", &trip, &err)) fail_msg("%s: %s: %s", say, err.message, s.content.data);
    assert_int_equal(json_object_object_length(trip), 2);
    assert_true(json_object_is_type(json_at(trip, "city"), json_type_string));
    assert_true(json_object_is_type(json_at(trip, "days"), json_type_int));
    assert_string_equal(s.finish, "stop");
    assert_string_equal(s.calls.data, "");
    char *city = mem_strdup(json_str(trip, "city"));
    json_object_put(trip);
    check_stream(say, more, &s);
    said_free(&s);
    return city;
}

/* --------------------------------------------------------- documents ----------------------------------------------------- */

/* A09: an answer fits its schema whatever the model had in mind, or the field is refused (test_what_is_not_understood); never ignored. */
static void test_a_document_without_a_thought(void **state) {
    (void)state;
    expect(PARIS, OFF FORMAT, "", PARIS, "", "stop");
    expect(PARIS " I hope this helps!", OFF FORMAT, "", PARIS, "", "stop");
    expect("Sure: here\n" PARIS, OFF FORMAT, "", PARIS, "", "stop");
    expect("{\"a\": [1, true, null]}", OFF "\"response_format\":{\"type\":\"json_object\"}", "", "{\"a\": [1, true, null]}", "", "stop");
    /* An end that comes too early, a property that is not there, a value of another type. */
    static const char *const wrong[] = {"{\"city\":\"Paris\"", "{\"city\":\"Paris\"}", "{\"city\":\"Paris\",\"country\":\"France\"}",
                                        "{\"city\":\"Paris\",\"days\":\"three\"}", "{\"city\":\"Paris"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char *city = expect_trip(wrong[i], OFF FORMAT);
        assert_string_equal(city, "Paris");
        mem_free(city);
    }
    mem_free(expect_trip("", OFF FORMAT));
    mem_free(expect_trip("I cannot answer that.", OFF FORMAT));
    mem_free(expect_trip("Hello! How can I help you?", OFF FORMAT));
    said s = ask("Hello! How can I help you?", OFF "\"response_format\":{\"type\":\"json_object\"}");
    json_object *object = NULL;
    calla_error err;
    assert_int_equal(json_parse(s.content.data, s.content.n, "content", &object, &err), CALLA_OK);
    assert_true(json_object_is_type(object, json_type_object));
    json_object_put(object);
    said_free(&s);
}

/* A08. */
static void test_a_document_behind_a_thought(void **state) {
    (void)state;
    expect("A {thought}: [\n</think>\n\n" PARIS, FORMAT, "A {thought}: [", PARIS, "", "stop");
    expect("A thought</think>" PARIS, FORMAT, "A thought", PARIS, "", "stop");
    /* A call begun within a thought would end it. */
    expect("one\n<tool_call>\ntwo\n</think>\n\n" PARIS, FORMAT, "one\n\ntwo", PARIS, "", "stop");
    /* A thought that would not end, or that ends without an answer. */
    said s = ask("Only thoughts", FORMAT ",\"max_tokens\":400");
    json_object *trip = NULL;
    assert_int_equal(json_parse(s.content.data, s.content.n, "content", &trip, NULL), CALLA_OK);
    assert_memory_equal(s.reasoning.data, "Only thoughts", 13);
    assert_string_equal(s.finish, "stop");
    json_object_put(trip);
    said_free(&s);
    expect("one two three four five six</think>\n\n" PARIS, FORMAT ",\"thinking_budget\":3", "one two three", PARIS, "", "stop");
}

static void test_a_limit_leaves_a_beginning(void **state) {
    (void)state;
    for (int n = 1; n < 8; n++) {
        char more[512];
        snprintf(more, sizeof more, OFF FORMAT ",\"max_tokens\":%d", n);
        said s = ask(PARIS, more);
        if (strcmp(s.finish, "stop") != 0) {
            assert_string_equal(s.finish, "length");
            assert_memory_equal(s.content.data, PARIS, s.content.n);
        }
        check_stream(PARIS, more, &s);
        said_free(&s);
    }
}

static void test_each_choice_has_its_own(void **state) {
    (void)state;
    reply r;
    post_chat("@choice " PARIS, OFF FORMAT ",\"n\":4,\"logprobs\":true", &r);
    json_object *tree = reply_json_body(&r);
    for (int i = 0; i < 4; i++) {
        char path[64];
        snprintf(path, sizeof path, "choices.%d.message.content", i);
        assert_string_equal(json_str(tree, path), PARIS);
        snprintf(path, sizeof path, "choices.%d.logprobs.content", i);
        assert_true(json_object_array_length(json_at(tree, path)) > 5);
    }
    json_object_put(tree);
    reply_free(&r);
    post_chat("@choice " PARIS, OFF FORMAT ",\"n\":4,\"stream\":true", &r);
    for (int i = 0; i < 4; i++) {
        stream_sum s;
        stream_read(&r, i, &s);
        assert_string_equal(s.content.data, PARIS);
        stream_free(&s);
    }
    reply_free(&r);
}

static void test_expressions_and_choices(void **state) {
    (void)state;
    const char *regex = OFF "\"guided_regex\":\"[0-9]{3}-[0-9]{4}\"", *choice = OFF "\"guided_choice\":[\"positive\",\"negative\"]";
    expect("Call 555-1234 now", regex, "", "555-1234", "", "stop");
    expect("555-1", regex, "", "555-1000", "", "stop");
    expect("negative", choice, "", "negative", "", "stop");
    expect("(positive)", choice, "", "positive", "", "stop");
    expect("hm</think>\n\nnegative", "\"guided_choice\":[\"positive\",\"negative\"]", "hm", "negative", "", "stop");
    reply r; /* and without a chat template */
    harness_post_to(&h, "/v1/completions", "{\"prompt\":\"negative!\",\"guided_choice\":[\"positive\",\"negative\"]}", &r);
    json_object *tree = reply_json_body(&r);
    assert_string_equal(json_str(tree, "choices.0.text"), "negative");
    json_object_put(tree);
    reply_free(&r);
}

/* ----------------------------------------------------------- calls ------------------------------------------------------- */

#define TOOL(name, more, properties)                                                                                                       \
    "{\"type\":\"function\",\"function\":{\"name\":\"" name "\"" more ",\"parameters\":{\"type\":\"object\",\"properties\":{" properties   \
    "},\"required\":[\"days\"],\"additionalProperties\":false}}}"
#define CITY "\"city\":{\"type\":\"string\"}"
#define DAYS "\"days\":{\"type\":\"integer\"}"
#define TOOLS "\"tools\":[" TOOL("weather", "", CITY "," DAYS) "," TOOL("clock", "", DAYS) "]"
#define STRICT_TOOLS "\"tools\":[" TOOL("weather", ",\"strict\":true", CITY "," DAYS) "]"
#define CALL(name, city, days)                                                                                                             \
    "<tool_call>\n<function=" name ">\n<parameter=city>\n" city "\n</parameter>\n<parameter=days>\n" days "\n</parameter>\n</function>\n"  \
    "</tool_call>"
#define PARIS_CALL "weather({\"city\":\"Paris\",\"days\":3});"

static void test_a_call_must_come(void **state) {
    (void)state;
    const char *required = OFF "\"tool_choice\":\"required\"," TOOLS;
    const char *named = OFF "\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"clock\"}}," TOOLS;
    expect(CALL("weather", "Paris", "3"), required, "", "", PARIS_CALL, "tool_calls");
    expect("Let me see." CALL("weather", "Paris", "3"), required, "", "", PARIS_CALL, "tool_calls");
    expect("Hm.\n</think>\n\n" CALL("weather", "Paris", "3"), "\"tool_choice\":\"required\"," TOOLS, "Hm.", "", PARIS_CALL, "tool_calls");
    said s = ask("I would rather not.", required);
    assert_true(s.calls.n > 0);
    assert_string_equal(s.content.data, "");
    assert_string_equal(s.finish, "tool_calls");
    said_free(&s);
    s = ask(CALL("weather", "Paris", "3"), named);
    assert_memory_equal(s.calls.data, "clock({\"days\":", 14);
    assert_string_equal(s.finish, "tool_calls");
    said_free(&s);
}

static void test_strict_calls_are_well_formed(void **state) {
    (void)state;
    expect(CALL("weather", "Paris", "3"), OFF TOOLS, "", "", PARIS_CALL, "tool_calls");
    expect("Just text.", OFF TOOLS, "", "Just text.", "", "stop");
    expect("Hm</think>\n\nText before. " CALL("weather", "Paris", "3"), TOOLS, "Hm", "Text before.", PARIS_CALL, "tool_calls");
    static const char *const wrong[] = {
        CALL("weather", "Paris", "three"),                                                                   /* a value of another type */
        "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>", /* a required one is missing */
        "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n</tool_call>",
        "<tool_call>\n<function=weather>\n<parameter=country>\nFrance\n</parameter>\n</function>\n</tool_call>"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        said s = ask(wrong[i], OFF STRICT_TOOLS);
        const char *open = strchr(s.calls.data, '(');
        json_object *arguments = NULL;
        if (!open || json_parse(open + 1, s.calls.n - (size_t)(open + 1 - s.calls.data) - 2, "arguments", &arguments, NULL))
            fail_msg("%s: %s, content %s", wrong[i], s.calls.data, s.content.data);
        assert_true(json_object_is_type(json_at(arguments, "days"), json_type_int));
        assert_string_equal(s.finish, "tool_calls");
        json_object_put(arguments);
        said_free(&s);
    }
}

static void test_a_single_call(void **state) {
    (void)state;
    const char *two = CALL("weather", "Paris", "3") "\n" CALL("weather", "Rome", "4");
    expect(two, OFF TOOLS, "", "", PARIS_CALL "weather({\"city\":\"Rome\",\"days\":4});", "tool_calls");
    expect(two, OFF "\"parallel_tool_calls\":false," TOOLS, "", "", PARIS_CALL, "tool_calls");
    expect(two, OFF "\"parallel_tool_calls\":false,\"tool_choice\":\"required\"," TOOLS, "", "", PARIS_CALL, "tool_calls");
}

static void test_some_tools_are_allowed(void **state) {
    (void)state;
    const char *clock = OFF "\"tool_choice\":{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":\"auto\",\"tools\":[{\"type\":"
                            "\"function\",\"function\":{\"name\":\"clock\"}}]}}," TOOLS;
    expect("Text", clock, "", "Text", "", "stop");
    said s = ask(CALL("weather", "Paris", "3"), clock);
    assert_memory_equal(s.calls.data, "clock({\"days\":", 14);
    said_free(&s);
}

static void test_a_call_or_the_document(void **state) {
    (void)state;
    expect(PARIS, OFF FORMAT "," TOOLS, "", PARIS, "", "stop");
    expect(CALL("weather", "Paris", "3"), OFF FORMAT "," TOOLS, "", "", PARIS_CALL, "tool_calls");
}

/* -------------------------------------------------------- other dialects ------------------------------------------------- */

static json_object *post(const char *path, const char *input, const char *say, const char *more, int status) {
    buffer body = {0};
    reply r;
    buffer_printf(&body, "{\"max_tokens\":300,%s,%s", more, input);
    json_append_string(&body, say, strlen(say));
    buffer_append_str(&body, !strcmp(path, "/v1/messages") ? "}]}" : "}");
    harness_post_to(&h, path, body.data, &r);
    if (r.status != status) fail_msg("%s: %d %s", body.data, r.status, r.body.data);
    json_object *tree = reply_json_body(&r);
    reply_free(&r);
    buffer_free(&body);
    return tree;
}

static json_object *message(const char *say, const char *more, int status) {
    return post("/v1/messages", "\"messages\":[{\"role\":\"user\",\"content\":", say, more, status);
}

static json_object *response(const char *say, const char *more, int status) {
    return post("/v1/responses", "\"enable_thinking\":false,\"input\":", say, more, status);
}

static void test_messages(void **state) {
    (void)state;
#define ITS_TOOL                                                                                                                           \
    "\"tools\":[{\"name\":\"weather\",\"input_schema\":{\"type\":\"object\",\"properties\":{" CITY "," DAYS "},\"required\":[\"city\"]}}]"
    json_object *m = message("Here:\n" PARIS "!", "\"output_config\":{\"format\":{\"type\":\"json_schema\",\"schema\":" SCHEMA "}}", 200);
    assert_string_equal(json_str(m, "content.0.text"), PARIS);
    json_object_put(m);
    const char *const forced[] = {"\"tool_choice\":{\"type\":\"any\"}," ITS_TOOL,
                                  "\"tool_choice\":{\"type\":\"tool\",\"name\":\"weather\",\"disable_parallel_tool_use\":true}," ITS_TOOL};
    for (int i = 0; i < 2; i++) {
        m = message("Well. " CALL("weather", "Paris", "3") "\n" CALL("weather", "Rome", "4"), forced[i], 200);
        assert_int_equal(json_object_array_length(json_at(m, "content")), i ? 1 : 2);
        assert_string_equal(json_str(m, "content.0.name"), "weather");
        assert_string_equal(json_str(m, "content.0.input.city"), "Paris");
        assert_int_equal(json_int(m, "content.0.input.days"), 3);
        assert_string_equal(json_str(m, "stop_reason"), "tool_use");
        json_object_put(m);
    }
    m = message("x", "\"output_config\":{\"format\":{\"type\":\"json_schema\",\"schema\":{\"maxItems\":1000000000,\"items\":{}}}}", 400);
    assert_string_equal(json_str(m, "type"), "error");
    assert_string_equal(json_str(m, "error.type"), "invalid_request_error");
    assert_non_null(strstr(json_str(m, "error.message"), "maxItems"));
    json_object_put(m);
}

static void test_responses(void **state) {
    (void)state;
#define THEIR_TOOL                                                                                                                         \
    "\"tools\":[{\"type\":\"namespace\",\"name\":\"sky\",\"tools\":[{\"type\":\"function\",\"name\":\"weather\",\"parameters\":{\"type\":" \
    "\"object\",\"properties\":{" CITY "," DAYS "},\"required\":[\"city\"]}}]}]"
    json_object *r =
        response("Here:\n" PARIS, "\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":\"trip\",\"schema\":" SCHEMA "}}", 200);
    assert_string_equal(json_str(r, "output.0.content.0.text"), PARIS);
    assert_string_equal(json_str(r, "text.format.name"), "trip");
    json_object_put(r);
    const char *const forced[] = {"\"tool_choice\":\"required\"," THEIR_TOOL,
                                  "\"tool_choice\":{\"type\":\"function\",\"name\":\"weather\"}," THEIR_TOOL};
    for (int i = 0; i < 2; i++) {
        r = response("Well. " CALL("sky__weather", "Paris", "3"), forced[i], 200);
        assert_int_equal(json_object_array_length(json_at(r, "output")), 1);
        assert_string_equal(json_str(r, "output.0.name"), "weather");
        assert_string_equal(json_str(r, "output.0.arguments"), PARIS);
        json_object_put(r);
    }
    r = response("x", "\"text\":{\"format\":{\"type\":\"json_schema\",\"schema\":{\"properties\":{\"a\":{\"not\":{}}}}}}", 400);
    assert_string_equal(json_str(r, "error.param"), "text.format");
    assert_string_equal(json_str(r, "error.code"), "invalid_json_schema");
    assert_non_null(strstr(json_str(r, "error.message"), "not"));
    assert_non_null(strstr(json_str(r, "error.message"), "/properties/a"));
    json_object_put(r);
}

/* ---------------------------------------------------------- refusals ----------------------------------------------------- */

static void expect_refused(const char *more, const char *field, const char *word, const char *path) {
    for (int again = 0; again < 2; again++) { /* the second time out of the cache */
        reply r;
        post_chat("x", more, &r);
        if (r.status != 400) fail_msg("%s: %d %s", more, r.status, r.body.data);
        json_object *tree = reply_json_body(&r);
        assert_string_equal(json_str(tree, "error.param"), field);
        assert_string_equal(json_str(tree, "error.type"), "invalid_request_error");
        const char *text = json_str(tree, "error.message");
        if (!strstr(text, word) || !strstr(text, path)) fail_msg("%s and %s are not both in: %s", word, path, text);
        json_object_put(tree);
        reply_free(&r);
    }
}

#define OF_SCHEMA(schema, more) "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{" more "\"schema\":" schema "}}"
#define ODD "{\"type\":\"object\",\"properties\":{\"a\":{\"not\":{\"type\":\"null\"}}}}"
#define ODD_TOOL(more) "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"" more ",\"parameters\":" ODD "}}]"

/* A09: nothing is accepted and then not held to. */
static void test_what_is_not_understood(void **state) {
    (void)state;
    expect_refused(OF_SCHEMA(ODD, ""), "response_format", "not", "/properties/a");
    expect_refused(OF_SCHEMA("{\"type\":\"array\",\"maxItems\":1000000000}", ""), "response_format", "maxItems", "");
    expect_refused("\"guided_regex\":\"a(?=b)\"", "guided_regex", "looking ahead", "byte 4");
    expect_refused("\"guided_regex\":\"((a{1,1000}){1,1000}){1,1000}\"", "guided_regex", "", "");
    expect_refused(ODD_TOOL(",\"strict\":true"), "tools", "not", "/properties/a");
    mem_free(expect_trip(PARIS, OFF "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"strict\":false,\"schema\":{\"type\":"
                                    "\"object\",\"not\":{},\"properties\":{" CITY "," DAYS "},\"required\":[\"city\",\"days\"]}}}"));
    expect("Text", OFF ODD_TOOL(""), "", "Text", "", "stop");
}

/* A form that takes its whole budget to be refused, hundreds of milliseconds, is not compiled where sockets are served. */
static void test_others_are_served_while_a_form_is_compiled(void **state) {
    (void)state;
    client c;
    reply r;
    char *json = chat_json("x", OF_SCHEMA("{\"type\":\"string\",\"pattern\":\"^(a|b)*a(a|b){28}$\"}", "")), *request = post_request(json);
    client_open(&c, h.port);
    client_send_str(&c, request);
    for (int i = 0; i < 3; i++) { /* the second of them, if not the first, is read behind the form */
        harness_get(&h, "/health", &r);
        assert_int_equal(r.status, 200);
        reply_free(&r);
    }
    assert_int_equal(client_wait_for(&c, "HTTP", 0), -1);
    client_read_reply(&c, &r, 20000);
    assert_int_equal(r.status, 400);
    assert_non_null(strstr(r.body.data, "pattern"));
    reply_free(&r);
    client_close(&c);
    mem_free(json);
    mem_free(request);
}

/* More forms than are kept; each gives its own answers. */
static void test_many_forms(void **state) {
    (void)state;
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < 40; i++) {
            char more[128], want[16];
            snprintf(more, sizeof more, OFF "\"guided_choice\":[\"a%d\",\"b%d\"]", i, i);
            snprintf(want, sizeof want, "b%d", i);
            said s = ask("b", more);
            assert_string_equal(s.content.data, want);
            said_free(&s);
        }
}

/* Clients that leave in the middle, and jobs that outlive them: the harness counts sessions, the sanitizers what they held. */
static void test_clients_that_leave(void **state) {
    (void)state;
    for (int i = 0; i < 6; i++) {
        client c;
        client_open(&c, h.port);
        char *json = chat_json("@token=2 {\"city\":\"a city with a name that takes some tokens to write down in full\",\"days\":1}",
                               OFF FORMAT ",\"stream\":true,\"n\":3");
        char *request = post_request(json);
        client_send_str(&c, request);
        if (i % 2) assert_true(client_wait_for(&c, "city", 5000) >= 0);
        client_reset(&c);
        mem_free(json);
        mem_free(request);
    }
    assert_true(harness_wait_idle(&h, 5000) >= 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_document_without_a_thought),
        cmocka_unit_test(test_a_document_behind_a_thought),
        cmocka_unit_test(test_a_limit_leaves_a_beginning),
        cmocka_unit_test(test_each_choice_has_its_own),
        cmocka_unit_test(test_expressions_and_choices),
        cmocka_unit_test(test_a_call_must_come),
        cmocka_unit_test(test_strict_calls_are_well_formed),
        cmocka_unit_test(test_a_single_call),
        cmocka_unit_test(test_some_tools_are_allowed),
        cmocka_unit_test(test_a_call_or_the_document),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_responses),
        cmocka_unit_test(test_what_is_not_understood),
        cmocka_unit_test(test_others_are_served_while_a_form_is_compiled),
        cmocka_unit_test(test_many_forms),
        cmocka_unit_test(test_clients_that_leave),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
