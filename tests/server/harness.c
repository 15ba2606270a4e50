/* harness.c: see harness.h. */
#include "unit.h"

#include "harness.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/map.h"
#include "base/memory.h"

static int now_ms(void) { return (int)(clock_now_ns() / 1000000u); }

/* ------------------------------------------------------------- server ---------------------------------------------------- */

static void *run(void *user) {
    harness *h = user;
    calla_error err = {0};
    if (server_run(h->server, &err)) fprintf(stderr, "server_run: %s\n", err.message), abort();
    return NULL;
}

void harness_open(harness *h, const server_options *options, const fake_options *fake) {
    *h = (harness){0};
    calla_error err;
    const char *models = getenv("CALLA_MODELS");
    char *dir = path_join(models ? models : "models", "pocket");
    assert_non_null(dir);
    if (calla_text_open(dir, &h->text, &err)) fail_msg("%s", err.message);
    mem_free(dir);
    fake_options f = fake ? *fake : (fake_options){0};
    f.text = h->text;
    h->engine = fake_engine_open(&f);
    server_options o = options ? *options : (server_options){.no_signals = true};
    o.engine = h->engine;
    if (server_open(&o, &h->server, &err)) fail_msg("%s", err.message);
    h->port = server_port(h->server);
    assert_int_equal(pthread_create(&h->thread, NULL, run, h), 0);
}

void harness_join(harness *h) {
    if (!h->stopped) pthread_join(h->thread, NULL);
    h->stopped = true;
}

void harness_close(harness *h) {
    if (!h->stopped) server_stop(h->server), server_stop(h->server);
    harness_join(h);
    server_close(h->server);
    const fake_stats stats = fake_engine_stats(h->engine);
    assert_int_equal(stats.opened, stats.closed);
    calla_engine_close(h->engine);
    calla_text_close(h->text);
}

int harness_wait_cancelled(harness *h, uint32_t n, int ms) {
    const int begin = now_ms();
    while (fake_engine_stats(h->engine).cancelled < n) {
        if (now_ms() - begin > ms) return -1;
        usleep(2000);
    }
    return now_ms() - begin;
}

int harness_wait_idle(harness *h, int ms) {
    const int begin = now_ms();
    for (;;) {
        const fake_stats s = fake_engine_stats(h->engine);
        if (!s.running && !s.queued && s.opened == s.closed) return now_ms() - begin;
        if (now_ms() - begin > ms) return -1;
        usleep(2000);
    }
}

/* ------------------------------------------------------------- clients --------------------------------------------------- */

void client_open(client *c, uint16_t port) {
    *c = (client){.fd = socket(AF_INET, SOCK_STREAM, 0)};
    const struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (c->fd < 0 || connect(c->fd, (const struct sockaddr *)&a, sizeof a)) fail_msg("connect: %s", strerror(errno));
}

void client_reset(client *c) {
    const struct linger hard = {.l_onoff = 1, .l_linger = 0};
    setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    client_close(c);
}

void client_close(client *c) {
    if (c->fd >= 0) close(c->fd);
    c->fd = -1;
    buffer_free(&c->in);
}

