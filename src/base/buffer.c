/* buffer.c: see buffer.h. */
#include "base/buffer.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"

void buffer_append(buffer *b, const void *bytes, size_t n) {
    size_t max = b->max ? b->max : (size_t)1 << 30;
    if (b->failed) return;
    if (n > max - b->n || mem_grow(&b->data, &b->cap, b->n + n + 1, 1, max + 1) < 0) {
        b->failed = true;
        return;
    }
    if (n) memcpy(b->data + b->n, bytes, n);
    b->n += n;
    b->data[b->n] = 0;
}

void buffer_append_str(buffer *b, const char *s) { buffer_append(b, s, strlen(s)); }

void buffer_append_char(buffer *b, char c) { buffer_append(b, &c, 1); }

void buffer_printf(buffer *b, const char *format, ...) {
    char small[256];
    va_list ap, again;
    va_start(ap, format);
    va_copy(again, ap);
    int n = vsnprintf(small, sizeof small, format, ap);
    va_end(ap);
    if (n < 0) {
        b->failed = true;
    } else if ((size_t)n < sizeof small) {
        buffer_append(b, small, (size_t)n);
    } else {
        char *big = mem_alloc((size_t)n + 1);
        if (big) {
            vsnprintf(big, (size_t)n + 1, format, again);
            buffer_append(b, big, (size_t)n);
            mem_free(big);
        } else {
            b->failed = true;
        }
    }
    va_end(again);
}

void buffer_clear(buffer *b) {
    b->n = 0;
    b->failed = false;
    if (b->data) b->data[0] = 0;
}

void buffer_free(buffer *b) {
    mem_free(b->data);
    size_t max = b->max;
    *b = (buffer){.max = max};
}

char *buffer_take(buffer *b) {
    if (!b->failed && !b->data) buffer_append(b, "", 0);
    if (b->failed) {
        buffer_free(b);
        b->failed = true;
        return NULL;
    }
    char *p = b->data;
    *b = (buffer){.max = b->max};
    return p;
}
