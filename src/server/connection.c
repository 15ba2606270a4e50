/* connection.c: see connection.h.  Owns the bufferevent, the time limits and the order of requests; knows no route. */
#include "server/connection.h"

#include <event2/buffer.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "server/entropy.h"
#include "server/guard.h"
#include "server/reply.h"
#include "server/routes.h"

enum {
    READ_AHEAD_BYTES = 64 << 10,
    PROBE_POLL_MS = 50,       /* how often a half-closed socket is asked for an error */
    PROBE_INTERVAL_MS = 1000, /* how often such a client is sent something */
    LINGER_MS = 1000,
    BODY_BYTES_PER_S = 64 << 10
};

static uint64_t now_ms(void) { return clock_now_ns() / 1000000u; }

static void arm(connection *c, uint64_t ms) {
    const struct timeval tv = {.tv_sec = (time_t)(ms / 1000), .tv_usec = (suseconds_t)(ms % 1000 * 1000)};
    event_add(c->timer, &tv);
}

/* ------------------------------------------------------------ ending ---------------------------------------------------- */

static void notify_gone(connection *c) {
    void (*gone)(void *) = c->state == CONNECTION_REPLYING ? c->reply.gone : NULL;
    c->reply.gone = c->reply.proceed = NULL;
    if (gone) gone(c->reply.user);
}

/* The one line that the log has of a request; end: how it ended where that was not as it should. */
static void log_request(const connection *c, const char *end) {
    const http_request *q = &c->reader.request;
    const double ms = (double)(clock_now_ns() - c->reply.begun_ns) / 1e6;
    const int path_n = q->method ? (int)(q->path_n < 64 ? q->path_n : 64) : 1; /* no query: it may hold anything */
    log_info("request %s %s %.*s %d %.1f ms%s%s%s%s", c->reply.id, q->method ? q->method : "-", path_n,
             q->method ? http_request_target(q) : "-", c->reply.begun ? c->reply.status : 0, ms, *c->reply.note ? " " : "", c->reply.note,
             *end ? " aborted=" : "", end);
}

void connection_abort(connection *c, abort_cause cause) {
    if (c->dead) return;
    c->dead = true;
    server *s = c->server;
    notify_gone(c);
    if (c->state == CONNECTION_REPLYING) {
        log_request(c, abort_cause_name(cause));
        s->metrics.aborted[cause]++;
    }
    event_del(c->timer);
    bufferevent_disable(c->bev, EV_READ | EV_WRITE);
    if (c->prev)
        c->prev->next = c->next;
    else
        s->connections = c->next;
    if (c->next) c->next->prev = c->prev;
    c->next = s->dead;
    s->dead = c;
    event_active(s->reaper, EV_TIMEOUT, 0);
}

void connection_reap(server *s) {
    while (s->dead) {
        connection *c = s->dead;
        s->dead = c->next;
        bufferevent_free(c->bev);
        event_free(c->timer);
        http_reader_free(&c->reader);
        mem_free(c);
        s->n_connections--;
        server_connection_closed(s);
    }
    server_check_drained(s);
}

/* Everything is sent: our side says FIN, then waits a little for the client's, throwing away what it still sends. Closing at once with
 * unread bytes would send RST, and a reset can overtake the reply (the client sees no 413, only a broken connection). */
static void linger(connection *c) {
    if (c->eof) {
        connection_abort(c, ABORT_CLIENT_LEFT);
        return;
    }
    c->state = CONNECTION_LINGERING;
    shutdown(bufferevent_getfd(c->bev), SHUT_WR);
    evbuffer_drain(bufferevent_get_input(c->bev), evbuffer_get_length(bufferevent_get_input(c->bev)));
    arm(c, LINGER_MS);
}

static void flush_and_close(connection *c) {
    c->state = CONNECTION_FLUSHING;
    event_del(c->timer);
    bufferevent_setwatermark(c->bev, EV_WRITE, 0, 0);
    if (!evbuffer_get_length(bufferevent_get_output(c->bev))) linger(c);
}

/* ----------------------------------------------------------- requests --------------------------------------------------- */

/* Sets the time limit that fits what is being read. */
static void arm_reading(connection *c) {
    const server_limits *l = &c->server->limits;
    c->since_ns = clock_now_ns();
    arm(c, http_reader_idle(&c->reader) ? l->idle_ms : c->reader.head_done ? l->body_ms : l->header_ms);
}

static void dispatch(connection *c) {
    c->state = CONNECTION_REPLYING;
    event_del(c->timer);
    if (c->refusal.status)
        reply_error(c, &c->refusal);
    else if (c->preflight)
        reply_preflight(c);
    else
        routes_dispatch(c);
}

/* Answers a request that cannot be read to its end. */
static void refuse_and_close(connection *c, const api_error *e) {
    c->state = CONNECTION_REPLYING;
    event_del(c->timer);
    c->reply.keep_alive = false;
    reply_error(c, e);
}

