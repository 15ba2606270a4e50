/* server.h: the HTTP server.  One thread (the caller of server_run) owns all sockets; the engine answers from its own.
 *
 * The server sees include/calla.h, text/ and base/ only; the engine is handed in and stays the caller's.  Everything a client can
 * send is bounded by server_limits. */
#ifndef CALLA_SERVER_SERVER_H
#define CALLA_SERVER_SERVER_H

#include "base/buffer.h"
#include "base/error.h"

#define SERVER_DEFAULT_HOST "127.0.0.1"
#define SERVER_DEFAULT_PORT 8080

typedef struct server server;

typedef struct server_limits { /* zero means the default in brackets */
    size_t url_bytes;          /* of the request target [8 KiB] */
    size_t header_bytes;       /* request line and headers as sent [64 KiB] */
    size_t headers;            /* their number [100] */
    size_t body_bytes;         /* of one body [64 MiB] */
    size_t upload_bytes;       /* of all bodies held at the same time [256 MiB] */
    size_t output_bytes;       /* unsent bytes of one connection at which its answer waits in tokens, not in text [256 KiB] */
    size_t history_bytes;      /* of responses remembered for previous_response_id [64 MiB] */
    uint32_t connections;      /* open at the same time; more are not accepted until one closes [1024] */
    uint32_t requests;         /* chats at work or queued; more get 429 [256] */
    uint32_t header_ms;        /* from the first byte of a request to the end of its headers [10 s] */
    uint32_t body_ms;          /* from then to the end of its body, and 1 s more for each 64 KiB received [30 s] */
    uint32_t idle_ms;          /* between requests of one connection [120 s] */
    uint32_t write_ms;         /* a client that takes no byte for so long is dropped [120 s] */
} server_limits;

typedef struct server_options {
    calla_engine *engine;    /* open; must outlive the server; NULL: it follows with server_set_engine */
    const char *host;        /* name or address to listen on; NULL: SERVER_DEFAULT_HOST */
    uint16_t port;           /* 0: any free one, see server_port */
    uint32_t drain_ms;       /* after a stop signal, answers under way may take this long, then they are cancelled; 0: 10 s */
    bool no_signals;         /* leave SIGTERM and SIGINT alone (tests, embedding): use server_stop */
    const char *key_file;    /* API keys, see keys.h; NULL: none are asked for */
    const char *allow_hosts; /* further names of this server, "a,b" or "*"; NULL: none */
    const char *cors;        /* origins of pages that may use it, "http://a,https://b:1" or "*"; NULL: none */
    bool log_prompts;        /* prompts are written to the log as they are rendered; otherwise no text of anybody is */
    bool insecure;           /* listen on more than this machine even without keys */
    server_limits limits;
} server_options;

/* Listens from here on; connections are answered once server_run is called.  A busy port is CALLA_E_IO with the remedy. */
calla_status server_open(const server_options *options, server **out, calla_error *err);
/* Serves until SIGTERM, SIGINT or server_stop: then accepts no more, lets answers finish for drain_ms, cancels the rest, returns.
 * A second signal cancels at once. */
calla_status server_run(server *s, calla_error *err);
/* Of a server that was opened without one: from here on requests are answered.  Until then /health says `loading`, and how far that is; all
 * others get 503.  At most once; any thread. */
calla_status server_set_engine(server *s, calla_engine *engine, calla_error *err);
void server_set_progress(server *s, uint64_t done, uint64_t total); /* any thread */
/* The same as SIGTERM.  Any thread. */
void server_stop(server *s);
void server_close(server *s);

uint16_t server_port(const server *s);
/* "http://127.0.0.1:8080" */
const char *server_url(const server *s);
/* What `calla serve` prints once there is an engine: URL, model, window, memory and a curl line to try. */
void server_describe(const server *s, buffer *out);

#endif
