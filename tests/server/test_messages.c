/* POST /v1/messages and count_tokens on the scripted engine: whole and streamed answers, the order of events, errors, signs of life. */
#include "unit.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "harness.h"

HARNESS_OF_FILE(NULL, NULL)

static void post(const char *json, reply *out) { harness_post_to(&h, "/v1/messages", json, out); }

/* {"max_tokens":100 more,"messages":[{"role":"user","content":say}]}, the caller's. */
static char *body_json(const char *say, const char *more) {
    buffer b = {0};
    buffer_printf(&b, "{\"max_tokens\":100%s%s,\"messages\":[{\"role\":\"user\",\"content\":", *more ? "," : "", more);
    json_append_string(&b, say, strlen(say));
    buffer_append_str(&b, "}]}");
    return buffer_take(&b);
}

/* -------------------------------------------------------- what came ---------------------------------------------------- */

typedef struct outcome {
    buffer blocks; /* "thinking(…);text(…);tool_use name(…);" */
    char stop_reason[32], stop_sequence[32];
    int64_t input_tokens, output_tokens;
    size_t events, pings;
    bool ended; /* message_stop came, as the last event */
    json_object *error;
} outcome;

static void outcome_free(outcome *o) {
    buffer_free(&o->blocks);
    json_object_put(o->error);
}

static void read_stop(json_object *at, outcome *o) {
    snprintf(o->stop_reason, sizeof o->stop_reason, "%s", json_str(at, "stop_reason"));
    snprintf(o->stop_sequence, sizeof o->stop_sequence, "%s", json_str(at, "stop_sequence"));
}

static void read_usage(json_object *usage, outcome *o) {
    o->input_tokens = json_int(usage, "input_tokens");
    o->output_tokens = json_int(usage, "output_tokens");
    assert_int_equal(json_int(usage, "cache_read_input_tokens"), 0);
    assert_int_equal(json_int(usage, "cache_creation_input_tokens"), 0);
}

static outcome read_whole(const reply *r) {
    outcome o = {.events = 1, .ended = true};
    assert_int_equal(r->status, 200);
    json_object *message = reply_json_body(r);
    assert_string_equal(json_str(message, "type"), "message");
    assert_string_equal(json_str(message, "role"), "assistant");
    assert_memory_equal(json_str(message, "id"), "msg_", 4);
    json_object *blocks = json_at(message, "content");
    buffer_append_str(&o.blocks, "");
    for (size_t i = 0; i < json_object_array_length(blocks); i++) {
        json_object *block = json_object_array_get_idx(blocks, i);
        const char *type = json_str(block, "type");
        if (!strcmp(type, "tool_use")) {
            assert_memory_equal(json_str(block, "id"), "toolu_", 6);
            buffer_printf(&o.blocks, "tool_use %s(%s);", json_str(block, "name"),
                          json_object_to_json_string_ext(json_at(block, "input"), JSON_C_TO_STRING_PLAIN));
        } else
            buffer_printf(&o.blocks, "%s(%s);", type, json_str(block, type));
        assert_int_equal(!strcmp(type, "thinking"), *json_str(block, "signature") != 0);
    }
    read_stop(message, &o);
    read_usage(json_at(message, "usage"), &o);
    json_object_put(message);
    return o;
}

/* The block under way in a stream. */
typedef struct block {
    int64_t index; /* -1: none was begun */
    bool open, is_signed;
    char type[16];
} block;

