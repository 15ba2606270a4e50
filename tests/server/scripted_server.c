/* scripted_server.c: the server on the scripted engine, as a program, for clients in other languages.
 *
 * usage: scripted_server MODEL_DIR [WINDOW_TOKENS [SCRIPT]]
 * Prints its URL on one line once it listens; ends with SIGTERM, or when its standard input does (so that it never outlives its test). */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "fake_engine.h"
#include "server/server.h"

static void *watch_input(void *user) {
    char byte;
    while (read(0, &byte, 1) > 0) {
    }
    server_stop(user);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc < 2 || argc > 4) return fprintf(stderr, "usage: %s MODEL_DIR [WINDOW_TOKENS [SCRIPT]]\n", argv[0]), 2;
    calla_error err;
    calla_text *text = NULL;
    server *s = NULL;
    pthread_t watcher;
    if (calla_text_open(argv[1], &text, &err)) return fprintf(stderr, "%s\n", err.message), 1;
    const fake_options fake = {
        .text = text, .context_tokens = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 0, .script = argc > 3 ? argv[3] : NULL};
    calla_engine *engine = fake_engine_open(&fake);
    const server_options options = {.engine = engine, .drain_ms = 100};
    if (server_open(&options, &s, &err)) return fprintf(stderr, "%s\n", err.message), 1;
    printf("%s\n", server_url(s));
    fflush(stdout);
    if (pthread_create(&watcher, NULL, watch_input, s)) return 1;
    const calla_status rc = server_run(s, &err);
    if (rc) fprintf(stderr, "%s\n", err.message);
    pthread_cancel(watcher); /* it must not stop what is being closed */
    pthread_join(watcher, NULL);
    server_close(s);
    calla_engine_close(engine);
    calla_text_close(text);
    return rc != CALLA_OK;
}
