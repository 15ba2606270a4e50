/* sample.h: picking a token from one row of logits.  A pure function, the truth for every other backend's sampler.
 *
 * Knows only backend.h's request and result.  What has to agree between devices is written so that it can, bit for bit:
 *  - every step is a plain float32 operation, rounded once (no fused multiply-add), in the order of sample_request's comment;
 *  - the exponential is sample_exp below, not the C library's;
 *  - probabilities are never formed.  A candidate's weight, exp((logit - largest) / temperature), becomes an integer multiple of 2^-40,
 *    and all sums are sums of these integers: exact, so that no order of summation (sequential, tree, atomics) changes the token.
 * So the same logits, request and random number give the same token everywhere. */
#ifndef CALLA_BACKEND_REF_SAMPLE_H
#define CALLA_BACKEND_REF_SAMPLE_H

#include <string.h>

#include "backend/backend.h"

/* Bytes of scratch for rows of `rows` logits: 20 per row. */
uint64_t ref_sample_scratch_bytes(uint32_t rows);

/* logits [rows], rows >= r->tokens; scratch: ref_sample_scratch_bytes(rows), aligned to 8.
 *
 * A logit that is NaN, before or after penalties and bias, counts as -infinity and is never picked; +infinity counts as the largest
 * float.  Without any candidate out->id is -1.  Ids of seen, counts and bias outside 0 ... tokens - 1 have no effect.
 * out->top holds real tokens only (below r->tokens), though the log-softmax is over all rows. */
void ref_sample(const float *logits, uint32_t rows, const sample_request *r, void *scratch, sample_result *out);

#define SAMPLE_WEIGHT_ONE (UINT64_C(1) << 40) /* weight of the largest logit: 2^18 rows of it sum to 2^58 */

/* exp(z) for z <= 0, within 1 ulp; exactly 1 at 0, and 0 below -28 (where a weight is less than 2^-40).
 * z = n ln 2 + r with |r| <= 0.35; exp(r) by its Taylor polynomial of degree 7 (the rest is below 2^-27); times 2^n. */
static inline float sample_exp(float z) {
    if (!(z >= -28.0f)) return 0.0f;
    const float round = 12582912.0f; /* 1.5 * 2^23: adding and subtracting it rounds to the nearest integer, ties to even */
    float scaled = z * 1.44269504f + round;
    float n = scaled - round;
    float r = z - n * 0x1.62e4p-1f; /* ln 2 in two parts; this product is exact */
    r = r - n * 0x1.7f7d1cp-20f;
    float e = 0x1.a01a02p-13f; /* 1/7! */
    e = e * r + 0x1.6c16c2p-10f;
    e = e * r + 0x1.111112p-7f;
    e = e * r + 0x1.555556p-5f;
    e = e * r + 0x1.555556p-3f;
    e = e * r + 0.5f;
    e = e * r + 1.0f;
    e = e * r + 1.0f;
    uint32_t bits;
    memcpy(&bits, &e, 4);
    bits += (uint32_t)(int32_t)n << 23; /* n is in -41 ... 0 and e near 1: never a denormal */
    memcpy(&e, &bits, 4);
    return e;
}

#endif