static void read_block_event(const char *type, json_object *event, block *b, outcome *o) {
    if (!strcmp(type, "content_block_start")) {
        assert_false(b->open);
        assert_int_equal(json_int(event, "index"), b->index + 1);
        *b = (block){.index = b->index + 1, .open = true};
        snprintf(b->type, sizeof b->type, "%s", json_str(event, "content_block.type"));
        buffer_append_str(&o->blocks, b->type);
        if (!strcmp(b->type, "tool_use")) {
            assert_memory_equal(json_str(event, "content_block.id"), "toolu_", 6);
            assert_int_equal(json_object_object_length(json_at(event, "content_block.input")), 0);
            buffer_printf(&o->blocks, " %s", json_str(event, "content_block.name"));
        }
        buffer_append_str(&o->blocks, "(");
        return;
    }
    assert_true(b->open);
    assert_int_equal(json_int(event, "index"), b->index);
    if (!strcmp(type, "content_block_stop")) {
        assert_int_equal(!strcmp(b->type, "thinking"), b->is_signed);
        b->open = false;
        buffer_append_str(&o->blocks, ");");
        return;
    }
    const char *kind = json_str(event, "delta.type");
    if (!strcmp(kind, "signature_delta")) {
        b->is_signed = true;
        return;
    }
    assert_false(b->is_signed);
    assert_string_equal(kind, !strcmp(b->type, "text")       ? "text_delta"
                              : !strcmp(b->type, "thinking") ? "thinking_delta"
                                                             : "input_json_delta");
    buffer_append_str(&o->blocks, json_str(event, !strcmp(b->type, "text")       ? "delta.text"
                                                  : !strcmp(b->type, "thinking") ? "delta.thinking"
                                                                                 : "delta.partial_json"));
}

static outcome read_stream(const reply *r) {
    outcome o = {0};
    block b = {.index = -1};
    bool finished = false;
    assert_int_equal(r->status, 200);
    buffer_append_str(&o.blocks, "");
    for (const char *p = r->body.data; *p;) {
        char name[40], type[40];
        assert_false(o.ended || o.error);
        assert_int_equal(sscanf(p, "event: %39s\ndata: ", name), 1);
        const char *data = strchr(p, '\n') + 1 + strlen("data: "), *end = strchr(data, '\n');
        json_object *event = NULL;
        assert_int_equal(json_parse(data, (size_t)(end - data), "event", &event, NULL), CALLA_OK);
        snprintf(type, sizeof type, "%s", json_str(event, "type"));
        assert_string_equal(name, type);
        if (!o.events++) {
            assert_string_equal(type, "message_start");
            assert_int_equal(json_object_array_length(json_at(event, "message.content")), 0);
            read_usage(json_at(event, "message.usage"), &o);
        } else if (!strcmp(type, "ping"))
            o.pings++;
        else if (!strcmp(type, "error"))
            o.error = json_object_get(event);
        else if (!strcmp(type, "message_delta")) {
            assert_false(b.open);
            finished = true;
            read_stop(json_at(event, "delta"), &o);
            read_usage(json_at(event, "usage"), &o);
        } else if (!strcmp(type, "message_stop")) {
            assert_true(finished);
            o.ended = true;
        } else
            read_block_event(type, event, &b, &o);
        json_object_put(event);
        p = end + 2;
    }
    return o;
}

/* Asks for the answer in both forms, which must be the same. */
static outcome ask(const char *say, const char *more) {
    buffer with_stream = {0};
    buffer_printf(&with_stream, "%s%s\"stream\":true", more, *more ? "," : "");
    char *one = body_json(say, more), *other = body_json(say, with_stream.data);
    reply whole, stream;
    post(one, &whole);
    post(other, &stream);
    outcome a = read_whole(&whole), b = read_stream(&stream);
    assert_string_equal(a.blocks.data, b.blocks.data);
    assert_string_equal(a.stop_reason, b.stop_reason);
    assert_string_equal(a.stop_sequence, b.stop_sequence);
    assert_int_equal(a.input_tokens, b.input_tokens);
    assert_int_equal(a.output_tokens, b.output_tokens);
    assert_true(b.ended && !b.error);
    reply_free(&whole);
    reply_free(&stream);
    mem_free(one);
    mem_free(other);
    buffer_free(&with_stream);
    outcome_free(&b);
    return a;
}

