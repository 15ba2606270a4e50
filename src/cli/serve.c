/* serve.c: calla serve: listens at once, opens the engine on a thread of its own (meanwhile /health says how far that is), serves until
 * told to stop. */
#include "server/server.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/log.h"
#include "cli/cli.h"
#include "cli/loading.h"

typedef struct loader {
    calla_engine_options options;
    server *server;
    calla_engine *engine;
    calla_error error;
    atomic_bool opened; /* or failed to */
} loader;

static void print_banner(const server *s) {
    buffer banner = {0};
    server_describe(s, &banner);
    calla_error unwritten = {0}; /* a server without a standard output is still a server */
    if (cli_write_output("-", &banner, &unwritten) != CALLA_OK) log_warn("%s", unwritten.message);
}

static void on_progress(void *user, uint64_t done, uint64_t total) { server_set_progress(((loader *)user)->server, done, total); }

static void *load(void *user) {
    loader *l = user;
    calla_status status = loading_open_engine(&l->options, &l->engine, &l->error);
    atomic_store(&l->opened, true); /* before the loop can end for what came of it */
    if (!status) status = server_set_engine(l->server, l->engine, &l->error);
    if (!status)
        print_banner(l->server);
    else
        server_stop(l->server);
    return NULL;
}

/* Signals are for the server's loop. */
static calla_status start_loading(loader *l, pthread_t *thread, calla_error *err) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int rc = pthread_create(thread, NULL, load, l);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc ? error_set(err, CALLA_E_NOMEM, "cannot start the thread that loads the model: too little memory, or too many threads")
              : CALLA_OK;
}

static calla_status serve(loader *l, calla_error *err) {
    pthread_t thread;
    calla_status status = start_loading(l, &thread, err);
    if (status) return status;
    status = server_run(l->server, err);
    /* Opening an engine cannot be broken off, and nobody waits for it any more. */
    if (!atomic_load(&l->opened)) _exit(status ? EXIT_RUNTIME : EXIT_OK);
    pthread_join(thread, NULL);
    if (!status && l->error.status) {
        *err = l->error;
        status = err->status;
    }
    return status;
}

int command_serve(const options *o) {
    calla_error err = {0};
    loader l = {0};
    const server_options so = {
        .host = o->value[OPTION_HOST].text,
        .port = (uint16_t)o->value[OPTION_PORT].integer,
        .drain_ms = (uint32_t)(o->value[OPTION_DRAIN].number * 1000.0 + 0.999),
        .key_file = o->value[OPTION_KEY_FILE].text,
        .allow_hosts = o->value[OPTION_ALLOW_HOST].text,
        .cors = o->value[OPTION_CORS].text,
        .log_prompts = o->value[OPTION_LOG_PROMPTS].given,
        .insecure = o->value[OPTION_INSECURE].given,
        .limits = {.requests = (uint32_t)o->value[OPTION_REQUESTS].integer},
    };
    calla_status status = cli_engine_options(o, &l.options, &err);
    l.options.progress = on_progress;
    l.options.progress_user = &l;
    if (status == CALLA_OK) status = server_open(&so, &l.server, &err);
    if (status == CALLA_OK) status = serve(&l, &err);
    if (l.server) server_close(l.server);
    if (l.engine) calla_engine_close(l.engine);
    return status == CALLA_OK ? EXIT_OK : cli_fail_error(&err);
}
