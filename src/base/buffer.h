/* buffer.h: a growable array of bytes with a maximum.  Failure sticks: append as much as you like, check `failed` once. */
#ifndef CALLA_BASE_BUFFER_H
#define CALLA_BASE_BUFFER_H

#include <stdbool.h>
#include <stddef.h>

typedef struct buffer {
    char *data; /* [n], then a NUL if anything was ever appended; NULL when empty */
    size_t n, cap;
    size_t max;  /* largest n; 0 means 1 GiB */
    bool failed; /* an append found no memory or would have passed max; it and all later ones changed nothing */
} buffer;

void buffer_append(buffer *b, const void *bytes, size_t n);
void buffer_append_str(buffer *b, const char *s);
void buffer_append_char(buffer *b, char c);
__attribute__((format(printf, 2, 3))) void buffer_printf(buffer *b, const char *format, ...);
void buffer_clear(buffer *b); /* n = 0, keeps the memory, clears failed */
void buffer_free(buffer *b);
char *buffer_take(buffer *b); /* the data, now the caller's (mem_free), or NULL if failed; "" when empty */

#endif
