/* source.h: the kernels, made into arrays by embed.py when calla is built. */
#ifndef CALLA_BACKEND_METAL_SOURCE_H
#define CALLA_BACKEND_METAL_SOURCE_H

#include <stdint.h>

extern const char metal_source[];        /* the text of them all but tensor.metal, NUL-terminated */
extern const char metal_tensor_source[]; /* of that one, of language version 4 */

/* metal_source compiled, where Apple's compiler was there; bytes 0: it was not. */
extern const uint8_t metal_library[];
extern const uint64_t metal_library_bytes;

#endif
