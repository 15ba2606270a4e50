/* Responses that the server remembers: going on from one, asking for it, deleting it, sending its items by name. */
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "harness.h"

#define PATH "/v1/responses"
#define TOOL                                                                                                                               \
    "{\"type\":\"function\",\"name\":\"clock\",\"parameters\":{\"type\":\"object\",\"properties\":{\"zone\":{\"type\":\"string\"}}}}"
#define CALL "<tool_call>\\n<function=clock>\\n<parameter=zone>\\nUTC\\n</parameter>\\n</function>\\n</tool_call>"

HARNESS_OF_FILE(NULL, NULL)

static json_object *post(const char *body, int status, reply *r) { return harness_ask(&h, PATH, body, status, r); }

static void test_a_response_goes_on_from_another(void **state) {
    (void)state;
    reply r;
    json_object *tree = post("{\"input\":\"First thought.</think>First.\",\"instructions\":\"Not kept.\"}", 200, &r);
    char first[64], second[64], body[512];
    snprintf(first, sizeof first, "%s", json_str(tree, "id"));
    json_object_put(tree);
    reply_free(&r);

    snprintf(body, sizeof body, "{\"input\":\"Second.</think>Second.\",\"previous_response_id\":\"%s\"}", first);
    tree = post(body, 200, &r);
    snprintf(second, sizeof second, "%s", json_str(tree, "id"));
    assert_string_equal(json_str(tree, "previous_response_id"), first);
    json_object_put(tree);
    reply_free(&r);

    snprintf(body, sizeof body, "{\"input\":\"Third.</think>Third.\",\"previous_response_id\":\"%s\"}", second);
    tree = post(body, 200, &r);
    const int64_t tokens = json_int(tree, "usage.input_tokens");
    json_object_put(tree);
    reply_free(&r);

    /* the same conversation sent whole has as many tokens */
    tree = post("{\"input\":[{\"role\":\"user\",\"content\":\"First thought.</think>First.\"},"
                "{\"type\":\"reasoning\",\"summary\":[],\"encrypted_content\":\"calla-thought:First thought.\"},"
                "{\"role\":\"assistant\",\"content\":\"First.\"},{\"role\":\"user\",\"content\":\"Second.</think>Second.\"},"
                "{\"type\":\"reasoning\",\"summary\":[],\"content\":[{\"type\":\"reasoning_text\",\"text\":\"Second.\"}]},"
                "{\"type\":\"message\",\"role\":\"assistant\",\"content\":[{\"type\":\"output_text\",\"text\":\"Second.\"}]},"
                "{\"role\":\"user\",\"content\":\"Third.</think>Third.\"}]}",
                200, &r);
    assert_int_equal(json_int(tree, "usage.input_tokens"), tokens);
    json_object_put(tree);
    reply_free(&r);
}

static void test_a_response_not_kept_cannot_be_gone_on_from(void **state) {
    (void)state;
    reply r;
    char body[256];
    json_object *tree = post("{\"input\":\"Hi\",\"enable_thinking\":false,\"store\":false}", 200, &r);
    snprintf(body, sizeof body, "{\"input\":\"Hi\",\"previous_response_id\":\"%s\"}", json_str(tree, "id"));
    json_object_put(tree);
    reply_free(&r);
    tree = post(body, 400, &r);
    assert_string_equal(json_str(tree, "error.code"), "previous_response_not_found");
    assert_string_equal(json_str(tree, "error.param"), "previous_response_id");
    json_object_put(tree);
    reply_free(&r);
}

/* METHOD PATH/rest; the body's tree. */
static json_object *request(const char *method, const char *rest, int status) {
    client c;
    reply r;
    char text[512];
    client_open(&c, h.port);
    snprintf(text, sizeof text, "%s " PATH "/%s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", method, rest);
    client_send_str(&c, text);
    client_read_reply(&c, &r, 10000);
    client_close(&c);
    if (r.status != status) fail_msg("%s %s: %d %s", method, rest, r.status, r.body.data ? r.body.data : "");
    json_object *tree = reply_json_body(&r);
    reply_free(&r);
    return tree;
}

static void expect_list(const char *path, size_t n, const char *first, bool more) {
    json_object *tree = request("GET", path, 200);
    assert_string_equal(json_str(tree, "object"), "list");
    assert_int_equal(json_object_array_length(json_at(tree, "data")), n);
    assert_int_equal(json_object_get_boolean(json_at(tree, "has_more")), more);
    if (n) assert_string_equal(json_str(tree, "first_id"), json_str(tree, "data.0.id"));
    if (n && first) assert_string_equal(json_str(tree, "data.0.content"), first);
    json_object_put(tree);
}