static void expect(const char *say, const char *more, const char *blocks, const char *stop_reason) {
    outcome o = ask(say, more);
    assert_string_equal(o.blocks.data, blocks);
    assert_string_equal(o.stop_reason, stop_reason);
    outcome_free(&o);
}

/* ------------------------------------------------------- answers ------------------------------------------------------- */

#define THINK "\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":1024}"
#define TOOLS                                                                                                                              \
    "\"tools\":[{\"name\":\"weather\",\"input_schema\":{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"},"               \
    "\"days\":{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"null\"}]}}}}]"
#define CALL(city, days)                                                                                                                   \
    "<tool_call>\n<function=weather>\n<parameter=city>\n" city "\n</parameter>\n<parameter=days>\n" days                                   \
    "\n</parameter>\n</function>\n</tool_call>"

static void test_text(void **state) {
    (void)state;
    expect("The capital is Paris. 🦀 漢字 \"quoted\"\nnext", "", "text(The capital is Paris. 🦀 漢字 \"quoted\"\nnext);", "end_turn");
    expect("A thought.</think>\n\nAn answer.", THINK, "thinking(A thought.);text(An answer.);", "end_turn");
}

static void test_calls(void **state) {
    (void)state;
    expect("I look.\n\n" CALL("Paris", "3") "\n" CALL("Rome", "null"), TOOLS,
           "text(I look.);tool_use weather({\"city\":\"Paris\",\"days\":3});tool_use weather({\"city\":\"Rome\",\"days\":null});",
           "tool_use");
    expect("Which?\n" CALL("Paris", "1"), THINK "," TOOLS, "thinking(Which?);tool_use weather({\"city\":\"Paris\",\"days\":1});",
           "tool_use");
    expect(CALL("Paris", "3") "\n" CALL("Rome", "4"), TOOLS ",\"tool_choice\":{\"type\":\"auto\",\"disable_parallel_tool_use\":true}",
           "tool_use weather({\"city\":\"Paris\",\"days\":3});", "tool_use");
    expect(CALL("Paris", "1"), TOOLS ",\"tool_choice\":{\"type\":\"none\"}", "text(" CALL("Paris", "1") ");", "end_turn");
}

static void test_ends(void **state) {
    (void)state;
    outcome o = ask("The quick brown fox", "\"stop_sequences\":[\"never\",\"k bro\"]");
    assert_string_equal(o.blocks.data, "text(The quic);");
    assert_string_equal(o.stop_reason, "stop_sequence");
    assert_string_equal(o.stop_sequence, "k bro");
    outcome_free(&o);
    o = ask("@endless a", "");
    assert_string_equal(o.stop_reason, "max_tokens");
    assert_string_equal(o.stop_sequence, "");
    assert_int_equal(o.output_tokens, 100);
    outcome_free(&o);
}

static void test_the_model_is_echoed(void **state) {
    (void)state;
    reply r;
    char *json = body_json(
        "Hi", "\"model\":\"claude-opus-4-8\",\"metadata\":{\"user_id\":\"u\"},\"tools\":[{\"type\":\"bash_20250124\",\"name\":\"bash\"}]");
    char value[256];
    harness_post_to(&h, "/v1/messages?beta=true", json, &r);
    json_object *message = reply_json_body(&r);
    assert_string_equal(json_str(message, "model"), "claude-opus-4-8");
    assert_string_equal(reply_header(&r, "x-calla-ignored", value), "metadata");
    assert_string_equal(reply_header(&r, "x-calla-warning", value), "tools[0] (bash_20250124) cannot be offered");
    json_object_put(message);
    reply_free(&r);
    mem_free(json);
}

static void test_counts_are_those_of_the_prompt(void **state) {
    (void)state;
    static const char *const more[] = {"", TOOLS, THINK ",\"system\":\"Be brief.\",\"stream\":true"};
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) {
        outcome o = ask("Hi there", i == 2 ? THINK ",\"system\":\"Be brief.\"" : more[i]);
        char *json = body_json("Hi there", more[i]);
        reply r;
        harness_post_to(&h, "/v1/messages/count_tokens?beta=true", json, &r);
        assert_int_equal(r.status, 200);
        json_object *count = reply_json_body(&r);
        assert_int_equal(json_int(count, "input_tokens"), o.input_tokens);
        json_object_put(count);
        reply_free(&r);
        mem_free(json);
        outcome_free(&o);
    }
}

