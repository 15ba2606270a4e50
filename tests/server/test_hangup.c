/* Clients that leave, half-close, or do not read: the job of one that is gone is cancelled, the others are served. */
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "harness.h"
#include "support/private_memory.h"

enum { SOON_MS = 1000 };

static const server_options server_settings = {.no_signals = true, .limits = {.output_bytes = 32 << 10}};
static const fake_options engine_settings = {.max_sequences = 2, .context_tokens = 200000};
HARNESS_OF_FILE(&server_settings, &engine_settings)

static void ask(client *c, const char *say, const char *more) {
    char *json = chat_json(say, more), *request = post_request(json);
    client_open(c, h.port);
    client_send_str(c, request);
    mem_free(json);
    mem_free(request);
}

static void wait_for_jobs(uint32_t n) {
    for (int i = 0; i < 10000; i++) {
        const fake_stats s = fake_engine_stats(h.engine);
        if (s.running + s.queued == n) return;
        usleep(2000);
    }
    fail_msg("the engine never had %u jobs", n);
}

/* The client of one job leaves in the given way: its job, and only its, ends soon. */
static void leave(const char *say, const char *more, bool reset) {
    const uint32_t before = fake_engine_stats(h.engine).cancelled;
    client c;
    ask(&c, say, more);
    wait_for_jobs(1);
    if (strstr(more, "stream")) assert_true(client_wait_for(&c, "data: ", 2000) >= 0);
    if (reset)
        client_reset(&c);
    else
        client_close(&c);
    const int ms = harness_wait_cancelled(&h, before + 1, SOON_MS);
    if (ms < 0) fail_msg("%s, %s, %s: not cancelled within %d ms", say, more, reset ? "reset" : "closed", SOON_MS);
    assert_true(harness_wait_idle(&h, SOON_MS) >= 0);
}

/* A29: whoever leaves stops the work within a step, during the prompt and during the answer. */
static void test_leave(void **state) {
    (void)state;
    static const char *const say[] = {"@prompt=1000x50 long prompt", "@endless @token=20 text"};
    for (int way = 0; way < 8; way++) leave(say[way & 1], way & 2 ? "\"stream\":true" : "\"enable_thinking\":false", (way & 4) != 0);
}

/* With several choices all of them end. */
static void test_leave_choices(void **state) {
    (void)state;
    const uint32_t before = fake_engine_stats(h.engine).cancelled;
    client c;
    ask(&c, "@endless @token=20 text", "\"stream\":true,\"n\":5");
    wait_for_jobs(5);
    client_close(&c);
    assert_true(harness_wait_cancelled(&h, before + 5, SOON_MS) >= 0);
    assert_true(harness_wait_idle(&h, SOON_MS) >= 0);
}

static void test_leave_queue(void **state) {
    (void)state;
    client running[2], queued, other;
    for (int i = 0; i < 2; i++) ask(&running[i], "@endless @token=10 text", "\"stream\":true");
    wait_for_jobs(2);
    ask(&queued, "waiting", "\"enable_thinking\":false");
    wait_for_jobs(3);
    ask(&other, "served", "\"enable_thinking\":false");
    wait_for_jobs(4);
    client_close(&queued);
    wait_for_jobs(3);
    client_close(&running[0]);
    reply r;
    client_read_reply(&other, &r, 3000);
    assert_int_equal(r.status, 200);
    assert_non_null(strstr(r.body.data, "served"));
    reply_free(&r);
    client_close(&other);
    client_close(&running[1]);
    assert_true(harness_wait_idle(&h, SOON_MS) >= 0);
}

/* While the body is with the worker. */
static void test_leave_worker(void **state) {
    (void)state;
    buffer say = {0};
    while (say.n < 700000) buffer_append_str(&say, "many words ");
    for (int i = 0; i < 4; i++) {
        client c;
        ask(&c, say.data, "");
        if (i & 1)
            client_reset(&c);
        else
            client_close(&c);
    }
    buffer_free(&say);
    usleep(200000);
    reply r;
    harness_get(&h, "/health", &r);
    assert_int_equal(r.status, 200);
    reply_free(&r);
    assert_true(harness_wait_idle(&h, 20000) >= 0);
}

