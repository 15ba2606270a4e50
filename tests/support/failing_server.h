/* failing_server.h: a server on a device that fails while it answers. */
#ifndef CALLA_TESTS_FAILING_SERVER_H
#define CALLA_TESTS_FAILING_SERVER_H

#include <stdint.h>

typedef struct failing_server {
    const char *device;
    uint32_t max_tokens;       /* of the answer under way, which does not end by itself */
    void (*plant)(void *user); /* called before it is asked for: the device is to fail meanwhile */
    void *user;
    const char *why; /* what the client is told, among other things */
} failing_server;

/* On pocket.  The request ends with the reason, /health says it, nothing more is computed, and the server lives.  Ends the test on failure. */
void check_failing_server(const failing_server *f);

#endif
