/* body.h: what the fuzz targets of the dialects' bodies share: the text of the pocket model, an engine that is not there, and what must hold
 * of any conversation or error. */
#ifndef CALLA_TESTS_FUZZ_BODY_H
#define CALLA_TESTS_FUZZ_BODY_H

#include "server/completion.h"

/* conversation_init over an engine with a small window; c is zeroed. */
void body_init(conversation *c);
/* After a dialect has read a body into c: checks the conversation, renders it and checks the prompt; or checks the error.  Frees c. */
void body_check(conversation *c, bool good, api_error *e, void (*write_error)(const api_error *e, buffer *out));
/* The same by way of the dialect's own `prepare`, on a server without sockets that remembers a response resp_1; a reply that is written
 * without the engine must be JSON. */
void body_prepare(const completion_dialect *dialect, const uint8_t *data, size_t n);

#endif
