/* reply.c: see reply.h.  Owns the bytes of status lines, headers and event framing. */
#include "server/reply.h"

#include <event2/buffer.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "server/routes.h"

static const char OUT_OF_MEMORY[] =
    "{\"error\":{\"message\":\"out of memory for the reply: try again\",\"type\":\"server_error\",\"param\":null,"
    "\"code\":\"out_of_memory\"}}";

/* Status line and headers common to all replies, without the empty line. */
static void write_head(connection *c, struct evbuffer *out, int status, const char *type, const char *headers) {
    char date[40] = "";
    const time_t now = time(NULL);
    struct tm tm;
    if (gmtime_r(&now, &tm)) strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", &tm);
    c->reply.begun = true;
    c->reply.status = status;
    if (c->server->draining) c->reply.keep_alive = false;
    /* OpenAI's clients read the id under one name, Anthropic's under the other. */
    evbuffer_add_printf(out,
                        "HTTP/1.1 %d %s\r\nDate: %s\r\nServer: calla\r\nContent-Type: %s\r\nX-Request-Id: %s\r\nRequest-Id: %s\r\n%s%s",
                        status, http_status_text(status), date, type, c->reply.id, c->reply.id, headers ? headers : "",
                        !c->reply.keep_alive           ? "Connection: close\r\n"
                        : c->reader.request.minor == 0 ? "Connection: keep-alive\r\n"
                                                       : "");
    if (c->origin)
        evbuffer_add_printf(out,
                            "Access-Control-Allow-Origin: %s\r\nVary: Origin\r\nAccess-Control-Expose-Headers: X-Request-Id, Request-Id, "
                            "Retry-After, x-calla-ignored, x-calla-warning, x-calla-sampling\r\n",
                            c->origin);
}

/* Moves out to the connection and frees it; kills the connection if anything was lost. */
static void commit(connection *c, struct evbuffer *out, size_t expected) {
    if (evbuffer_get_length(out) < expected || bufferevent_write_buffer(c->bev, out)) connection_abort(c, ABORT_NO_MEMORY);
    evbuffer_free(out);
}

void reply_send(connection *c, int status, const char *type, const char *headers, const char *body, size_t n) {
    if (c->dead) return;
    struct evbuffer *out = evbuffer_new();
    if (!out) {
        connection_abort(c, ABORT_NO_MEMORY);
        return;
    }
    write_head(c, out, status, type, headers);
    evbuffer_add_printf(out, "Content-Length: %zu\r\n\r\n", n);
    const bool bodiless = c->reader.request.method && c->reader.request.verb == VERB_HEAD;
    const size_t head_bytes = evbuffer_get_length(out);
    if (!bodiless && evbuffer_add(out, body, n)) evbuffer_drain(out, head_bytes); /* makes commit see the loss */
    commit(c, out, 64 + (bodiless ? 0 : n));
    connection_reply_ended(c);
}

void reply_buffer(connection *c, int status, const char *type, const char *headers, const buffer *body) {
    if (body->failed || !body->data)
        reply_send(c, 503, "application/json", "Retry-After: 1\r\n", OUT_OF_MEMORY, sizeof OUT_OF_MEMORY - 1);
    else
        reply_send(c, status, type, headers, body->data, body->n);
}

void reply_json(connection *c, int status, const char *headers, const buffer *body) {
    reply_buffer(c, status, "application/json", headers, body);
}

void reply_error(connection *c, const api_error *e) {
    buffer body = {0};
    char headers[128] = "";
    if (e->retry_after)
        snprintf(headers, sizeof headers, "Retry-After: %u\r\n", e->retry_after);
    else if (e->status == 405 && c->allow)
        snprintf(headers, sizeof headers, "Allow: %s\r\n", c->allow);
    else if (e->status == 401)
        snprintf(headers, sizeof headers, "WWW-Authenticate: Bearer\r\n");
    routes_write_error(&c->reader.request, e, &body);
    reply_json(c, e->status, headers, &body);
    buffer_free(&body);
}

/* Never with credentials: keys come in headers, and `*` does not cover Authorization. */
void reply_preflight(connection *c) {
    reply_send(c, 200, "text/plain",
               "Access-Control-Allow-Methods: GET, HEAD, POST, DELETE\r\nAccess-Control-Allow-Headers: *, Authorization\r\n"
               "Access-Control-Max-Age: 600\r\n",
               "", 0);
}

void reply_stream_begin(connection *c, const char *headers) {
    if (c->dead) return;
    struct evbuffer *out = evbuffer_new();
    if (!out) {
        connection_abort(c, ABORT_NO_MEMORY);
        return;
    }
    c->reply.streaming = true;
    c->reply.chunked = c->reader.request.minor == 1;
    if (!c->reply.chunked) c->reply.keep_alive = false; /* HTTP/1.0: the end of the connection is the end of the body */
    write_head(c, out, 200, "text/event-stream; charset=utf-8", headers);
    evbuffer_add_printf(out, "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n%s\r\n",
                        c->reply.chunked ? "Transfer-Encoding: chunked\r\n" : "");
    commit(c, out, 64);
}

/* prefix, text [n] and an empty line as one chunk. */
static void stream_write(connection *c, const char *prefix, const char *text, size_t n) {
    if (c->dead) return;
    struct evbuffer *out = evbuffer_new();
    if (!out) {
        connection_abort(c, ABORT_NO_MEMORY);
        return;
    }
    const size_t bytes = strlen(prefix) + n + 2;
    if (c->reply.chunked) evbuffer_add_printf(out, "%zx\r\n", bytes);
    evbuffer_add(out, prefix, strlen(prefix));
    evbuffer_add(out, text, n);
    evbuffer_add(out, c->reply.chunked ? "\n\n\r\n" : "\n\n", c->reply.chunked ? 4 : 2);
    commit(c, out, bytes);
}

void reply_stream_event(connection *c, const char *name, const char *json, size_t n) {
    char prefix[96] = "data: ";
    if (name) snprintf(prefix, sizeof prefix, "event: %s\ndata: ", name);
    stream_write(c, prefix, json, n);
}

void reply_stream_comment(connection *c, const char *text) { stream_write(c, ": ", text, strlen(text)); }

void reply_stream_end(connection *c, bool keep_alive) {
    if (c->dead) return;
    if (c->reply.chunked && bufferevent_write(c->bev, "0\r\n\r\n", 5)) {
        connection_abort(c, ABORT_NO_MEMORY);
        return;
    }
    if (!keep_alive) c->reply.keep_alive = false;
    connection_reply_ended(c);
}

bool reply_is_backed_up(connection *c) { return reply_unsent(c) > c->server->limits.output_bytes; }
size_t reply_unsent(connection *c) { return c->dead ? 0 : evbuffer_get_length(bufferevent_get_output(c->bev)); }
