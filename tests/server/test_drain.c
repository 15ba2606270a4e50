/* The end of the server: SIGTERM lets answers finish within a bound, a second one does not. */
#include "unit.h"

#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "harness.h"

static int now_ms(void) { return (int)(clock_now_ns() / 1000000u); }

static void open_server(harness *h, uint32_t drain_ms) {
    const server_options options = {.drain_ms = drain_ms};
    const fake_options fake = {.context_tokens = 200000};
    harness_open(h, &options, &fake);
}

static bool is_refused(uint16_t port) {
    const struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    const bool refused = connect(fd, (const struct sockaddr *)&a, sizeof a) < 0 && errno == ECONNREFUSED;
    close(fd);
    return refused;
}

/* Until so many jobs have begun. */
static void wait_for_jobs(const harness *h, uint32_t n) {
    for (int i = 0; fake_engine_stats(h->engine).generated < n; i++) {
        if (i == 10000) fail_msg("the engine never got %u jobs", n);
        usleep(1000);
    }
}

static void ask(harness *h, client *c, const char *say, const char *more) {
    char *json = chat_json(say, more), *request = post_request(json);
    client_open(c, h->port);
    client_send_str(c, request);
    mem_free(json);
    mem_free(request);
}

/* Answers under way are finished; idle connections are closed; requests that had begun are told what is going on; nobody is let in any more. */
static void test_finishes(void **state) {
    (void)state;
    harness h;
    open_server(&h, 5000);
    client idle, streamed, whole, begun, refused;
    reply r;
    client_open(&idle, h.port);
    client_send_str(&idle, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    client_read_reply(&idle, &r, 2000);
    assert_int_equal(r.status, 200);
    reply_free(&r);
    ask(&h, &streamed, "@token=100 one two three four five six seven", "\"enable_thinking\":false,\"stream\":true");
    ask(&h, &whole, "@token=100 one two three four five six seven", "\"enable_thinking\":false");
    assert_true(client_wait_for(&streamed, "one", 2000) >= 0);
    wait_for_jobs(&h, 2);
    client_open(&begun, h.port);
    client_send_str(&begun, "GET /health HTTP/1.1\r\nHost: local");
    client_open(&refused, h.port);
    client_send_str(&refused, "POST /v1/chat/completions HTTP/1.1\r\nHost: local");
    usleep(50000); /* until both were read */
    kill(getpid(), SIGTERM);
    assert_true(client_wait_closed(&idle, 1000));
    client_send_str(&begun, "host\r\n\r\n");
    client_read_reply(&begun, &r, 1000);
    assert_int_equal(r.status, 503);
    assert_non_null(strstr(r.body.data, "\"status\":\"draining\""));
    reply_free(&r);
    assert_true(client_wait_closed(&begun, 1000));
    client_send_str(&refused, "host\r\nContent-Type: application/json\r\nContent-Length: 44\r\n\r\n"
                              "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}");
    client_read_reply(&refused, &r, 1000);
    assert_int_equal(r.status, 503);
    assert_non_null(strstr(r.body.data, "server_stopping"));
    reply_free(&r);
    assert_true(is_refused(h.port));
    client_read_reply(&whole, &r, 5000);
    assert_int_equal(r.status, 200);
    assert_non_null(strstr(r.body.data, "one two three four five six seven"));
    char value[256];
    assert_string_equal(reply_header(&r, "Connection", value), "close");
    reply_free(&r);
    client_read_reply(&streamed, &r, 5000);
    assert_true(r.whole);
    stream_sum s;
    stream_read(&r, 0, &s);
    assert_string_equal(s.content.data, "one two three four five six seven");
    assert_true(s.done_is_last);
    stream_free(&s);
    reply_free(&r);
    client_close(&idle);
    client_close(&begun);
    client_close(&refused);
    client_close(&streamed);
    client_close(&whole);
    const int begin = now_ms();
    harness_join(&h);
    assert_true(now_ms() - begin < 2500);
    harness_close(&h);
}

/* What does not finish is cancelled, with words. */
static void check_cancels(uint32_t drain_ms, int signals, int most_ms) {
    harness h;
    open_server(&h, drain_ms);
    client streamed, whole, prompt;
    reply r;
    ask(&h, &streamed, "@endless @token=20 text ", "\"stream\":true");
    ask(&h, &whole, "@endless @token=20 text ", "");
    ask(&h, &prompt, "@prompt=1000x50 long", "\"stream\":true");
    wait_for_jobs(&h, 3);
    const int begin = now_ms();
    for (int i = 0; i < signals; i++) {
        kill(getpid(), i ? SIGINT : SIGTERM);
        usleep(50000);
    }
    client_read_reply(&whole, &r, most_ms + 2000);
    assert_int_equal(r.status, 503);
    assert_non_null(strstr(r.body.data, "stopping"));
    reply_free(&r);
    client *streams[] = {&streamed, &prompt};
    for (int i = 0; i < 2; i++) {
        client_read_reply(streams[i], &r, 2000);
        assert_true(r.whole);
        stream_sum s;
        stream_read(&r, 0, &s);
        assert_true(s.error);
        assert_false(s.done);
        stream_free(&s);
        reply_free(&r);
    }
    client_close(&streamed);
    client_close(&whole);
    client_close(&prompt);
    harness_join(&h);
    const int spent = now_ms() - begin;
    if (spent > most_ms) fail_msg("stopped after %d ms", spent);
    harness_close(&h);
}

static void test_cancels_after_drain(void **state) {
    (void)state;
    check_cancels(300, 1, 2500);
}

static void test_second_signal(void **state) {
    (void)state;
    check_cancels(60000, 2, 2500);
}

/* A client that never reads cannot keep the server from ending. */
static void test_stuck_client(void **state) {
    (void)state;
    harness h;
    open_server(&h, 200);
    client c;
    ask(&h, &c, "@endless text ", "\"stream\":true");
    wait_for_jobs(&h, 1);
    usleep(300000);
    const int begin = now_ms();
    kill(getpid(), SIGTERM);
    harness_join(&h);
    assert_true(now_ms() - begin < 4000);
    client_close(&c);
    harness_close(&h);
}

/* The next server can have the port as soon as draining begins. */
static void test_port_is_free(void **state) {
    (void)state;
    harness h;
    open_server(&h, 5000);
    client c;
    ask(&h, &c, "@token=100 one two three four five", "\"stream\":true");
    assert_true(client_wait_for(&c, "assistant", 2000) >= 0);
    server_stop(h.server);
    server *next = NULL;
    calla_error err = {.status = CALLA_E_IO};
    const server_options options = {.engine = h.engine, .port = h.port, .no_signals = true};
    for (int i = 0; i < 100 && err.status; i++) {
        if (!server_open(&options, &next, &err))
            err.status = CALLA_OK;
        else
            usleep(5000);
    }
    assert_int_equal(err.status, CALLA_OK);
    server_close(next);
    client_close(&c);
    harness_close(&h);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_finishes),     cmocka_unit_test(test_cancels_after_drain), cmocka_unit_test(test_second_signal),
        cmocka_unit_test(test_stuck_client), cmocka_unit_test(test_port_is_free),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
