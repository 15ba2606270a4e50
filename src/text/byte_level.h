/* byte_level.h: the alphabet in which tokenizer.json writes token bytes: each byte as one printable character. */
#ifndef CALLA_TEXT_BYTE_LEVEL_H
#define CALLA_TEXT_BYTE_LEVEL_H

#include "base/buffer.h"

enum { BYTE_LEVEL_CODES = 0x144 }; /* the alphabet's characters lie below */

typedef struct byte_level {
    short byte_of[BYTE_LEVEL_CODES]; /* -1: not in the alphabet */
} byte_level;

void byte_level_init(byte_level *b);
/* Appends the bytes that s [n], valid UTF-8, stands for.  false: some character is not in the alphabet, or out->failed; what was
 * appended is then to be thrown away. */
bool byte_level_decode(const byte_level *b, const char *s, size_t n, buffer *out);

#endif
