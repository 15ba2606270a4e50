/* A request that fails, in whatever way, harms no other: what streams beside it comes whole, and the server is well. */
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "harness.h"

enum { NEIGHBOURS = 4 };

static const server_options server_settings = {.no_signals = true, .limits = {.body_bytes = 1 << 20, .header_bytes = 4096}};
static const fake_options engine_settings = {.max_sequences = NEIGHBOURS + 1};
HARNESS_OF_FILE(&server_settings, &engine_settings)

static void open_neighbour(client *c, int number) {
    char say[128];
    const int token_ms = getenv("CALLA_TEST_SHORT") ? 40 : 10; /* with a sanitizer all takes longer */
    snprintf(say, sizeof say, "@endless @token=%d neighbour %d says so;", token_ms, number);
    char *json = chat_json(say, "\"stream\":true,\"enable_thinking\":false,\"max_tokens\":400"), *request = post_request(json);
    client_open(c, h.port);
    client_send_str(c, request);
    assert_true(client_wait_for(c, "assistant", 5000) >= 0);
    mem_free(json);
    mem_free(request);
}

static void check_neighbour(client *c, int number) {
    char want[128];
    reply r;
    stream_sum s;
    const int n = snprintf(want, sizeof want, "neighbour %d says so;", number);
    client_read_reply(c, &r, 60000);
    assert_true(r.whole);
    stream_read(&r, 0, &s);
    assert_string_equal(s.finish, "length");
    assert_true(s.done_is_last);
    assert_true(s.content.n > 400);
    for (size_t i = 0; i < s.content.n; i++)
        if (s.content.data[i] != want[i % (size_t)n]) fail_msg("neighbour %d: byte %zu of: %s", number, i, s.content.data);
    stream_free(&s);
    reply_free(&r);
    client_close(c);
}

/* The reply to these bytes has this status. */
static void expect(const char *request, int status, const char *says) {
    client c;
    reply r;
    client_open(&c, h.port);
    client_send_str(&c, request);
    client_read_reply(&c, &r, 10000);
    if (r.status != status || !strstr(r.body.data, says))
        fail_msg("%.80s: %d %.200s, want %d %s", request, r.status, r.body.data, status, says);
    reply_free(&r);
    client_close(&c);
}

static void fail_chat(const char *say, const char *more, int status, const char *says) {
    char *json = chat_json(say, more), *request = post_request(json);
    expect(request, status, says);
    mem_free(json);
    mem_free(request);
}

/* A body of half a megabyte that opens a level with each of its bytes: refused at the limit of depth, on every route. */
static void fail_deep(const char *path) {
    static char body[1 << 19];
    memset(body, '[', sizeof body - 1);
    memcpy(body, "{\"a\":", 5);
    char *request = post_request_to(path, body);
    expect(request, 400, "nesting deeper than");
    mem_free(request);
}

static void fail_in_every_way(void) {
    static const char *const routes[] = {"/v1/chat/completions", "/v1/messages",    "/v1/messages/count_tokens",
                                         "/v1/responses",        "/v1/completions", "/tokenize",
                                         "/detokenize",          "/apply-template"};
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) fail_deep(routes[i]);
    fail_chat("@fail=0 never begins", "", 503, "the scripted device failed");
    fail_chat("@fail=3 one two three four five", "\"stream\":true", 200, "the scripted device failed");
    fail_chat("@refuse x", "", 429, "error");
    fail_chat("x", "\"temperature\":9", 400, "temperature");
    fail_chat("x", "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{\"type\":\"none\"}}}", 400, "type");
    char *words = mem_alloc(100001);
    memset(words, 'x', 100000);
    for (size_t i = 0; i < 100000; i += 4) words[i] = ' ';
    words[100000] = 0;
    fail_chat(words, "", 400, "context_length_exceeded");
    mem_free(words);
    expect("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9999999\r\n\r\n",
           413, "error");
    expect("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: "
           "chunked\r\n\r\nz\r\n",
           400, "error");
    expect("\x16\x03\x01\x02\x01 a client that wants TLS\r\n\r\n", 400, "error");
    client left;
    char *json = chat_json("@prompt=1000x20 long", ""), *request = post_request(json);
    client_open(&left, h.port);
    client_send_str(&left, request);
    client_wait_closed(&left, 30);
    client_reset(&left);
    mem_free(json);
    mem_free(request);
}

static void test_failures_beside_streams(void **state) {
    (void)state;
    client c[NEIGHBOURS];
    for (int i = 0; i < NEIGHBOURS; i++) open_neighbour(&c[i], i);
    fail_in_every_way();
    const fake_stats at_work = fake_engine_stats(h.engine);
    assert_true(at_work.running >= NEIGHBOURS); /* all of that was beside them */
    for (int i = 0; i < NEIGHBOURS; i++) check_neighbour(&c[i], i);
    assert_true(harness_wait_idle(&h, 2000) >= 0);
    reply r;
    harness_get(&h, "/health", &r);
    assert_int_equal(r.status, 200);
    reply_free(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_failures_beside_streams)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