/* -------------------------------------------------------- errors ------------------------------------------------------- */

static void expect_error(const reply *r, int status, const char *type, const char *word) {
    assert_int_equal(r->status, status);
    json_object *e = reply_json_body(r);
    assert_string_equal(json_str(e, "type"), "error");
    assert_string_equal(json_str(e, "error.type"), type);
    if (!strstr(json_str(e, "error.message"), word)) fail_msg("%s is not in: %s", word, json_str(e, "error.message"));
    json_object_put(e);
}

static void raw(const char *request, int status, const char *type, const char *word) {
    client c;
    reply r;
    client_open(&c, h.port);
    client_send_str(&c, request);
    client_read_reply(&c, &r, 10000);
    expect_error(&r, status, type, word);
    reply_free(&r);
    client_close(&c);
}

static void test_errors_are_in_the_dialect(void **state) {
    (void)state;
    reply r;
    post("{\"messages\":[]}", &r);
    expect_error(&r, 400, "invalid_request_error", "at least one");
    reply_free(&r);
    harness_post_to(&h, "/v1/messages/count_tokens", "{", &r);
    expect_error(&r, 400, "invalid_request_error", "body");
    reply_free(&r);
    char *json = body_json("@refuse x", "");
    post(json, &r);
    expect_error(&r, 429, "rate_limit_error", "refuses");
    reply_free(&r);
    mem_free(json);
    raw("GET /v1/messages?beta=true HTTP/1.1\r\nHost: localhost\r\n\r\n", 405, "invalid_request_error", "POST");
    raw("POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}", 415,
        "invalid_request_error", "application/json");
    raw("POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 999999999999\r\n\r\n", 413,
        "request_too_large", "");
    raw("POST /v1/messages HTTP/1.1\r\nHost: evil.example\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}", 403,
        "permission_error", "evil.example");
}

/* Agents shorten their history when they read these words. */
static void test_a_prompt_that_does_not_fit(void **state) {
    (void)state;
    buffer say = {0};
    for (int i = 0; i < 5000; i++) buffer_append_str(&say, "long ");
    char *json = body_json(say.data, ""), want[96];
    reply r;
    harness_post_to(&h, "/v1/messages/count_tokens", json, &r);
    assert_int_equal(r.status, 200);
    json_object *count = reply_json_body(&r);
    snprintf(want, sizeof want, "prompt is too long: %lld tokens > 4096 maximum", (long long)json_int(count, "input_tokens"));
    json_object_put(count);
    reply_free(&r);
    post(json, &r);
    expect_error(&r, 400, "invalid_request_error", want);
    reply_free(&r);
    mem_free(json);
    buffer_free(&say);
}

static void test_half_a_surrogate_pair_is_no_reason_to_refuse(void **state) {
    (void)state;
    reply r;
    post("{\"max_tokens\":20,\"messages\":[{\"role\":\"user\",\"content\":\"a\\ud83d b\\udd80 \\ud83e\\udd80\"}]}", &r);
    outcome o = read_whole(&r);
    assert_string_equal(o.blocks.data, "text(a\xEF\xBF\xBD b\xEF\xBF\xBD \xF0\x9F\xA6\x80);");
    outcome_free(&o);
    reply_free(&r);
}

/* ------------------------------------------------------- streams ------------------------------------------------------- */

