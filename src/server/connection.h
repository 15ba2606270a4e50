/* connection.h: one client's socket.  Reads requests one after the other, hands each to its route, and takes the next only when the
 * reply has ended; meanwhile the client may send at most 64 KiB more.
 *
 * The handler of a request owns the reply (reply.h) until it ends it or `gone` is called: the client left, or was too slow, or the server
 * stops.  After either it must not touch the connection again.  Loop thread only.
 *
 * Half-closed clients (shutdown(SHUT_WR) after the request, as `nc` does) are served.  A FIN alone does not tell them from clients that
 * hung up, so the connection then sends an interim byte or two (102 Processing before the reply, a comment within a stream): the kernel
 * of a client that is gone answers with RST, which is looked for every 50 ms.  HTTP/1.0 knows no interim replies: there FIN means gone. */
#ifndef CALLA_SERVER_CONNECTION_H
#define CALLA_SERVER_CONNECTION_H

#include <event2/bufferevent.h>

#include "server/server_impl.h"

typedef enum connection_state {
    CONNECTION_READING,  /* a request, or waiting for one */
    CONNECTION_REPLYING, /* a handler owns the reply */
    CONNECTION_FLUSHING, /* the last reply is being sent; then close */
    CONNECTION_LINGERING /* all is sent and our side shut: bytes are thrown away so that the client reads the reply and not a reset */
} connection_state;

struct connection {
    server *server;
    connection *next, *prev;
    struct bufferevent *bev;
    struct event *timer;
    connection_state state;
    bool dead;
    bool eof;                    /* the client sent FIN */
    bool pumping;                /* requests are being read: a reply that ends now must not read on by itself */
    uint64_t since_ns, probe_ns; /* when this state or phase began; when the last probe was sent */
    http_reader reader;
    api_error refusal;  /* found when the headers were in; told when the request has ended */
    const char *allow;  /* Allow header of a 405 */
    const char *origin; /* Access-Control-Allow-Origin of the reply, or NULL; literal or of the request */
    bool preflight;     /* a browser asks whether a page may send a request */
    bool knows_key;     /* the request has a key, or none is needed */
    struct {
        void (*gone)(void *user);    /* forget the connection; may be NULL */
        void (*proceed)(void *user); /* after reply_is_backed_up: room again; may be NULL */
        void *user;
        bool begun, streaming, chunked, keep_alive;
        int status;
        uint64_t begun_ns;
        char id[24];    /* of the request, as told in the reply and the log */
        char note[256]; /* what the handler has to say of it in the log; empty: nothing */
    } reply;
};

/* Takes the socket.  On failure it is closed. */
void connection_accept(server *s, evutil_socket_t fd);
/* Ends it now, without a word; `gone` is called if a reply was under way, and the cause is counted and logged.  Freed after the current
 * callbacks. */
void connection_abort(connection *c, abort_cause cause);
/* The reply has been handed over in full. */
void connection_reply_ended(connection *c);
/* The server is draining: idle connections end, others end after their reply. */
void connection_drain(connection *c);
void connection_reap(server *s);

#endif
