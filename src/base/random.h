/* random.h: random numbers as a hash, so that a step's number does not depend on what other steps drew. */
#ifndef CALLA_BASE_RANDOM_H
#define CALLA_BASE_RANDOM_H

#include <stdint.h>

/* SplitMix64's finalizer (Steele, Lea, Flood 2014): a bijection of 64 bits with full avalanche. */
static inline uint64_t random_mix(uint64_t x) {
    x ^= x >> 30;
    x *= 0xBF58476D1CE4E5B9u;
    x ^= x >> 27;
    x *= 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

/* Uniform in [0, 1), a multiple of 2^-24: exact in float32 on every backend. */
static inline float random_uniform(uint64_t seed, uint32_t choice, uint32_t position) {
    uint64_t h = random_mix(seed + 0x9E3779B97F4A7C15u);
    h = random_mix(h ^ (((uint64_t)choice << 32 | position) + 0x9E3779B97F4A7C15u));
    return (float)(h >> 40) * 0x1p-24f;
}

#endif
