/* server_impl.h: the server as its own files see it.  Everything here belongs to the loop thread, except where a type says otherwise. */
#ifndef CALLA_SERVER_SERVER_IMPL_H
#define CALLA_SERVER_SERVER_IMPL_H

#include <event2/event.h>
#include <event2/listener.h>
#include <stdatomic.h>

#include "server/http.h"
#include "server/metrics.h"
#include "server/server.h"

typedef struct connection connection;
typedef struct mailbox mailbox;
typedef struct worker worker;
typedef struct guard guard;
typedef struct completion completion;
typedef struct responses_store responses_store;
typedef struct compiled_forms compiled_forms;

struct server {
    atomic_bool ready; /* the next six are valid once it is true, and never change after */
    calla_engine *engine;
    const calla_text *text;
    calla_engine_info info;
    int32_t think_end_id, call_id; /* </think> and <tool_call>, or -1 */
    calla_ids think_close;         /* what ends a thought, as the template has it */
    atomic_uint loaded_permille;   /* until then */

    int64_t started; /* seconds since 1970 */
    server_limits limits;
    uint32_t drain_ms;
    bool no_signals, log_prompts;
    char host[256]; /* as asked for */
    uint16_t port;
    char url[320];

    struct event_base *base;
    struct evconnlistener *listener;
    struct event *accept_retry; /* after accept failed for want of descriptors */
    struct event *stop;         /* made active by server_stop */
    struct event *sigterm, *sigint;
    struct event *drain_timer, *final_timer;
    bool draining, cancelling;

    connection *connections; /* doubly linked */
    uint32_t n_connections;
    connection *dead; /* to be freed by `reaper`, outside any callback */
    struct event *reaper;
    size_t upload_used;
    metrics metrics;

    guard *guard;
    mailbox *mailbox;
    worker *worker;
    completion *completions; /* at work or queued; doubly linked */
    uint32_t n_completions;
    responses_store *responses; /* for previous_response_id; any thread */
    compiled_forms *forms;      /* any thread */
};

/* listen.c: resolves host, binds and listens; fills in port, url and *fd.  *loopback: only this machine can connect. */
calla_status server_listen(server *s, const char *host, uint16_t port, evutil_socket_t *fd, bool *loopback, calla_error *err);

/* Ends the loop if nothing is left to wait for. */
void server_check_drained(server *s);
/* A connection is gone: accept again if that had been stopped. */
void server_connection_closed(server *s);

#endif
