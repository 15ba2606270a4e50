/* server.c: see server.h.  Owns the loop, the listener, signals and the order of ending.
 *
 * Ending has three steps: draining (no new connections; answers under way go on), cancelling (after drain_ms or a second signal: they
 * end with an error), and the loop's end, when no connection and no session is left or FINAL_MS later in any case. */
#include "server/server.h"

#include <errno.h>
#include <event2/thread.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "base/memory.h"
#include "server/compiled_forms.h"
#include "server/completion.h"
#include "server/connection.h"
#include "server/guard.h"
#include "server/job.h"
#include "server/responses_store.h"
#include "server/worker.h"
#include "text/text.h"

enum { FINAL_MS = 2000, ACCEPT_RETRY_MS = 100 };

static void start_timer(struct event *timer, uint32_t ms) {
    const struct timeval tv = {.tv_sec = ms / 1000, .tv_usec = (suseconds_t)(ms % 1000 * 1000)};
    event_add(timer, &tv);
}

/* ----------------------------------------------------------- ending ----------------------------------------------------- */

void server_check_drained(server *s) {
    if (s->draining && !s->connections && !s->dead && !s->n_completions && !mailbox_live(s->mailbox)) event_base_loopbreak(s->base);
}

static void cancel_everything(server *s) {
    if (s->cancelling) return;
    s->cancelling = true;
    log_info("cancelling %u answers", s->n_completions);
    completion_cancel_all(s);
    start_timer(s->final_timer, FINAL_MS);
    server_check_drained(s);
}

static void on_stop(evutil_socket_t fd, short what, void *user) {
    (void)fd, (void)what;
    server *s = user;
    if (s->draining) {
        cancel_everything(s);
        return;
    }
    s->draining = true;
    if (atomic_load(&s->ready)) log_info("stopping: %u answers under way", s->n_completions);
    evconnlistener_free(s->listener); /* the port is free for the next server from here on */
    s->listener = NULL;
    for (connection *c = s->connections, *next; c; c = next) {
        next = c->next;
        connection_drain(c);
    }
    start_timer(s->drain_timer, s->drain_ms);
    server_check_drained(s);
}

static void on_drain_over(evutil_socket_t fd, short what, void *user) {
    (void)fd, (void)what;
    cancel_everything(user);
}

static void on_final(evutil_socket_t fd, short what, void *user) {
    (void)fd, (void)what;
    event_base_loopbreak(((server *)user)->base);
}

static void on_idle(void *user) { server_check_drained(user); }

/* ---------------------------------------------------------- accepting --------------------------------------------------- */

void server_connection_closed(server *s) {
    if (s->listener && s->n_connections == s->limits.connections - 1) evconnlistener_enable(s->listener);
}

static void on_accept(struct evconnlistener *listener, evutil_socket_t fd, struct sockaddr *address, int n, void *user) {
    (void)address, (void)n;
    server *s = user;
    connection_accept(s, fd);
    if (s->n_connections >= s->limits.connections) {
        log_warn("%u connections are open: more wait until one closes", s->n_connections);
        evconnlistener_disable(listener);
    }
}

/* Out of descriptors, most likely.  The socket stays readable, so that going on at once would be a busy loop. */
static void on_accept_error(struct evconnlistener *listener, void *user) {
    server *s = user;
    log_warn("cannot accept a connection: %s", strerror(errno));
    evconnlistener_disable(listener);
    start_timer(s->accept_retry, ACCEPT_RETRY_MS);
}

static void on_accept_retry(evutil_socket_t fd, short what, void *user) {
    (void)fd, (void)what;
    server *s = user;
    if (s->listener && s->n_connections < s->limits.connections) evconnlistener_enable(s->listener);
}

static void on_reap(evutil_socket_t fd, short what, void *user) {
    (void)fd, (void)what;
    connection_reap(user);
}

/* --------------------------------------------------------- open, close -------------------------------------------------- */