/* Who may ask, then what can be asked for.  Browsers ask beforehand, and without a key. */
static void check_rights(connection *c) {
    http_request *q = &c->reader.request;
    const guard *g = c->server->guard;
    if (!guard_check(g, q, &c->refusal)) return;
    c->origin = guard_cors_origin(g, q);
    c->preflight = c->origin && q->verb == VERB_OPTIONS && http_request_header(q, "access-control-request-method");
    c->knows_key = guard_has_key(g, q);
    if (c->preflight) return;
    const bool health = http_request_path_is(q, "/health");
    if (c->knows_key && !health && !atomic_load(&c->server->ready)) {
        api_error_set(&c->refusal, 503, "loading", NULL, "the model is being loaded: GET /health says how far that is");
        c->refusal.retry_after = 2;
    } else if (c->knows_key || health)
        routes_check(q, &c->refusal, &c->allow);
    else
        api_error_set(&c->refusal, 401, "invalid_api_key", NULL,
                      "this server wants one of its API keys, as Authorization: Bearer KEY or x-api-key: KEY");
}

/* The headers are in: what can be said now is said before the body is taken. */
static void check_head(connection *c) {
    http_request *q = &c->reader.request;
    c->reply.keep_alive = q->keep_alive && !c->server->draining;
    c->allow = NULL;
    c->preflight = c->knows_key = false;
    c->refusal.status = 0;
    const char *expect = http_request_header(q, "expect");
    const bool wants_continue = expect && !strcasecmp(expect, "100-continue");
    if (expect && !wants_continue)
        api_error_set(&c->refusal, 417, NULL, NULL, "the only expectation understood is 100-continue");
    else
        check_rights(c);
    if (c->refusal.status && q->has_body)
        refuse_and_close(c, &c->refusal);
    else if (wants_continue && q->minor == 1 && q->has_body)
        bufferevent_write(c->bev, "HTTP/1.1 100 Continue\r\n\r\n", 25);
}

/* Reads requests while there are bytes and no reply is under way. */
static void pump(connection *c) {
    if (c->pumping) return;
    c->pumping = true;
    struct evbuffer *in = bufferevent_get_input(c->bev);
    http_step step = HTTP_STEP_MORE;
    while (!c->dead && c->state == CONNECTION_READING && (evbuffer_get_length(in) || step == HTTP_STEP_HEAD)) {
        const size_t n = evbuffer_get_contiguous_space(in);
        const char *data = n ? (const char *)evbuffer_pullup(in, (ev_ssize_t)n) : "";
        const bool was_idle = http_reader_idle(&c->reader);
        if (was_idle) {
            c->reply.begun_ns = clock_now_ns();
            c->reply.keep_alive = false;
            c->reply.begun = c->reply.streaming = false;
            c->reply.note[0] = 0;
            entropy_id("req_", 16, c->reply.id);
            c->origin = NULL;
        }
        size_t used = 0;
        step = http_reader_feed(&c->reader, data, n, &used);
        evbuffer_drain(in, used);
        if (step == HTTP_STEP_REFUSED)
            refuse_and_close(c, &c->reader.error);
        else if (step == HTTP_STEP_HEAD) {
            check_head(c);
            if (c->state == CONNECTION_READING) arm_reading(c);
        } else if (step == HTTP_STEP_DONE)
            dispatch(c);
        else if (was_idle && !http_reader_idle(&c->reader))
            arm_reading(c);
    }
    c->pumping = false;
    /* After the client's FIN nothing can complete a request that is not complete now. */
    if (!c->dead && c->eof && c->state == CONNECTION_READING) flush_and_close(c);
    if (!c->dead && c->eof && c->state == CONNECTION_REPLYING) arm(c, PROBE_POLL_MS);
}

void connection_reply_ended(connection *c) {
    if (c->dead) return;
    log_request(c, "");
    metrics_reply(&c->server->metrics, &c->reader.request, c->reply.status);
    c->reply.gone = c->reply.proceed = NULL;
    if (!c->reply.keep_alive || c->server->draining) {
        flush_and_close(c);
        return;
    }
    http_reader_reset(&c->reader);
    c->state = CONNECTION_READING;
    arm_reading(c);
    pump(c);
}

void connection_drain(connection *c) {
    if (c->state == CONNECTION_READING && http_reader_idle(&c->reader)) flush_and_close(c);
}

/* --------------------------------------------------------- half-closed -------------------------------------------------- */

static bool socket_has_error(connection *c) {
    int error = 0;
    socklen_t n = sizeof error;
    return getsockopt(bufferevent_getfd(c->bev), SOL_SOCKET, SO_ERROR, &error, &n) || error;
}

