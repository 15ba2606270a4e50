/* source.h: the text of all kernels, made into an array by embed.py when calla is built. */
#ifndef CALLA_BACKEND_METAL_SOURCE_H
#define CALLA_BACKEND_METAL_SOURCE_H

extern const char metal_source[]; /* NUL-terminated */

#endif