static void test_a_response_can_be_asked_for_and_deleted(void **state) {
    (void)state;
    reply r;
    char id[64], path[256], body[256];
    json_object *made = post("{\"input\":[{\"role\":\"user\",\"content\":\"One\"},{\"id\":\"mine\",\"role\":\"user\",\"content\":"
                             "\"Hm.</think>Hi.\"}],\"metadata\":{\"a\":\"b\"}}",
                             200, &r);
    snprintf(id, sizeof id, "%s", json_str(made, "id"));
    json_object *got = request("GET", id, 200);
    assert_true(json_object_equal(made, got)); /* as it was sent */
    json_object_put(made);
    json_object_put(got);
    reply_free(&r);

    snprintf(body, sizeof body, "{\"input\":\"So.</think>Yes.\",\"stream\":true,\"previous_response_id\":\"%s\"}", id);
    harness_post_to(&h, PATH, body, &r); /* streamed ones are remembered as well */
    const char *at = strstr(r.body.data, "resp_");
    char next[64] = "";
    snprintf(next, sizeof next, "%.*s", (int)strcspn(at, "\""), at);
    reply_free(&r);
    got = request("GET", next, 200);
    assert_string_equal(json_str(got, "status"), "completed");
    assert_string_equal(json_str(got, "output.1.content.0.text"), "Yes.");
    json_object_put(got);

    static const struct {
        const char *query;
        size_t n;
        const char *first;
        bool more;
    } lists[] = {{"", 2, "Hm.</think>Hi.", false},       {"?order=asc", 2, "One", false},
                 {"?order=asc&limit=1", 1, "One", true}, {"?limit=1&order=desc", 1, "Hm.</think>Hi.", true},
                 {"?after=mine", 1, "One", false},       {"?order=asc&after=mine", 0, NULL, false},
                 {"?after=nothing", 0, NULL, false}};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        snprintf(path, sizeof path, "%s/input_items%s", id, lists[i].query);
        expect_list(path, lists[i].n, lists[i].first, lists[i].more);
    }
    snprintf(path, sizeof path, "%s/input_items?order=asc", next);
    expect_list(path, 5, "One", false); /* what it went on from, its thought and answer included */

    got = request("DELETE", id, 200);
    assert_true(json_object_get_boolean(json_at(got, "deleted")));
    json_object_put(got);
    json_object_put(request("GET", id, 404));
    json_object_put(request("DELETE", id, 404));
    json_object_put(request("GET", next, 200)); /* has gone on from it, and stays whole */
    json_object_put(request("DELETE", next, 200));
}

static void test_long_input_is_not_listed(void **state) {
    (void)state;
    harness wide;
    const server_options options = {.limits = {.body_bytes = 8 << 20}};
    const fake_options fake = {.context_tokens = 4 << 20};
    harness_open(&wide, &options, &fake);
    buffer body = {0};
    buffer_append_str(&body, "{\"enable_thinking\":false,\"max_output_tokens\":2,\"input\":\"");
    for (size_t i = 0; i < (2 << 20) / 8; i++) buffer_append_str(&body, "        ");
    buffer_append_str(&body, "Hi\"}");
    reply r;
    harness_post_to(&wide, PATH, body.data, &r);
    assert_int_equal(r.status, 200);
    json_object *made = reply_json_body(&r);
    reply_free(&r);
    char path[128];
    snprintf(path, sizeof path, PATH "/%s/input_items", json_str(made, "id"));
    harness_get(&wide, path, &r);
    assert_int_equal(r.status, 400);
    assert_non_null(strstr(r.body.data, "too_large"));
    reply_free(&r);
    json_object_put(made);
    buffer_free(&body);
    harness_close(&wide);
}

static void test_asking_for_a_response_wrongly(void **state) {
    (void)state;
    static const struct {
        const char *method, *path;
        int status;
        const char *param;
    } rows[] = {{"GET", "resp_nothing", 404, "response_id"},
                {"DELETE", "resp_nothing", 404, "response_id"},
                {"GET", "resp_nothing/input_items", 404, "response_id"},
                {"GET", "x/input_items?limit=0", 400, "limit"},
                {"GET", "x/input_items?limit=1x", 400, "limit"},
                {"GET", "x/input_items?order=up", 400, "order"},
                {"GET", "x?stream=true", 400, "stream"},
                {"GET", "a/b", 404, ""},
                {"DELETE", "a/input_items", 404, ""},
                {"POST", "resp_x", 405, ""},
                {"GET", "/input_items", 404, ""}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_object *tree = request(rows[i].method, rows[i].path, rows[i].status);
        assert_string_equal(json_str(tree, "error.param"), rows[i].param);
        assert_true(*json_str(tree, "error.message") != 0);
        json_object_put(tree);
    }
}

