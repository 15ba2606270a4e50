/* utf8_stream.c: see utf8_stream.h. */
#include "text/utf8_stream.h"

#include "base/utf8.h"

static const char replacement[] = "\xEF\xBF\xBD";

void utf8_stream_push(utf8_stream *u, const char *bytes, size_t n, buffer *out) {
    size_t i = 0;
    while (i < n) {
        if (u->n == 0) {
            const size_t valid = utf8_valid(bytes + i, n - i);
            buffer_append(out, bytes + i, valid);
            i += valid;
            if (i == n) return;
        }
        u->held[u->n++] = bytes[i];
        uint32_t cp;
        const int length = utf8_decode(u->held, u->n, &cp);
        if (length < 0) { /* goes on */
            i++;
        } else if (length > 0) {
            buffer_append(out, u->held, u->n);
            u->n = 0;
            i++;
        } else { /* all but the last byte began a character; the last one may begin another, unless it stands alone */
            buffer_append_str(out, replacement);
            if (u->n == 1) i++;
            u->n = 0;
        }
    }
}

void utf8_stream_finish(utf8_stream *u, buffer *out) {
    if (u->n) buffer_append_str(out, replacement);
    u->n = 0;
}