static pthread_once_t threads_once = PTHREAD_ONCE_INIT;
static void use_threads(void) { evthread_use_pthreads(); }

#define DEFAULT(field, value)                                                                                                              \
    if (!l->field) l->field = (value)

static void fill_defaults(server_limits *l) {
    DEFAULT(url_bytes, 8 << 10);
    DEFAULT(header_bytes, 64 << 10);
    DEFAULT(headers, 100);
    DEFAULT(body_bytes, 64 << 20);
    DEFAULT(upload_bytes, 256 << 20);
    DEFAULT(output_bytes, 256 << 10);
    DEFAULT(history_bytes, 64 << 20);
    DEFAULT(connections, 1024);
    DEFAULT(requests, 256);
    DEFAULT(header_ms, 10000);
    DEFAULT(body_ms, 30000);
    DEFAULT(idle_ms, 120000);
    DEFAULT(write_ms, 120000);
}

static calla_status open_events(server *s, calla_error *err) {
    s->base = event_base_new();
    if (!s->base) return error_nomem(err, "the server's event loop");
    s->stop = event_new(s->base, -1, EV_PERSIST, on_stop, s);
    s->reaper = event_new(s->base, -1, EV_PERSIST, on_reap, s);
    s->accept_retry = evtimer_new(s->base, on_accept_retry, s);
    s->drain_timer = evtimer_new(s->base, on_drain_over, s);
    s->final_timer = evtimer_new(s->base, on_final, s);
    if (!s->stop || !s->reaper || !s->accept_retry || !s->drain_timer || !s->final_timer)
        return error_nomem(err, "the server's event loop");
    calla_status rc = mailbox_open(s->base, on_idle, s, &s->mailbox, err);
    if (!rc) rc = responses_store_open(s->limits.history_bytes, &s->responses, err);
    if (!rc) rc = compiled_forms_open(&s->forms, err);
    return rc ? rc : worker_open(s->base, &s->worker, err);
}

calla_status server_set_engine(server *s, calla_engine *engine, calla_error *err) {
    static const char close[] = "\n</think>\n\n";
    const calla_text *text = calla_engine_text(engine);
    if (!text) return error_set(err, CALLA_E_ARGUMENT, "the engine was opened without its text side: a server needs the tokenizer");
    s->engine = engine;
    s->text = text;
    calla_engine_get_info(engine, &s->info);
    s->think_end_id = tokenizer_find_added(text->tokenizer, "</think>");
    s->call_id = tokenizer_find_added(text->tokenizer, "<tool_call>");
    const calla_status rc = calla_text_encode(text, close, sizeof close - 1, &s->think_close, err);
    if (!rc) atomic_store(&s->ready, true);
    return rc;
}

void server_set_progress(server *s, uint64_t done, uint64_t total) {
    atomic_store(&s->loaded_permille, total ? (unsigned)((double)done / (double)total * 1000) : 0);
}

calla_status server_open(const server_options *options, server **out, calla_error *err) {
    *out = NULL;
    const char *host = options->host ? options->host : SERVER_DEFAULT_HOST;
    server *s = mem_calloc(1, sizeof *s);
    if (!s) return error_nomem(err, "the server");
    pthread_once(&threads_once, use_threads);
    s->limits = options->limits;
    fill_defaults(&s->limits);
    s->drain_ms = options->drain_ms ? options->drain_ms : 10000;
    s->no_signals = options->no_signals;
    s->log_prompts = options->log_prompts;
    s->started = (int64_t)time(NULL);
    calla_status rc = strlen(host) < sizeof s->host ? CALLA_OK : error_set(err, CALLA_E_ARGUMENT, "--host is longer than a name can be");
    if (!rc) memcpy(s->host, host, strlen(host) + 1);
    if (!rc && options->engine) rc = server_set_engine(s, options->engine, err);
    if (!rc) rc = guard_open(options, s->host, &s->guard, err);
    if (!rc) rc = open_events(s, err);
    evutil_socket_t fd = -1;
    bool loopback = true;
    if (!rc) rc = server_listen(s, host, options->port, &fd, &loopback, err);
    if (!rc) rc = guard_check_listening(s->guard, loopback, s->url, err);
    if (rc && fd >= 0) evutil_closesocket(fd);
    if (!rc) {
        s->listener = evconnlistener_new(s->base, on_accept, s, LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC, 0, fd);
        if (!s->listener) {
            evutil_closesocket(fd);
            rc = error_nomem(err, "the server's listener");
        } else
            evconnlistener_set_error_cb(s->listener, on_accept_error);
    }
    if (rc) {
        server_close(s);
        return rc;
    }
    *out = s;
    return CALLA_OK;
}

