/* stop.h: finds stop strings in a stream of text, holding back no more than what may be the beginning of one. */
#ifndef CALLA_TEXT_STOP_H
#define CALLA_TEXT_STOP_H

#include "base/buffer.h"
#include "base/error.h"

typedef struct stop_string {
    char *s; /* [n], owned */
    size_t n;
    size_t *back; /* [n] Knuth, Morris, Pratt: back[i] is the length of the longest proper prefix of s that ends s[0 … i] */
    size_t matched;
} stop_string;

typedef struct stop_matcher { /* starts as {0}: no stop strings */
    stop_string *strings;     /* [n] */
    size_t n;
    buffer held;  /* the longest end of the text so far that begins a stop string */
    bool stopped; /* one was complete: nothing more comes out */
    size_t which; /* with stopped: its place in strings */
} stop_matcher;

/* strings [n]: NUL-terminated, none of them empty, valid UTF-8. */
calla_status stop_open(stop_matcher *m, const char *const *strings, size_t n, calla_error *err);
void stop_close(stop_matcher *m);

/* Text [n] → what of it is certainly not part of a stop string, appended to out.  At the first byte that completes a stop string the
 * text ends before it (of several, the longest). */
void stop_push(stop_matcher *m, const char *text, size_t n, buffer *out);
/* What was held, appended to out: no stop string goes on from here. */
void stop_flush(stop_matcher *m, buffer *out);

#endif
