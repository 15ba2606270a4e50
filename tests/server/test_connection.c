/* Sockets: requests in any rhythm, limits, refusals before the body, keep-alive, many clients at once. */
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "harness.h"

static const server_options server_settings = {
    .no_signals = true,
    .limits = {.body_bytes = 1 << 20, .connections = 64, .requests = 40, .header_ms = 400, .body_ms = 400, .idle_ms = 600}};
HARNESS_OF_FILE(&server_settings, NULL)

static int now_ms(void) { return (int)(clock_now_ns() / 1000000u); }

/* Sends bytes and expects this status as the first reply; the connection's fate: closed or still open. */
static void expect(const char *bytes, int status, bool closes) {
    client c;
    reply r;
    client_open(&c, h.port);
    client_send_str(&c, bytes);
    client_read_reply(&c, &r, 5000);
    if (r.status != status || !r.whole) fail_msg("%.60s: status %d, want %d", bytes, r.status, status);
    if (status != 200) json_object_put(reply_json_body(&r));
    reply_free(&r);
    if (closes)
        assert_true(client_wait_closed(&c, 3000));
    else {
        client_send_str(&c, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
        client_read_reply(&c, &r, 5000);
        assert_int_equal(r.status, 200);
        reply_free(&r);
    }
    client_close(&c);
}

#define HOST "Host: 127.0.0.1\r\n"
#define JSON "Content-Type: application/json\r\n"

static void test_refusals(void **state) {
    (void)state;
    expect("GET /health HTTP/1.1\r\n" HOST "\r\n", 200, false);
    expect("GET /health?x=y HTTP/1.1\r\n" HOST "\r\n", 200, false);
    expect("GET /health HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n", 200, true);
    expect("GET /health HTTP/1.0\r\n\r\n", 200, true);
    expect("GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", 200, false);
    expect("GET /nothing HTTP/1.1\r\n" HOST "\r\n", 404, false);
    expect("GET /v1/chat/completions HTTP/1.1\r\n" HOST "\r\n", 405, false);
    expect("DELETE /v1/models/x HTTP/1.1\r\n" HOST "\r\n", 405, false);
    expect("POST /health HTTP/1.1\r\n" HOST "Content-Length: 5\r\n\r\nhello", 405, true);
    expect("POST /v1/chat/completions HTTP/1.1\r\n" HOST "Content-Length: 2\r\n\r\n{}", 415, true);
    expect("POST /v1/chat/completions HTTP/1.1\r\n" HOST "Content-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}", 415, true);
    expect("POST /v1/chat/completions HTTP/1.1\r\n" HOST "Content-Type: application/json; charset=utf-8\r\nContent-Length: 2\r\n\r\n{}",
           400, false);
    expect("POST /v1/chat/completions HTTP/1.1\r\n" HOST JSON "Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}", 415, true);
    expect("POST /v1/chat/completions HTTP/1.1\r\n" HOST JSON "Expect: the unexpected\r\nContent-Length: 2\r\n\r\n{}", 417, true);
    expect("POST /v1/chat/completions HTTP/1.1\r\n" HOST JSON "\r\n", 400, false);
    expect("POST /v1/chat/completions HTTP/1.1\r\n" HOST JSON "Content-Length: 1048577\r\n\r\n", 413, true);
    expect("GET / HTTP/1.1\r\n\r\n", 400, true);
    expect("GET / HTTP/1.1\r\n" HOST "X: a\r\n b\r\n\r\n", 400, true);
    expect("GARBAGE\r\n\r\n", 400, true);
}

/* Base URLs are most often wrong in one of these ways. */
static void test_the_path_that_was_meant_is_named(void **state) {
    (void)state;
    static const char *const rows[][2] = {{"/chat/completions", "did you mean /v1/chat/completions"},
                                          {"/v1/v1/chat/completions", "did you mean /v1/chat/completions"},
                                          {"/v1/chat/completions/", "did you mean /v1/chat/completions"},
                                          {"/models", "did you mean /v1/models"},
                                          {"/messages/count_tokens", "did you mean /v1/messages/count_tokens"},
                                          {"/v1/tokenize", "did you mean /tokenize?"},
                                          {"/v1", "this is the base URL"},
                                          {"/v1/", "this is the base URL"},
                                          {"/api/chat", "Ollama's API is not spoken here"},
                                          {"/completion", "POST /v1/completions"},
                                          {"/v1/embeddings", "no embeddings"},
                                          {"/v1/embeddings", NULL},
                                          {"/v1", NULL},
                                          {"//", NULL},
                                          {"/s", NULL}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        reply r;
        harness_get(&h, rows[i][0], &r);
        assert_int_equal(r.status, 404);
        if (!strstr(r.body.data, rows[i][1] ? rows[i][1] : "there is nothing at GET")) fail_msg("%s: %s", rows[i][0], r.body.data);
        if (!rows[i][1]) assert_null(strstr(r.body.data, "did you mean"));
        reply_free(&r);
    }
}

static void test_method_not_allowed_says_which(void **state) {
    (void)state;
    client c;
    reply r;
    char value[256];
    client_open(&c, h.port);
    client_send_str(&c, "OPTIONS /v1/chat/completions HTTP/1.1\r\n" HOST "\r\n");
    client_read_reply(&c, &r, 5000);
    assert_int_equal(r.status, 405);
    assert_string_equal(reply_header(&r, "Allow", value), "POST");
    reply_free(&r);
    client_close(&c);
}

static void test_hosts_and_origins(void **state) {
    (void)state;
    static const struct {
        const char *headers;
        int status;
    } rows[] = {
        {"Host: localhost\r\n", 200},
        {"Host: localhost:8080\r\n", 200},
        {"Host: LOCALHOST.\r\n", 200},
        {"Host: app.localhost\r\n", 200},
        {"Host: 127.0.0.1:1\r\n", 200},
        {"Host: 127.1.2.3\r\n", 200},
        {"Host: [::1]:8080\r\n", 200},
        {"Host: evil.example\r\n", 403},
        {"Host: localhost.evil.example\r\n", 403},
        {"Host: evillocalhost\r\n", 403},
        {"Host: 192.168.1.5\r\n", 403},
        {"Host: 127.0.0.1.evil.example\r\n", 403},
        {"Host: [::2]\r\n", 403},
        {"Host: ::1\r\n", 403},
        {"Host: localhost@evil\r\n", 403},
        {"Host:\r\n", 403},
        {"Host: localhost\r\nOrigin: http://localhost:3000\r\n", 200},
        {"Host: localhost\r\nOrigin: https://127.0.0.1\r\n", 200},
        {"Host: localhost\r\nOrigin: http://evil.example\r\n", 403},
        {"Host: localhost\r\nOrigin: null\r\n", 403},
        {"Host: localhost\r\nOrigin: file://localhost\r\n", 403},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char request[512];
        snprintf(request, sizeof request, "GET /health HTTP/1.1\r\n%s\r\n", rows[i].headers);
        expect(request, rows[i].status, false);
    }
}

static void test_head(void **state) {
    (void)state;
    client c;
    reply r;
    char value[256];
    client_open(&c, h.port);
    client_send_str(&c, "HEAD /health HTTP/1.1\r\n" HOST "\r\nGET /health HTTP/1.1\r\n" HOST "\r\n");
    assert_true(client_wait_for(&c, "\"running\"", 5000) >= 0);
    const char *end = strstr(c.in.data, "\r\n\r\n");
    assert_int_equal(strncmp(end + 4, "HTTP/1.1 200", 12), 0); /* the next reply follows at once: no body */
    memmove(c.in.data, end + 4, c.in.n - (size_t)(end + 4 - c.in.data) + 1);
    c.in.n -= (size_t)(end + 4 - c.in.data);
    client_read_reply(&c, &r, 5000);
    assert_true(strtoul(reply_header(&r, "Content-Length", value), NULL, 10) > 0);
    reply_free(&r);
    client_close(&c);
}

static void test_continue(void **state) {
    (void)state;
    client c;
    reply r;
    client_open(&c, h.port);
    char *json = chat_json("Hello.", "\"enable_thinking\":false"), head[256];
    snprintf(head, sizeof head, "POST /v1/chat/completions HTTP/1.1\r\n" HOST JSON "Expect: 100-continue\r\nContent-Length: %zu\r\n\r\n",
             strlen(json));
    client_send_str(&c, head);
    assert_true(client_wait_for(&c, "HTTP/1.1 100 Continue\r\n\r\n", 2000) >= 0);
    client_send_str(&c, json);
    client_read_reply(&c, &r, 5000);
    assert_int_equal(r.status, 200);
    reply_free(&r);
    mem_free(json);
    client_close(&c);
}

static void test_byte_by_byte(void **state) {
    (void)state;
    client c;
    reply r;
    client_open(&c, h.port);
    char *json = chat_json("Slowly.", "\"enable_thinking\":false"), *request = post_request(json);
    for (size_t i = 0; request[i]; i++) {
        client_send(&c, request + i, 1);
        if (i % 16 == 0) usleep(500);
    }
    client_read_reply(&c, &r, 5000);
    assert_int_equal(r.status, 200);
    reply_free(&r);
    mem_free(json);
    mem_free(request);
    client_close(&c);
}

/* Requests sent at once are answered in their order, each after the one before has ended. */
static void test_pipelined(void **state) {
    (void)state;
    buffer all = {0};
    static const char *const say[] = {"@token=2 first answer", "second", "@prompt=3x20 third", "fourth"};
    for (size_t i = 0; i < 4; i++) {
        char *json = chat_json(say[i], i % 2 ? "\"enable_thinking\":false,\"stream\":true" : "\"enable_thinking\":false"),
             *request = post_request(json);
        buffer_append_str(&all, request);
        if (i == 1) buffer_append_str(&all, "GET /health HTTP/1.1\r\n" HOST "\r\n");
        mem_free(json);
        mem_free(request);
    }
    client c;
    client_open(&c, h.port);
    client_send(&c, all.data, all.n);
    static const char *const want[] = {"first answer", "second", "running", "third", "fourth"};
    for (size_t i = 0; i < 5; i++) {
        reply r;
        client_read_reply(&c, &r, 5000);
        assert_int_equal(r.status, 200);
        if (i == 1 || i == 4) {
            stream_sum s;
            stream_read(&r, 0, &s);
            assert_string_equal(s.content.data, want[i]);
            stream_free(&s);
        } else
            assert_non_null(strstr(r.body.data, want[i]));
        reply_free(&r);
    }
    buffer_free(&all);
    client_close(&c);
}

static void test_time_limits(void **state) {
    (void)state;
    static const struct {
        const char *bytes;
        int status; /* 0: closed without a word */
    } rows[] = {
        {"", 0},
        {"GET /health HTTP/1.1\r\nHost: loc", 408},
        {"\r\n", 408},
        {"POST /v1/chat/completions HTTP/1.1\r\n" HOST JSON "Content-Length: 100\r\n\r\n{\"messages\":", 408},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        client c;
        reply r;
        client_open(&c, h.port);
        client_send_str(&c, rows[i].bytes);
        const int begin = now_ms();
        client_read_reply(&c, &r, 5000);
        assert_int_equal(r.status, rows[i].status);
        reply_free(&r);
        assert_true(client_wait_closed(&c, 3000));
        const int spent = now_ms() - begin;
        if (spent < 300 || spent > 3000) fail_msg("row %zu: closed after %d ms", i, spent);
        client_close(&c);
    }
}

/* One byte now and then does not keep a request alive for ever. */
static void test_drip(void **state) {
    (void)state;
    client c;
    client_open(&c, h.port);
    const int begin = now_ms();
    client_send_str(&c, "GET /health HTTP/1.1\r\n" HOST "X: ");
    while (!client_wait_closed(&c, 50) && now_ms() - begin < 5000) client_send_str(&c, "y");
    assert_true(c.closed);
    assert_true(now_ms() - begin < 3000);
    client_close(&c);
}

/* The reply to a body that is too large arrives although the client goes on sending. */
static void test_oversized(void **state) {
    (void)state;
    static char filler[1 << 16];
    memset(filler, 'x', sizeof filler);
    for (int chunked = 0; chunked < 2; chunked++) {
        client c;
        reply r;
        client_open(&c, h.port);
        char head[256];
        snprintf(head, sizeof head, "POST /v1/chat/completions HTTP/1.1\r\n" HOST JSON "%s\r\n\r\n",
                 chunked ? "Transfer-Encoding: chunked" : "Content-Length: 100000000");
        client_send_str(&c, head);
        for (int i = 0; i < 64; i++) {
            if (chunked) client_send_str(&c, "10000\r\n");
            client_send(&c, filler, sizeof filler);
            if (chunked) client_send_str(&c, "\r\n");
        }
        client_read_reply(&c, &r, 5000);
        assert_int_equal(r.status, 413);
        reply_free(&r);
        client_close(&c);
    }
    char *head = mem_alloc(80000);
    snprintf(head, 80000, "GET /health HTTP/1.1\r\n" HOST "X: ");
    memset(head + strlen(head), 'x', 70000);
    head[79999] = 0;
    client c;
    reply r;
    client_open(&c, h.port);
    client_send(&c, head, 70000);
    client_read_reply(&c, &r, 5000);
    assert_int_equal(r.status, 431);
    reply_free(&r);
    client_close(&c);
    mem_free(head);
}

/* While an answer is under way the client may send 64 KiB and what the kernel's buffers hold, not more. */
static void test_sending_during_reply(void **state) {
    (void)state;
    static char filler[1 << 16];
    memset(filler, 'x', sizeof filler);
    client c;
    client_open(&c, h.port);
    char *json = chat_json("@endless @token=20 text", "\"stream\":true"), *request = post_request(json);
    client_send_str(&c, request);
    assert_true(client_wait_for(&c, "assistant", 2000) >= 0);
    size_t sent = 0;
    const int begin = now_ms();
    while (now_ms() - begin < 1000 && sent < 64u << 20) {
        const ssize_t n = send(c.fd, filler, sizeof filler, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0)
            sent += (size_t)n;
        else
            usleep(5000);
    }
    assert_true(sent < 16u << 20);
    client_reset(&c);
    mem_free(json);
    mem_free(request);
    assert_true(harness_wait_idle(&h, 3000) >= 0);
}

static void test_http10_stream(void **state) {
    (void)state;
    client c;
    reply r;
    client_open(&c, h.port);
    char *json = chat_json("Old client.", "\"enable_thinking\":false,\"stream\":true"), head[256];
    snprintf(head, sizeof head, "POST /v1/chat/completions HTTP/1.0\r\n" JSON "Content-Length: %zu\r\n\r\n", strlen(json));
    client_send_str(&c, head);
    client_send_str(&c, json);
    assert_true(client_wait_closed(&c, 5000)); /* its end is the end of the body */
    client_read_reply(&c, &r, 100);
    char value[256];
    assert_string_equal(reply_header(&r, "Transfer-Encoding", value), "");
    stream_sum s;
    stream_read(&r, 0, &s);
    assert_string_equal(s.content.data, "Old client.");
    assert_true(s.done_is_last);
    stream_free(&s);
    reply_free(&r);
    mem_free(json);
    client_close(&c);
}

typedef struct many {
    int number, bad;
} many;

static void *ask_often(void *user) {
    many *m = user;
    for (int i = 0; i < 6; i++) {
        char say[160], want[128];
        snprintf(want, sizeof want, "client %d asks for the %dth time", m->number, i);
        snprintf(say, sizeof say, "@token=1 %s", want);
        const bool streamed = (m->number + i) % 2;
        char *json = chat_json(say, streamed ? "\"enable_thinking\":false,\"stream\":true" : "\"enable_thinking\":false");
        reply r;
        harness_post(&h, json, &r);
        mem_free(json);
        if (r.status != 200)
            m->bad++;
        else if (streamed) {
            stream_sum s;
            stream_read(&r, 0, &s);
            m->bad += strcmp(s.content.data, want) != 0 || !s.done;
            stream_free(&s);
        } else {
            json_object *tree = reply_json_body(&r);
            m->bad += strcmp(json_str(tree, "choices.0.message.content"), want) != 0;
            json_object_put(tree);
        }
        reply_free(&r);
    }
    return NULL;
}

static void test_many_at_once(void **state) {
    (void)state;
    enum { CLIENTS = 16 };
    pthread_t threads[CLIENTS];
    many m[CLIENTS];
    for (int i = 0; i < CLIENTS; i++) {
        m[i] = (many){.number = i};
        assert_int_equal(pthread_create(&threads[i], NULL, ask_often, &m[i]), 0);
    }
    for (int i = 0; i < CLIENTS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(m[i].bad, 0);
    }
    assert_true(harness_wait_idle(&h, 2000) >= 0);
}

/* More chats than server_limits.requests: 429, and room again when they end.  Health answers all the while. */
static void test_too_many_requests(void **state) {
    (void)state;
    enum { N = 40 };
    client c[N];
    char *json = chat_json("@endless @token=5 x", "\"stream\":true"), *request = post_request(json);
    for (int i = 0; i < N; i++) {
        client_open(&c[i], h.port);
        client_send_str(&c[i], request);
    }
    for (int i = 0; i < N; i++) assert_true(client_wait_for(&c[i], "assistant", 5000) >= 0);
    reply r;
    char value[256];
    harness_post(&h, json, &r);
    assert_int_equal(r.status, 429);
    assert_string_equal(reply_header(&r, "Retry-After", value), "1");
    reply_free(&r);
    const int begin = now_ms();
    harness_get(&h, "/health", &r);
    assert_true(now_ms() - begin < 500);
    json_object *tree = reply_json_body(&r);
    assert_int_equal(json_int(tree, "running") + json_int(tree, "queued"), N);
    json_object_put(tree);
    reply_free(&r);
    for (int i = 0; i < N; i++) client_close(&c[i]);
    assert_true(harness_wait_idle(&h, 3000) >= 0);
    mem_free(json);
    json = chat_json("Room again.", "\"enable_thinking\":false");
    harness_post(&h, json, &r);
    assert_int_equal(r.status, 200);
    reply_free(&r);
    mem_free(json);
    mem_free(request);
}

/* More connections than server_limits.connections wait in the kernel's queue and are served when others close. */
static void test_too_many_connections(void **state) {
    (void)state;
    enum { N = 64 };
    client c[N], late;
    reply r;
    for (int i = 0; i < N; i++) client_open(&c[i], h.port);
    usleep(50000);
    client_open(&late, h.port);
    client_send_str(&late, "GET /health HTTP/1.1\r\n" HOST "\r\n");
    client_read_reply(&late, &r, 200);
    assert_int_equal(r.status, 0);
    reply_free(&r);
    client_close(&c[0]);
    client_read_reply(&late, &r, 2000);
    assert_int_equal(r.status, 200);
    reply_free(&r);
    for (int i = 1; i < N; i++) client_close(&c[i]);
    client_close(&late);
}

static void test_busy_port(void **state) {
    (void)state;
    server *s = NULL;
    calla_error err;
    const server_options options = {.engine = h.engine, .port = h.port, .no_signals = true};
    assert_int_equal(server_open(&options, &s, &err), CALLA_E_IO);
    assert_non_null(strstr(err.message, "in use"));
    assert_non_null(strstr(err.message, "--port"));
    const server_options elsewhere = {.engine = h.engine, .host = "192.0.2.1", .no_signals = true};
    assert_int_equal(server_open(&elsewhere, &s, &err), CALLA_E_IO);
    assert_non_null(strstr(err.message, "not an address of this machine"));
    buffer text = {0};
    server_describe(h.server, &text);
    assert_non_null(strstr(text.data, server_url(h.server)));
    assert_non_null(strstr(text.data, "curl"));
    buffer_free(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_the_path_that_was_meant_is_named),
        cmocka_unit_test(test_method_not_allowed_says_which),
        cmocka_unit_test(test_hosts_and_origins),
        cmocka_unit_test(test_head),
        cmocka_unit_test(test_continue),
        cmocka_unit_test(test_byte_by_byte),
        cmocka_unit_test(test_pipelined),
        cmocka_unit_test(test_time_limits),
        cmocka_unit_test(test_drip),
        cmocka_unit_test(test_oversized),
        cmocka_unit_test(test_sending_during_reply),
        cmocka_unit_test(test_http10_stream),
        cmocka_unit_test(test_many_at_once),
        cmocka_unit_test(test_too_many_requests),
        cmocka_unit_test(test_too_many_connections),
        cmocka_unit_test(test_busy_port),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