calla_status server_run(server *s, calla_error *err) {
    struct sigaction ignore = {.sa_handler = SIG_IGN}, before;
    sigaction(SIGPIPE, &ignore, &before); /* a client that left is an error of write, not the end of the process */
    if (!s->no_signals) {
        s->sigterm = evsignal_new(s->base, SIGTERM, on_stop, s);
        s->sigint = evsignal_new(s->base, SIGINT, on_stop, s);
        if (!s->sigterm || !s->sigint || event_add(s->sigterm, NULL) || event_add(s->sigint, NULL))
            return error_nomem(err, "the server's signal handlers");
    }
    const int rc = event_base_loop(s->base, EVLOOP_NO_EXIT_ON_EMPTY);
    if (s->sigterm) event_del(s->sigterm);
    if (s->sigint) event_del(s->sigint);
    sigaction(SIGPIPE, &before, NULL);
    return rc < 0 ? error_set(err, CALLA_E_INTERNAL, "the server's event loop failed") : CALLA_OK;
}

void server_stop(server *s) { event_active(s->stop, EV_READ, 0); }

void server_close(server *s) {
    if (!s) return;
    s->draining = false; /* the loop has ended: nothing is left to be told so */
    if (s->listener) evconnlistener_free(s->listener);
    s->listener = NULL;
    while (s->connections) connection_abort(s->connections, ABORT_STOPPING);
    completion_abandon_all(s);
    worker_close(s->worker);
    completion_free_all(s);
    responses_store_close(s->responses);
    compiled_forms_close(s->forms);
    mailbox_close(s->mailbox);
    if (s->reaper) connection_reap(s);
    struct event *events[] = {s->stop, s->reaper, s->accept_retry, s->drain_timer, s->final_timer, s->sigterm, s->sigint};
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        if (events[i]) event_free(events[i]);
    if (s->base) event_base_free(s->base);
    guard_close(s->guard);
    calla_ids_free(&s->think_close);
    mem_free(s);
}

uint16_t server_port(const server *s) { return s->port; }
const char *server_url(const server *s) { return s->url; }

void server_describe(const server *s, buffer *out) {
    const calla_engine_info *i = &s->info;
    buffer_printf(out, "calla %s serves %s on %s\n", calla_version(), i->model_name, s->url);
    buffer_printf(out, "  device   %s%s%s%s, %u sequences at a time\n", i->device, i->device_detail[0] ? " (" : "", i->device_detail,
                  i->device_detail[0] ? ")" : "", i->max_sequences);
    buffer_printf(out, "  window   %u tokens (the model was made for %u)\n", i->context_tokens, i->model_context);
    buffer_printf(out, "  memory   %.1f MB of weights, mapped; %.1f MB for activations, KV cache and states\n",
                  (double)i->weights_bytes / 1e6, (double)i->plan_bytes / 1e6);
    buffer_printf(out,
                  "  try      curl -N %s/v1/chat/completions%s -H 'Content-Type: application/json' -d '{\"messages\":[{\"role\":\"user\","
                  "\"content\":\"What is the capital of France?\"}],\"temperature\":0,\"stream\":true}'\n",
                  s->url, guard_wants_key(s->guard) ? " -H 'x-api-key: KEY'" : "");
}
