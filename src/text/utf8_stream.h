/* utf8_stream.h: bytes arriving in any pieces → valid UTF-8.  What is not UTF-8 becomes U+FFFD, grouped as Python's errors="replace" and
 * the Unicode standard do (one for each maximal beginning of a character), as soon as that is certain. */
#ifndef CALLA_TEXT_UTF8_STREAM_H
#define CALLA_TEXT_UTF8_STREAM_H

#include "base/buffer.h"

typedef struct utf8_stream { /* starts as {0} */
    char held[4];            /* [n]: the beginning of a character */
    unsigned n;
} utf8_stream;

void utf8_stream_push(utf8_stream *u, const char *bytes, size_t n, buffer *out);
void utf8_stream_finish(utf8_stream *u, buffer *out);

#endif