static void test_a_failure_in_a_stream_is_an_error_event(void **state) {
    (void)state;
    reply r;
    char *json = body_json("@fail=2 one two three four", "\"stream\":true");
    post(json, &r);
    outcome o = read_stream(&r);
    assert_false(o.ended);
    assert_non_null(o.error);
    assert_string_equal(json_str(o.error, "error.type"), "overloaded_error");
    assert_string_equal(json_str(o.error, "error.message"), "the scripted device failed");
    outcome_free(&o);
    reply_free(&r);
    mem_free(json);
}

/* A30. */
static void test_pings_during_a_long_prompt(void **state) {
    (void)state;
    client c;
    client_open(&c, h.port);
    char *json = body_json("@prompt=4x1000 one two", "\"stream\":true");
    char *request = post_request_to("/v1/messages", json);
    client_send_str(&c, request);
    assert_in_range(client_wait_for(&c, "message_start", 1000), 0, 1000); /* at once */
    assert_in_range(client_wait_for(&c, "event: ping\ndata: {\"type\":\"ping\"}\n\n", 2000), 0, 2000);
    reply r;
    client_read_reply(&c, &r, 20000);
    outcome o = read_stream(&r);
    assert_string_equal(o.blocks.data, "text(one two);");
    assert_in_range(o.pings, 2, 5);
    outcome_free(&o);
    reply_free(&r);
    client_close(&c);
    mem_free(request);
    mem_free(json);
}

/* A30: a list can only be sent whole. */
static void test_pings_while_an_argument_is_withheld(void **state) {
    (void)state;
    reply r;
    char *json =
        body_json("@token=40 <tool_call>\n<function=edit>\n<parameter=edits>\n"
                  "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]\n</parameter>\n</function>\n</tool_call>",
                  "\"stream\":true,\"tools\":[{\"name\":\"edit\",\"input_schema\":{\"properties\":{\"edits\":{\"type\":\"array\"}}}}]");
    post(json, &r);
    outcome o = read_stream(&r);
    assert_string_equal(o.blocks.data, "tool_use edit({\"edits\":[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]});");
    assert_in_range(o.pings, 1, 5);
    outcome_free(&o);
    reply_free(&r);
    mem_free(json);
}

static void test_progress_is_told_when_asked_for(void **state) {
    (void)state;
    reply r;
    char *json = body_json("@prompt=2x50 one", "\"stream\":true,\"return_progress\":true");
    post(json, &r);
    outcome o = read_stream(&r);
    assert_non_null(strstr(r.body.data, "\"prompt_progress\":{\"processed\":"));
    assert_in_range(o.pings, 1, 3);
    outcome_free(&o);
    reply_free(&r);
    mem_free(json);
}

/* -------------------------------------------------------- routes ------------------------------------------------------- */

static void test_the_root_answers(void **state) {
    (void)state;
    client c;
    reply r;
    client_open(&c, h.port);
    client_send_str(&c, "HEAD / HTTP/1.1\r\nHost: localhost\r\nx-api-key: any\r\n\r\nHEAD /?x=1 HTTP/1.1\r\nHost: localhost\r\n"
                        "Authorization: Bearer any\r\n\r\n");
    assert_true(client_wait_for(&c, "\r\n\r\nHTTP/1.1 200 OK", 5000) >= 0);
    client_close(&c);
    harness_get(&h, "/?a=b", &r);
    assert_int_equal(r.status, 200);
    assert_non_null(strstr(r.body.data, "calla"));
    reply_free(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_calls),
        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_the_model_is_echoed),
        cmocka_unit_test(test_counts_are_those_of_the_prompt),
        cmocka_unit_test(test_errors_are_in_the_dialect),
        cmocka_unit_test(test_a_prompt_that_does_not_fit),
        cmocka_unit_test(test_half_a_surrogate_pair_is_no_reason_to_refuse),
        cmocka_unit_test(test_a_failure_in_a_stream_is_an_error_event),
        cmocka_unit_test(test_pings_during_a_long_prompt),
        cmocka_unit_test(test_pings_while_an_argument_is_withheld),
        cmocka_unit_test(test_progress_is_told_when_asked_for),
        cmocka_unit_test(test_the_root_answers),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
