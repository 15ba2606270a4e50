/* failing_server.c: see failing_server.h. */
#include "support/failing_server.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buffer.h"
#include "calla.h"
#include "server/server.h"
#include "support/arrays.h"
#include "unit.h"

static void *serve(void *user) {
    calla_error err = {0};
    if (server_run(user, &err)) abort();
    return NULL;
}

/* One exchange on a connection of its own: the whole answer. */
static char *exchange(const server *s, const char *head, const char *body) {
    const struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(server_port(s)), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    buffer out = {0}, in = {0};
    char part[4096];
    assert_int_equal(connect(fd, (const struct sockaddr *)&a, sizeof a), 0);
    buffer_printf(&out,
                  "%s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                  head, strlen(body), body);
    assert_int_equal(send(fd, out.data, out.n, MSG_NOSIGNAL), out.n);
    for (ssize_t n; (n = recv(fd, part, sizeof part, 0)) > 0;) buffer_append(&in, part, (size_t)n);
    close(fd);
    buffer_free(&out);
    char *text = calloc(in.n + 1, 1);
    assert_non_null(text);
    memcpy(text, in.data, in.n);
    buffer_free(&in);
    return text;
}

static void expect(const server *s, const char *head, const char *body, const char *status, const char *said) {
    char *answer = exchange(s, head, body);
    if (!strstr(answer, status) || !strstr(answer, said)) fail_msg("%s: expected \"%s\" and \"%s\", got: %s", head, status, said, answer);
    free(answer);
}

void check_failing_server(const failing_server *f) {
    char chat[160];
    snprintf(chat, sizeof chat,
             "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"max_tokens\":%u,\"temperature\":0,\"ignore_eos\":true}",
             f->max_tokens);
    const calla_engine_options o = {.model_dir = test_models("pocket"),
                                    .device = f->device,
                                    .context_tokens = f->max_tokens + 256,
                                    .max_sequences = 2,
                                    .batch_rows = 64};
    calla_engine *engine;
    server *s;
    pthread_t thread;
    calla_error err = {0};
    if (calla_engine_open(&o, &engine, &err)) fail_msg("%s", err.message);
    const server_options so = {.engine = engine, .no_signals = true};
    if (server_open(&so, &s, &err)) fail_msg("%s", err.message);
    assert_int_equal(pthread_create(&thread, NULL, serve, s), 0);
    expect(s, "GET /health", "", " 200 ", "\"ok\"");
    f->plant(f->user);
    expect(s, "POST /v1/chat/completions", chat, " 50", f->why);
    expect(s, "GET /health", "", " 503 ", f->why);
    expect(s, "POST /v1/chat/completions", chat, " 50", f->why); /* and it computes no more */
    expect(s, "GET /v1/models", "", " 200 ", "pocket");          /* but lives */
    server_stop(s);
    pthread_join(thread, NULL);
    server_close(s);
    calla_engine_close(engine);
}