/* Stops quietly when the server has closed: what it said is then read. */
void client_send(client *c, const void *bytes, size_t n) {
    for (size_t at = 0; at < n;) {
        const ssize_t sent = send(c->fd, (const char *)bytes + at, n - at, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return;
        at += (size_t)sent;
    }
}

void client_send_str(client *c, const char *s) { client_send(c, s, strlen(s)); }

/* One receive of at most ms; false once closed or after ms. */
static bool receive(client *c, int ms) {
    struct pollfd p = {.fd = c->fd, .events = POLLIN};
    if (c->closed || poll(&p, 1, ms < 0 ? 0 : ms) <= 0) return false;
    char bytes[16384];
    const ssize_t n = recv(c->fd, bytes, sizeof bytes, 0);
    if (n <= 0) {
        c->closed = true;
        c->reset = n < 0;
        return false;
    }
    buffer_append(&c->in, bytes, (size_t)n);
    return true;
}

bool client_wait_closed(client *c, int ms) {
    const int end = now_ms() + ms;
    while (!c->closed && now_ms() < end) receive(c, end - now_ms());
    return c->closed;
}

int client_wait_for(client *c, const char *text, int ms) {
    const int begin = now_ms();
    while (!c->in.n || !strstr(c->in.data, text)) {
        if (c->closed || now_ms() - begin > ms) return -1;
        receive(c, begin + ms - now_ms());
    }
    return now_ms() - begin;
}

/* Removes chunk framing of text from *at on, as far as whole chunks are there; true at the end of the body. */
static bool dechunk(const char *text, size_t n, size_t *at, buffer *out) {
    while (*at < n) {
        const char *line_end = memchr(text + *at, '\n', n - *at);
        if (!line_end) return false;
        const size_t size = strtoul(text + *at, NULL, 16), data = (size_t)(line_end - text) + 1;
        if (data + size + 2 > n) return false;
        buffer_append(out, text + data, size);
        *at = data + size + 2;
        if (!size) return true;
    }
    return false;
}

const char *reply_header(const reply *r, const char *name, char *out) {
    out[0] = 0;
    const size_t n = strlen(name);
    for (const char *line = r->head; line && *line; line = strstr(line, "\r\n") ? strstr(line, "\r\n") + 2 : NULL)
        if (!strncasecmp(line, name, n) && line[n] == ':') snprintf(out, 256, "%.*s", (int)strcspn(line + n + 2, "\r"), line + n + 2);
    return out;
}

static void drop(client *c, size_t n) {
    memmove(c->in.data, c->in.data + n, c->in.n - n + 1);
    c->in.n -= n;
}

/* Takes the head of the next reply, interim ones skipped. */
static bool take_head(client *c, reply *out) {
    for (;;) {
        const char *end = c->in.n ? strstr(c->in.data, "\r\n\r\n") : NULL;
        if (!end) return false;
        const size_t n = (size_t)(end - c->in.data) + 4;
        if (strncmp(c->in.data, "HTTP/1.1 1", 10)) out->head = mem_strndup(c->in.data, n);
        drop(c, n);
        if (!out->head) continue;
        assert_int_equal(sscanf(out->head, "HTTP/1.1 %d", &out->status), 1);
        return true;
    }
}

void client_read_reply(client *c, reply *out, int ms) {
    *out = (reply){0};
    buffer_append_str(&out->body, "");
    const int end = now_ms() + ms;
    char length[256], encoding[256];
    size_t at = 0;
    for (bool more = true; more; more = now_ms() < end && receive(c, end - now_ms())) {
        if (!out->head && !take_head(c, out)) continue;
        reply_header(out, "Content-Length", length);
        if (!strcmp(reply_header(out, "Transfer-Encoding", encoding), "chunked"))
            out->whole = dechunk(c->in.data, c->in.n, &at, &out->body);
        else if (*length) {
            at = strtoul(length, NULL, 10);
            out->whole = c->in.n >= at;
            if (out->whole) buffer_append(&out->body, c->in.data, at);
        }
        if (out->whole) break;
    }
    if (out->head && !out->whole && !*length && !*encoding && c->closed) { /* the end of the connection is the end of the body */
        at = c->in.n;
        buffer_append(&out->body, c->in.data, at);
        out->whole = true;
    }
    if (out->head && c->in.n) drop(c, at);
}

void reply_free(reply *r) {
    mem_free(r->head);
    buffer_free(&r->body);
    *r = (reply){0};
}

json_object *reply_json_body(const reply *r) {
    json_object *tree = NULL;
    calla_error err;
    if (json_parse(r->body.data ? r->body.data : "", r->body.n, "reply", &tree, &err))
        fail_msg("%s: %s", err.message, r->body.data ? r->body.data : "");
    return tree;
}

void harness_get(harness *h, const char *path, reply *out) {
    client c;
    char request[512];
    client_open(&c, h->port);
    snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", path);
    client_send_str(&c, request);
    client_read_reply(&c, out, 10000);
    client_close(&c);
}

char *post_request(const char *json) { return post_request_to("/v1/chat/completions", json); }

char *post_request_to(const char *path, const char *json) {
    buffer b = {0};
    buffer_printf(&b, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n", path,
                  strlen(json));
    buffer_append_str(&b, json);
    return buffer_take(&b);
}

void harness_post(harness *h, const char *json, reply *out) { harness_post_to(h, "/v1/chat/completions", json, out); }

void harness_post_to(harness *h, const char *path, const char *json, reply *out) {
    client c;
    client_open(&c, h->port);
    char *request = post_request_to(path, json);
    client_send_str(&c, request);
    mem_free(request);
    client_read_reply(&c, out, 20000);
    client_close(&c);
}

json_object *harness_ask(harness *h, const char *path, const char *json, int status, reply *out) {
    reply r;
    harness_post_to(h, path, json, &r);
    if (r.status != status) fail_msg("%s %.500s: status %d, want %d: %s", path, json, r.status, status, r.body.data);
    json_object *tree = reply_json_body(&r);
    if (out)
        *out = r;
    else
        reply_free(&r);
    return tree;
}

char *chat_json(const char *say, const char *more) {
    buffer b = {0};
    buffer_append_str(&b, "{\"messages\":[{\"role\":\"user\",\"content\":");
    json_append_string(&b, say, strlen(say));
    buffer_append_str(&b, "}]");
    if (more && *more) buffer_printf(&b, ",%s", more);
    buffer_append_str(&b, "}");
    return buffer_take(&b);
}

/* -------------------------------------------------------------- JSON ----------------------------------------------------- */

json_object *json_at(json_object *tree, const char *path) {
    while (tree && *path) {
        char key[64];
        const size_t n = strcspn(path, ".");
        snprintf(key, sizeof key, "%.*s", (int)n, path);
        path += n + (path[n] == '.');
        if (json_object_is_type(tree, json_type_array))
            tree = json_object_array_get_idx(tree, strtoul(key, NULL, 10));
        else if (!json_object_is_type(tree, json_type_object) || !json_object_object_get_ex(tree, key, &tree))
            return NULL;
    }
    return tree;
}

const char *json_str(json_object *tree, const char *path) {
    json_object *value = json_at(tree, path);
    return json_object_is_type(value, json_type_string) ? json_object_get_string(value) : "";
}

int64_t json_int(json_object *tree, const char *path) {
    json_object *value = json_at(tree, path);
    return json_object_is_type(value, json_type_int) ? json_object_get_int64(value) : -1;
}

static void add_event(json_object *event, int64_t choice, stream_sum *out) {
    if (json_at(event, "error")) out->error = true;
    json_object *usage = json_at(event, "usage");
    if (usage) {
        out->usages++;
        assert_int_equal(json_object_array_length(json_at(event, "choices")), 0);
        json_object_put(out->usage);
        out->usage = json_object_get(usage);
    }
    if (json_int(event, "choices.0.index") != choice) return;
    if (!out->events++) out->first_is_role = !strcmp(json_str(event, "choices.0.delta.role"), "assistant");
    buffer_append_str(&out->content, json_str(event, "choices.0.delta.content"));
    buffer_append_str(&out->reasoning, json_str(event, "choices.0.delta.reasoning_content"));
    json_object *call = json_at(event, "choices.0.delta.tool_calls.0");
    if (*json_str(call, "id")) buffer_printf(&out->calls, "%s%s(", out->calls.n ? ");" : "", json_str(call, "function.name"));
    buffer_append_str(&out->calls, json_str(call, "function.arguments"));
    json_object *entries = json_at(event, "choices.0.logprobs.content");
    if (entries) out->logprobs += json_object_array_length(entries);
    if (*json_str(event, "choices.0.finish_reason"))
        snprintf(out->finish, sizeof out->finish, "%s", json_str(event, "choices.0.finish_reason"));
}

/* Sanitizers make strstr and memmem look at all that follows, which takes minutes for a long stream. */
static const char *find_event_end(const char *p) {
    while (*p && !(p[0] == '\n' && p[1] == '\n')) p++;
    return *p ? p : NULL;
}

void stream_read(const reply *r, int64_t choice, stream_sum *out) {
    *out = (stream_sum){0};
    buffer_append_str(&out->content, "");
    buffer_append_str(&out->reasoning, "");
    buffer_append_str(&out->calls, "");
    for (const char *p = r->body.data; p && *p;) {
        const char *end = find_event_end(p);
        assert_non_null(end);
        out->done_is_last = false;
        if (*p == ':')
            out->comments++;
        else {
            assert_int_equal(strncmp(p, "data: ", 6), 0);
            p += 6;
            if (!strncmp(p, "[DONE]\n", 7))
                out->done = out->done_is_last = true;
            else {
                json_object *event = NULL;
                calla_error err;
                if (json_parse(p, (size_t)(end - p), "event", &event, &err)) fail_msg("%s", err.message);
                add_event(event, choice, out);
                json_object_put(event);
            }
        }
        p = end + 2;
    }
    if (out->calls.n) buffer_append_str(&out->calls, ");");
}

void stream_free(stream_sum *s) {
    buffer_free(&s->content);
    buffer_free(&s->reasoning);
    buffer_free(&s->calls);
    json_object_put(s->usage);
}
