/* keys.h: the API keys of this server, read from a file once, at the start: one a line; empty lines and those that begin with # are
 * skipped. */
#ifndef CALLA_SERVER_KEYS_H
#define CALLA_SERVER_KEYS_H

#include <stdbool.h>

#include "base/error.h"

typedef struct keys keys;

/* A file without a key, or with one that no header could carry or that is easily guessed, is refused. */
calla_status keys_open(const char *path, keys **out, calla_error *err);
/* May be NULL. */
void keys_close(keys *k);

/* Takes the same time whatever is wrong with the key, so that it cannot be guessed piece by piece. */
bool keys_match(const keys *k, const char *key);

#endif
