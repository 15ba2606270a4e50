/* entropy.h: random bytes from the system, for seeds and ids. */
#ifndef CALLA_SERVER_ENTROPY_H
#define CALLA_SERVER_ENTROPY_H

#include <stddef.h>
#include <stdint.h>

uint64_t entropy_u64(void);
/* prefix and n lower-case hexadecimal digits (n at most 32) into out [strlen(prefix) + n + 1]. */
void entropy_id(const char *prefix, size_t n, char *out);

#endif
