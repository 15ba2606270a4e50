/* remarks.h: what a reply says of its request in headers: which fields had no effect, what was understood otherwise than it was sent, and what
 * the answer was made with once every default was filled in. */
#ifndef CALLA_SERVER_REMARKS_H
#define CALLA_SERVER_REMARKS_H

#include "server/conversation.h"

enum { REMARKS_BYTES = 2048 };

/* Header lines in out [REMARKS_BYTES], or NULL if there is nothing to say.  answers: the request is one that a model answers. */
const char *remarks_write(const conversation *c, bool answers, char *out);

#endif