/* Clients that trust in the server's memory send names of items instead of the items. */
static void test_items_are_sent_by_name(void **state) {
    (void)state;
    reply r;
    const char *ask = "{\"role\":\"user\",\"content\":\"I think.</think>Now: " CALL "\"}";
    buffer body = {0};
    buffer_printf(&body, "{\"tools\":[" TOOL "],\"input\":[%s]}", ask);
    json_object *made = post(body.data, 200, &r), *output = json_at(made, "output");
    reply_free(&r);
    const size_t n = json_object_array_length(output);
    assert_int_equal(n, 3);
    char result[256];
    snprintf(result, sizeof result, "{\"type\":\"function_call_output\",\"call_id\":\"%s\",\"output\":\"So.</think>Fine.\"}",
             json_str(output, "2.call_id"));
    int64_t tokens[2] = {0};
    char by_name[64] = "";
    for (int named = 0; named < 2; named++) {
        buffer_clear(&body);
        buffer_printf(&body, "{\"tools\":[" TOOL "],\"input\":[%s", ask);
        for (size_t i = 0; i < n; i++) {
            json_object *item = json_object_array_get_idx(output, i);
            if (named)
                buffer_printf(&body, i == 1 ? ",{\"id\":\"%s\"}" : ",{\"type\":\"item_reference\",\"id\":\"%s\"}", json_str(item, "id"));
            else
                buffer_printf(&body, ",%s", json_object_to_json_string_ext(item, JSON_C_TO_STRING_PLAIN));
        }
        buffer_printf(&body, ",%s]}", result);
        json_object *tree = post(body.data, 200, &r);
        tokens[named] = json_int(tree, "usage.input_tokens");
        snprintf(by_name, sizeof by_name, "%s", json_str(tree, "id"));
        json_object_put(tree);
        reply_free(&r);
    }
    assert_int_equal(tokens[0], tokens[1]);
    buffer_clear(&body);
    buffer_printf(&body, "{\"input\":[{\"id\":\"%s\"},{\"id\":\"%s\"}]}", json_str(output, "0.id"), json_str(output, "0.id"));
    json_object *twice = post(body.data, 400, &r);
    assert_string_equal(json_str(twice, "error.param"), "input[1]");
    json_object_put(twice);
    reply_free(&r);
    static const char *const nothing[] = {"fc", "_", "__", "", "resp_x", "fc_x_2"};
    for (size_t i = 0; i < sizeof nothing / sizeof *nothing; i++) {
        buffer_clear(&body);
        buffer_printf(&body, "{\"input\":[{\"type\":\"item_reference\",\"id\":\"%s\"}]}", nothing[i]);
        json_object_put(post(body.data, 400, &r));
        reply_free(&r);
    }
    /* what was named is remembered as it was */
    json_object_put(request("DELETE", json_str(made, "id"), 200));
    char path[128];
    snprintf(path, sizeof path, "%s/input_items?order=asc", by_name);
    json_object *list = request("GET", path, 200);
    assert_string_equal(json_str(list, "data.3.type"), "function_call");
    json_object_put(list);

    buffer_clear(&body);
    buffer_printf(&body, "{\"input\":[{\"role\":\"user\",\"content\":\"x\"},{\"type\":\"item_reference\",\"id\":\"%s\"}]}",
                  json_str(output, "0.id"));
    json_object *refused = post(body.data, 400, &r);
    assert_string_equal(json_str(refused, "error.code"), "item_not_found");
    assert_string_equal(json_str(refused, "error.param"), "input[1]");
    json_object_put(refused);
    reply_free(&r);
    json_object_put(made);
    buffer_free(&body);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_response_goes_on_from_another),         cmocka_unit_test(test_a_response_not_kept_cannot_be_gone_on_from),
        cmocka_unit_test(test_a_response_can_be_asked_for_and_deleted), cmocka_unit_test(test_long_input_is_not_listed),
        cmocka_unit_test(test_asking_for_a_response_wrongly),           cmocka_unit_test(test_items_are_sent_by_name),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
