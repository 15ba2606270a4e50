/* harness.h: a server on a scripted engine in a thread of its own, and raw clients for it. */
#ifndef CALLA_TESTS_SERVER_HARNESS_H
#define CALLA_TESTS_SERVER_HARNESS_H

#include <pthread.h>

#include "base/json.h"
#include "fake_engine.h"
#include "server/server.h"

typedef struct harness {
    calla_text *text;
    calla_engine *engine;
    server *server;
    pthread_t thread;
    uint16_t port;
    bool stopped;
} harness;

/* options->engine, port and no_signals are filled in; either may be NULL. */
void harness_open(harness *h, const server_options *options, const fake_options *fake);
/* The server that the tests of a file share: h, and its setup and teardown for cmocka_run_group_tests. */
#define HARNESS_OF_FILE(options, fake)                                                                                                     \
    static harness h;                                                                                                                      \
    static int setup(void **state) {                                                                                                       \
        (void)state;                                                                                                                       \
        harness_open(&h, options, fake);                                                                                                   \
        return 0;                                                                                                                          \
    }                                                                                                                                      \
    static int teardown(void **state) {                                                                                                    \
        (void)state;                                                                                                                       \
        harness_close(&h);                                                                                                                 \
        return 0;                                                                                                                          \
    }
/* Waits for server_run to return (after server_stop or a signal). */
void harness_join(harness *h);
/* Stops the server if need be and checks that every session was closed. */
void harness_close(harness *h);
/* Waits up to ms until the engine has so many cancelled jobs, or none at work; the time it took in ms, or -1. */
int harness_wait_cancelled(harness *h, uint32_t n, int ms);
int harness_wait_idle(harness *h, int ms);

typedef struct client {
    int fd;
    buffer in;   /* all bytes received that no reply has used */
    bool closed; /* the server closed, or reset */
    bool reset;
} client;

void client_open(client *c, uint16_t port);
/* With what is unread thrown away as a reset: as a killed program would. */
void client_reset(client *c);
void client_close(client *c);
void client_send(client *c, const void *bytes, size_t n);
void client_send_str(client *c, const char *s);
/* Receives for up to ms, until the server closes; false if it did not. */
bool client_wait_closed(client *c, int ms);
/* Receives until the text has come, for up to ms; the time it took in ms, or -1. */
int client_wait_for(client *c, const char *text, int ms);

typedef struct reply {
    int status;
    char *head;  /* status line and headers */
    buffer body; /* without chunk framing */
    bool whole;  /* its end came as the headers announced it */
} reply;

/* Takes the next reply off the connection, interim ones skipped; status 0 if none came whole or cut within ms. */
void client_read_reply(client *c, reply *out, int ms);
void reply_free(reply *r);
/* The value of a header into out [256]; "" if it is missing. */
const char *reply_header(const reply *r, const char *name, char *out);
json_object *reply_json_body(const reply *r); /* fails the test if it is not JSON */

/* A whole exchange on a connection of its own. */
void harness_get(harness *h, const char *path, reply *out);
void harness_post(harness *h, const char *json, reply *out); /* to /v1/chat/completions */
void harness_post_to(harness *h, const char *path, const char *json, reply *out);
/* The body of the reply, whose status must be this one.  out, if it is not NULL, is the reply as well. */
json_object *harness_ask(harness *h, const char *path, const char *json, int status, reply *out);
/* POST request with its body, the caller's. */
char *post_request(const char *json); /* to /v1/chat/completions */
char *post_request_to(const char *path, const char *json);
/* {"messages":[{"role":"user","content":say}] more} */
char *chat_json(const char *say, const char *more);

/* a.b.0.c of a JSON tree, or NULL. */
json_object *json_at(json_object *tree, const char *path);
const char *json_str(json_object *tree, const char *path); /* "" if it is no string */
int64_t json_int(json_object *tree, const char *path);     /* -1 if it is none */

/* What the events of a stream add up to. */
typedef struct stream_sum {
    buffer content, reasoning, calls; /* calls: "name(arguments);" each */
    size_t events, comments, logprobs, usages;
    bool first_is_role, done, done_is_last, error;
    char finish[32];
    json_object *usage; /* owned */
} stream_sum;
/* Only of the choice with this index. */
void stream_read(const reply *r, int64_t choice, stream_sum *out);
void stream_free(stream_sum *s);

#endif
