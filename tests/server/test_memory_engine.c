/* test_memory_engine.c: the server with its real engine while memory runs out: each allocation of a request fails once, from the accepted
 * connection through the model's steps to the last byte.  That request fails or is closed; the next is answered, /health says that all is
 * well, and nothing is lost (the sanitizer's run sees leaks).  json-c and libevent allocate for themselves. */
#include "unit.h"

#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/memory.h"
#include "calla.h"
#include "server/server.h"
#include "support/arrays.h"

static atomic_llong countdown = -1; /* allocations until the one that fails; below 0: none */
static atomic_bool failed;
static server *s;
static char answer[1 << 16];

static int fail_one(void *user, uint64_t number) {
    (void)user, (void)number;
    if (atomic_load(&countdown) < 0 || atomic_fetch_sub(&countdown, 1) != 0) return 0;
    atomic_store(&failed, true);
    return 1;
}

static void *serve(void *user) {
    calla_error err = {0};
    if (server_run(user, &err)) abort();
    return NULL;
}

/* One exchange on a connection of its own; the whole reply is in `answer`, "" if there was none.  Allocates nothing by mem_*. */
static void exchange(const char *head, const char *body) {
    const struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(server_port(s)), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const struct timeval patience = {.tv_sec = 60};
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    static char request[4096];
    const int bytes = snprintf(request, sizeof request,
                               "%s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
                               "Content-Length: %zu\r\n\r\n%s",
                               head, strlen(body), body);
    assert_in_range(bytes, 1, sizeof request - 1);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience), 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&a, sizeof a), 0);
    size_t n = 0;
    ssize_t got = send(fd, request, (size_t)bytes, MSG_NOSIGNAL);
    while (got > 0 && n < sizeof answer - 1)
        if ((got = recv(fd, answer + n, sizeof answer - 1 - n, 0)) > 0) n += (size_t)got;
    if (got < 0 && errno == EAGAIN) fail_msg("%s: neither an answer nor an end within a minute, after: %.*s", head, (int)n, answer);
    answer[n] = 0;
    close(fd);
}

static void check(const char *path, const char *body, const char *says) {
    char head[64];
    snprintf(head, sizeof head, "POST %s", path);
    long long n = 0;
    size_t refused = 0;
    for (int unharmed = 0; unharmed < 2; n++) {
        atomic_store(&failed, false);
        atomic_store(&countdown, n);
        exchange(head, body);
        atomic_store(&countdown, -1);
        const bool good = strstr(answer, " 200 ") && strstr(answer, says);
        if (!atomic_load(&failed)) {
            if (!good) fail_msg("%s: no allocation failed, and yet: %s", path, answer);
            unharmed++;
            continue;
        }
        refused += !good;
        if (*answer && !strstr(answer, " 200 ") && !strstr(answer, " 503 ")) fail_msg("%s, allocation %lld: %s", path, n, answer);
        exchange("GET /health", "");
        if (!strstr(answer, " 200 ")) fail_msg("%s, allocation %lld: it is not well: %s", path, n, answer);
        assert_true(n < 20000);
    }
    print_message("%s: %lld allocations, %zu of them missed\n", path, n, refused);
    assert_true(refused > 5);
}

static void test_requests(void **state) {
    (void)state;
    const calla_engine_options o = {
        .model_dir = test_models("pocket"), .device = "cpu", .context_tokens = 256, .max_sequences = 2, .batch_rows = 32};
    calla_engine *engine;
    pthread_t thread;
    calla_error err = {0};
    log_set_level(LOG_ERROR); /* every failure is logged */
    mem_set_failure(fail_one, NULL);
    if (calla_engine_open(&o, &engine, &err)) fail_msg("%s", err.message);
    const server_options so = {.engine = engine, .no_signals = true};
    if (server_open(&so, &s, &err)) fail_msg("%s", err.message);
    assert_int_equal(pthread_create(&thread, NULL, serve, s), 0);
#define ASK "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"enable_thinking\":false,\"temperature\":0,\"max_tokens\":3"
    check("/v1/chat/completions", ASK "}", "\"finish_reason\":");
    check("/v1/chat/completions",
          ASK ",\"stream\":true,\"logprobs\":true,\"top_logprobs\":2,\"presence_penalty\":0.5,\"logit_bias\":{\"5\":1}}", "data: [DONE]");
    check("/v1/messages", ASK ",\"stream\":true}", "event: message_stop");
    check("/v1/completions", "{\"prompt\":\"Hi\",\"max_tokens\":3,\"temperature\":0,\"n\":2}", "\"finish_reason\":");
    exchange("GET /health", "");
    if (!strstr(answer, "\"running\":0") || !strstr(answer, "\"queued\":0")) fail_msg("something is left: %s", answer);
    server_stop(s);
    pthread_join(thread, NULL);
    server_close(s);
    calla_engine_close(engine);
    mem_set_failure(NULL, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_requests)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