static void probe(connection *c) {
    if (c->reader.request.minor == 0 || socket_has_error(c)) {
        connection_abort(c, ABORT_CLIENT_LEFT);
        return;
    }
    if (!c->probe_ns || clock_now_ns() - c->probe_ns >= PROBE_INTERVAL_MS * 1000000ull) {
        c->probe_ns = clock_now_ns();
        if (!c->reply.begun)
            bufferevent_write(c->bev, "HTTP/1.1 102 Processing\r\n\r\n", 27);
        else if (c->reply.streaming)
            reply_stream_comment(c, "half-closed");
    }
    if (!c->dead) arm(c, PROBE_POLL_MS);
}

static void on_eof(connection *c) {
    c->eof = true;
    if (c->state == CONNECTION_LINGERING) {
        connection_abort(c, ABORT_CLIENT_LEFT);
        return;
    }
    if (c->state == CONNECTION_READING) pump(c);
    if (!c->dead && c->state == CONNECTION_REPLYING) probe(c);
}

/* ----------------------------------------------------------- callbacks -------------------------------------------------- */

static void on_timer(evutil_socket_t fd, short what, void *user) {
    (void)fd, (void)what;
    connection *c = user;
    if (c->dead) return;
    if (c->state == CONNECTION_REPLYING) {
        if (c->eof) probe(c);
        return;
    }
    if (c->state != CONNECTION_READING || http_reader_idle(&c->reader)) {
        connection_abort(c, ABORT_CLIENT_LEFT);
        return;
    }
    api_error e;
    if (c->reader.head_done) {
        const uint64_t allowed = c->server->limits.body_ms + c->reader.request.body.n * 1000 / BODY_BYTES_PER_S;
        const uint64_t spent = now_ms() - c->since_ns / 1000000u;
        if (spent < allowed) {
            arm(c, allowed - spent);
            return;
        }
        api_error_set(&e, 408, "body_timeout", NULL, "the request's body came too slowly");
    } else
        api_error_set(&e, 408, "header_timeout", NULL, "the request's headers came too slowly");
    refuse_and_close(c, &e);
}

static void on_read(struct bufferevent *bev, void *user) {
    connection *c = user;
    if (c->dead) return;
    if (c->state == CONNECTION_READING)
        pump(c);
    else if (c->state == CONNECTION_LINGERING)
        evbuffer_drain(bufferevent_get_input(bev), evbuffer_get_length(bufferevent_get_input(bev)));
}

static void on_write(struct bufferevent *bev, void *user) {
    connection *c = user;
    if (c->dead) return;
    if (c->state == CONNECTION_FLUSHING && !evbuffer_get_length(bufferevent_get_output(bev)))
        linger(c);
    else if (c->state == CONNECTION_REPLYING && c->reply.proceed)
        c->reply.proceed(c->reply.user);
}

static void on_event(struct bufferevent *bev, short what, void *user) {
    (void)bev;
    connection *c = user;
    if (c->dead) return;
    if ((what & BEV_EVENT_EOF) && !(what & BEV_EVENT_ERROR))
        on_eof(c);
    else /* reset, or nothing was taken for write_ms */
        connection_abort(c, what & BEV_EVENT_TIMEOUT ? ABORT_CLIENT_STUCK : ABORT_CLIENT_LEFT);
}

void connection_accept(server *s, evutil_socket_t fd) {
    connection *c = mem_calloc(1, sizeof *c);
    struct bufferevent *bev = c ? bufferevent_socket_new(s->base, fd, BEV_OPT_CLOSE_ON_FREE) : NULL;
    struct event *timer = bev ? evtimer_new(s->base, on_timer, c) : NULL;
    if (!timer) {
        log_warn("a connection was dropped: out of memory");
        if (bev)
            bufferevent_free(bev);
        else
            evutil_closesocket(fd);
        mem_free(c);
        return;
    }
    c->server = s;
    c->bev = bev;
    c->timer = timer;
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    const http_limits limits = {.url_bytes = s->limits.url_bytes,
                                .header_bytes = s->limits.header_bytes,
                                .headers = s->limits.headers,
                                .body_bytes = s->limits.body_bytes,
                                .upload_bytes = s->limits.upload_bytes,
                                .upload_used = &s->upload_used};
    http_reader_init(&c->reader, &limits);
    c->next = s->connections;
    if (c->next) c->next->prev = c;
    s->connections = c;
    s->n_connections++;
    bufferevent_setcb(bev, on_read, on_write, on_event, c);
    bufferevent_setwatermark(bev, EV_READ, 0, READ_AHEAD_BYTES);
    bufferevent_setwatermark(bev, EV_WRITE, s->limits.output_bytes / 2, 0);
    const struct timeval write_limit = {.tv_sec = s->limits.write_ms / 1000, .tv_usec = (suseconds_t)(s->limits.write_ms % 1000 * 1000)};
    bufferevent_set_timeouts(bev, NULL, &write_limit);
    arm_reading(c);
    if (bufferevent_enable(bev, EV_READ | EV_WRITE)) connection_abort(c, ABORT_NO_MEMORY);
}
