/* float.h: bf16 ↔ f32, and reading numbers at any alignment.  Host code never uses _Float16 or __bf16. */
#ifndef CALLA_BASE_FLOAT_H
#define CALLA_BASE_FLOAT_H

#include <stdint.h>
#include <string.h>

static inline float float_from_bf16(uint16_t h) {
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* Rounds to nearest, ties to even; NaN stays NaN. */
static inline uint16_t float_to_bf16(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((u & 0x7FFFFFFFu) > 0x7F800000u) return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7FFF + (u >> 16 & 1)) >> 16);
}

/* Little-endian loads from any address (all supported machines are little-endian). */
static inline uint16_t load_u16(const void *p) {
    uint16_t v;
    memcpy(&v, p, 2);
    return v;
}
static inline uint32_t load_u32(const void *p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}
static inline float load_f32(const void *p) {
    float v;
    memcpy(&v, p, 4);
    return v;
}
static inline float load_bf16(const void *p) { return float_from_bf16(load_u16(p)); }

#endif