/* shutdown(SHUT_WR) after the request is no hang-up. */
static void test_half_closed(void **state) {
    (void)state;
    for (int streamed = 0; streamed < 2; streamed++) {
        client c;
        reply r;
        ask(&c, "@prompt=4x100 @token=5 still here", streamed ? "\"enable_thinking\":false,\"stream\":true" : "\"enable_thinking\":false");
        shutdown(c.fd, SHUT_WR);
        client_read_reply(&c, &r, 5000);
        assert_int_equal(r.status, 200);
        assert_true(r.whole);
        if (streamed) {
            stream_sum s;
            stream_read(&r, 0, &s);
            assert_string_equal(s.content.data, "still here");
            assert_true(s.done_is_last);
            stream_free(&s);
        } else
            assert_non_null(strstr(r.body.data, "still here"));
        reply_free(&r);
        assert_true(client_wait_closed(&c, 2000)); /* nothing more can come from it */
        client_close(&c);
    }
    /* Half-closed first, gone later: found by the next interim reply. */
    const uint32_t before = fake_engine_stats(h.engine).cancelled;
    client c;
    ask(&c, "@prompt=1000x50 x", "\"enable_thinking\":false");
    wait_for_jobs(1);
    shutdown(c.fd, SHUT_WR);
    usleep(300000);
    assert_int_equal(fake_engine_stats(h.engine).cancelled, before);
    client_close(&c);
    assert_true(harness_wait_cancelled(&h, before + 1, 2500) >= 0);
    /* Half a request, then FIN. */
    client_open(&c, h.port);
    client_send_str(&c, "GET /health HTTP/1.1\r\nHost: loc");
    shutdown(c.fd, SHUT_WR);
    assert_true(client_wait_closed(&c, 2000));
    client_close(&c);
}

/* A stream is never silent for 2 s, whatever the engine does.  A30 (chat and completions). */
static void test_keep_alive(void **state) {
    (void)state;
    client c, other;
    char *request = post_request_to("/v1/completions", "{\"prompt\":\"<|im_start|>user\\n@prompt=1x2500 last<|im_end|>\",\"stream\":true}");
    client_open(&other, h.port);
    client_send_str(&other, request);
    mem_free(request);
    ask(&c, "@prompt=1x3500 at last", "\"enable_thinking\":false,\"stream\":true");
    assert_true(client_wait_for(&c, "\"role\":\"assistant\"", 500) >= 0); /* the first event is at once */
    size_t had = c.in.n;
    uint64_t last = clock_now_ns(), longest = 0;
    while (!strstr(c.in.data, "[DONE]")) {
        assert_true(client_wait_for(&c, "[DONE]", 100) >= 0 || c.in.n >= had);
        const uint64_t now = clock_now_ns();
        if (c.in.n > had) last = now;
        if (now - last > longest) longest = now - last;
        had = c.in.n;
        assert_false(c.closed);
    }
    assert_true(longest < 2000000000u);
    assert_non_null(strstr(c.in.data, ": keep-alive\n\n"));
    client_close(&c);
    assert_true(client_wait_for(&other, "[DONE]", 1000) >= 0);
    assert_non_null(strstr(other.in.data, ": keep-alive\n\n"));
    client_close(&other);
}

