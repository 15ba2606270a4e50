/* utf8.h: UTF-8 decoding and validation (RFC 3629: no surrogates, no overlong forms, at most U+10FFFF). */
#ifndef CALLA_BASE_UTF8_H
#define CALLA_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Decodes one character of s [n], n > 0.  Its length (1 … 4) and *cp; 0 if the bytes are not valid UTF-8; -1 if they are the valid
 * beginning of a longer character that n cuts off. */
int utf8_decode(const char *s, size_t n, uint32_t *cp);
/* Writes cp as 1 … 4 bytes and returns how many. */
int utf8_encode(uint32_t cp, char out[4]);
/* Offset of the first invalid byte, or n if all of s is valid. */
size_t utf8_valid(const char *s, size_t n);

#endif