/* A client that does not read holds back its own answer only, and gets all of it when it reads again. */
static void test_slow_reader(void **state) {
    (void)state;
    client slow;
    ask(&slow, "@endless abcdefgh", "\"enable_thinking\":false,\"stream\":true,\"max_tokens\":60000");
    assert_true(client_wait_for(&slow, "assistant", 2000) >= 0);
    wait_for_jobs(0); /* the engine did not wait for it */
    reply r;
    char *json = chat_json("quick", "\"enable_thinking\":false");
    harness_post(&h, json, &r);
    assert_int_equal(r.status, 200);
    reply_free(&r);
    mem_free(json);
    client_read_reply(&slow, &r, 60000);
    assert_true(r.whole);
    stream_sum s;
    stream_read(&r, 0, &s);
    assert_true(s.done_is_last);
    assert_string_equal(s.finish, "length");
    for (size_t i = 0; i < s.content.n; i++)
        if (s.content.data[i] != "abcdefgh"[i % 8]) fail_msg("wrong byte %zu", i);
    assert_true(s.content.n > 60000);
    stream_free(&s);
    reply_free(&r);
    client_close(&slow);
}

/* A client that never reads is dropped after write_ms, which ends its job.  Each token of these has alternatives, so that a second's worth
 * of them fills what the kernel holds. */
static void test_stuck_reader(void **state) {
    (void)state;
    harness own;
    const server_options impatient = {.no_signals = true, .limits = {.output_bytes = 32 << 10, .write_ms = 300}};
    harness_open(&own, &impatient, &engine_settings);
    char *json = chat_json("@endless @token=1 abcdefgh", "\"stream\":true,\"logprobs\":true,\"top_logprobs\":20"),
         *request = post_request(json);
    client stuck;
    client_open(&stuck, own.port);
    client_send_str(&stuck, request);
    assert_true(client_wait_for(&stuck, "assistant", 2000) >= 0);
    assert_true(harness_wait_cancelled(&own, 1, 60000) >= 0);
    assert_true(harness_wait_idle(&own, SOON_MS) >= 0);
    reply r;
    harness_get(&own, "/metrics", &r);
    assert_non_null(strstr(r.body.data, "calla_http_aborted_total{cause=\"client_stuck\"} 1\n"));
    reply_free(&r);
    client_close(&stuck);
    mem_free(json);
    mem_free(request);
    harness_close(&own);
}

/* Whole answers wait for clients that do not read as tokens, of 20 bytes (job.h) in a buffer that doubles, not as events of 200. */
static void test_memory_of_unread_answers(void **state) {
    (void)state;
    enum { N = 4, TOKEN_BYTES = 64 };
    const bool sanitized = getenv("CALLA_TEST_SHORT") != NULL;
    const long tokens = sanitized ? 20000 : 190000;
    client c[N];
    char more[128];
    snprintf(more, sizeof more, "\"enable_thinking\":false,\"stream\":true,\"max_tokens\":%ld", tokens);
    const uint64_t had = fake_engine_stats(h.engine).tokens;
    const long before = private_memory_kb();
    for (int i = 0; i < N; i++) {
        ask(&c[i], "@endless abcdefgh", more);
        assert_true(client_wait_for(&c[i], "assistant", 5000) >= 0);
    }
    wait_for_jobs(0);
    assert_true(fake_engine_stats(h.engine).tokens - had >= (uint64_t)(N * tokens));
    const long kb = (private_memory_kb() - before) / N;
    print_message("%ld KB for each of %d unread answers of %ld tokens\n", kb, N, tokens);
    if (before >= 0 && !sanitized) assert_true(kb < tokens * TOKEN_BYTES / 1024);
    for (int i = 0; i < N; i++) client_close(&c[i]);
    assert_true(harness_wait_idle(&h, SOON_MS) >= 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_leave),        cmocka_unit_test(test_leave_choices), cmocka_unit_test(test_leave_queue),
        cmocka_unit_test(test_leave_worker), cmocka_unit_test(test_half_closed),   cmocka_unit_test(test_keep_alive),
        cmocka_unit_test(test_slow_reader),  cmocka_unit_test(test_stuck_reader),  cmocka_unit_test(test_memory_of_unread_answers),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
