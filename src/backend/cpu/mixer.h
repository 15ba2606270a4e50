/* mixer.h: the inner loops of the mixers and the functions on rows that need an exponential, written once over a vector of floats.
 *
 * Included by one file per instruction set (mixer_avx2.c, mixer_avx512.c, mixer_neon.c), which defines before:
 *   vec, LANES               the vector and how many floats it holds
 *   v_load, v_store          at any address; v_load_part, v_store_part: the first n < LANES, the rest reads as 0
 *   v_bf16                   LANES bf16 widened
 *   v_set, v_add, v_sub, v_mul, v_div, v_fma(a, b, c) = ab + c, v_fnma(a, b, c) = c - ab, v_sum, v_exp (relative error under 2e-7)
 *   DELTA_VECS, SCORE_KEYS, VALUE_VECS   tiles that fill the registers, see where they are used
 *   MIXER(name)              the name that a function has outside
 * What is a loop over a constant here is unrolled there. */
#include <stdint.h>
#include <string.h>

#include "backend/cpu/kernels.h"

enum { D = GDN_HEAD_DIM, V = HEAD_DIM };

#define INLINE static inline __attribute__((always_inline))

INLINE vec v_sigmoid(vec x) { return v_div(v_set(1), v_add(v_set(1), v_exp(v_sub(v_set(0), x)))); }

void MIXER(silu_mul)(float *a, const float *b, uint32_t n) {
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        const vec x = v_load(a + i), y = v_mul(x, v_sigmoid(x));
        v_store(a + i, b ? v_mul(y, v_load(b + i)) : y);
    }
    if (i < n) {
        const vec x = v_load_part(a + i, n - i), y = v_mul(x, v_sigmoid(x));
        v_store_part(a + i, n - i, b ? v_mul(y, v_load_part(b + i, n - i)) : y);
    }
}

void MIXER(sigmoid_mul)(float *a, const float *b, uint32_t n) {
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES) v_store(a + i, v_mul(v_load(a + i), v_sigmoid(v_load(b + i))));
    if (i < n) v_store_part(a + i, n - i, v_mul(v_load_part(a + i, n - i), v_sigmoid(v_load_part(b + i, n - i))));
}

static float exp_sum(float *p, uint32_t n, float max) {
    const vec m = v_set(max);
    vec total = v_set(0);
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        const vec e = v_exp(v_sub(v_load(p + i), m));
        v_store(p + i, e);
        total = v_add(total, e);
    }
    float sum = v_sum(total), t[LANES];
    if (i < n) {
        v_store(t, v_exp(v_sub(v_load_part(p + i, n - i), m)));
        for (uint32_t j = 0; i < n; i++, j++) sum += p[i] = t[j];
    }
    return sum;
}

INLINE float dot_head(const float *a, const float *b) { /* of 128 */
    vec s[4];
    for (uint32_t j = 0; j < 4; j++) s[j] = v_set(0);
    for (uint32_t k = 0; k < D; k += 4 * LANES)
        for (uint32_t j = 0; j < 4; j++) s[j] = v_fma(v_load(a + k + j * LANES), v_load(b + k + j * LANES), s[j]);
    return v_sum(v_add(v_add(s[0], s[1]), v_add(s[2], s[3])));
}

/* DELTA_VECS vectors of columns of the state at a time (16 or 32 KB), so that they stay in L1 through all rows and their sums in
 * registers.  o = qᵀS_new = α qᵀS + (q·k) u, so one pass reads for both products and one pass writes. */
static void delta(const float *src, float *dst, const float *q, const float *k, const float *v, size_t v_stride, const float *alpha,
                  const float *beta, float *out, size_t out_stride, uint32_t rows) {
    for (uint32_t c = 0; c < D; c += DELTA_VECS * LANES) {
        const float *from = src + c;
        for (uint32_t t = 0; t < rows; t++, from = dst + c) {
            const float *qt = q + (size_t)t * D, *kt = k + (size_t)t * D;
            vec kv[DELTA_VECS], qv[DELTA_VECS];
            for (uint32_t j = 0; j < DELTA_VECS; j++) kv[j] = qv[j] = v_set(0);
            for (uint32_t i = 0; i < D; i++) {
                const vec ki = v_set(kt[i]), qi = v_set(qt[i]);
                for (uint32_t j = 0; j < DELTA_VECS; j++) {
                    const vec s = v_load(from + (size_t)i * D + j * LANES);
                    kv[j] = v_fma(ki, s, kv[j]);
                    qv[j] = v_fma(qi, s, qv[j]);
                }
            }
            const vec a = v_set(alpha[t]), b = v_set(beta[t]), qk = v_set(dot_head(qt, kt));
            for (uint32_t j = 0; j < DELTA_VECS; j++) {
                kv[j] = v_mul(b, v_fnma(a, kv[j], v_load(v + t * v_stride + c + j * LANES)));
                v_store(out + t * out_stride + c + j * LANES, v_fma(qk, kv[j], v_mul(a, qv[j])));
            }
            for (uint32_t i = 0; i < D; i++) {
                const vec ki = v_set(kt[i]);
                for (uint32_t j = 0; j < DELTA_VECS; j++)
                    v_store(dst + c + (size_t)i * D + j * LANES, v_fma(ki, kv[j], v_mul(a, v_load(from + (size_t)i * D + j * LANES))));
            }
        }
    }
}

/* LANES values from i on of row t of a cache */
INLINE vec v_kv(const void *base, calla_kv kv, size_t t, uint32_t i) {
    return kv == CALLA_KV_F32 ? v_load((const float *)base + t * V + i) : v_bf16((const uint16_t *)base + t * V + i);
}

/* `heads` ≤ 8 and `keys` ≤ SCORE_KEYS are constants where these are called, so that the sums stay in registers.  A load of q serves all
 * keys. */
INLINE void scores(const float *q, size_t q_stride, uint32_t heads, const void *k, calla_kv kv, uint32_t t, uint32_t keys, float *out,
                   size_t out_stride) {
    vec s[8][SCORE_KEYS];
    for (uint32_t j = 0; j < heads; j++)
        for (uint32_t l = 0; l < keys; l++) s[j][l] = v_set(0);
    for (uint32_t i = 0; i < V; i += LANES) {
        vec x[SCORE_KEYS];
        for (uint32_t l = 0; l < keys; l++) x[l] = v_kv(k, kv, t + l, i);
        for (uint32_t j = 0; j < heads; j++) {
            const vec qj = v_load(q + j * q_stride + i);
            for (uint32_t l = 0; l < keys; l++) s[j][l] = v_fma(x[l], qj, s[j][l]);
        }
    }
    for (uint32_t j = 0; j < heads; j++)
        for (uint32_t l = 0; l < keys; l++) out[j * out_stride + t + l] = v_sum(s[j][l]);
}

INLINE void all_scores(const float *q, size_t q_stride, uint32_t heads, const void *k, calla_kv kv, uint32_t n, float *out,
                       size_t out_stride) {
    uint32_t t = 0;
    for (; t + SCORE_KEYS <= n; t += SCORE_KEYS) scores(q, q_stride, heads, k, kv, t, SCORE_KEYS, out, out_stride);
    for (; t < n; t++) scores(q, q_stride, heads, k, kv, t, 1, out, out_stride);
}

/* VALUE_VECS vectors of the 256 dimensions at a time */
INLINE void values(const float *p, size_t p_stride, uint32_t heads, const void *v, calla_kv kv, uint32_t n, float *out) {
    for (uint32_t i = 0; i < V; i += VALUE_VECS * LANES) {
        vec s[8][VALUE_VECS], x[VALUE_VECS];
        for (uint32_t j = 0; j < heads; j++)
            for (uint32_t l = 0; l < VALUE_VECS; l++) s[j][l] = v_load(out + (size_t)j * V + i + l * LANES);
        for (uint32_t t = 0; t < n; t++) {
            for (uint32_t l = 0; l < VALUE_VECS; l++) x[l] = v_kv(v, kv, t, i + l * LANES);
            for (uint32_t j = 0; j < heads; j++) {
                const vec pj = v_set(p[j * p_stride + t]);
                for (uint32_t l = 0; l < VALUE_VECS; l++) s[j][l] = v_fma(pj, x[l], s[j][l]);
            }
        }
        for (uint32_t j = 0; j < heads; j++)
            for (uint32_t l = 0; l < VALUE_VECS; l++) v_store(out + (size_t)j * V + i + l * LANES, s[j][l]);
    }
}

static void attend_scores(const float *q, size_t q_stride, uint32_t heads, const void *k, calla_kv kv, uint32_t n, float *out,
                          size_t out_stride) {
    for (; heads >= 8; heads -= 8, q += 8 * q_stride, out += 8 * out_stride) all_scores(q, q_stride, 8, k, kv, n, out, out_stride);
    for (; heads >= 4; heads -= 4, q += 4 * q_stride, out += 4 * out_stride) all_scores(q, q_stride, 4, k, kv, n, out, out_stride);
    for (; heads; heads--, q += q_stride, out += out_stride) all_scores(q, q_stride, 1, k, kv, n, out, out_stride);
}

static void attend_values(const float *p, size_t p_stride, uint32_t heads, const void *v, calla_kv kv, uint32_t n, float *out) {
    for (; heads >= 8; heads -= 8, p += 8 * p_stride, out += 8 * V) values(p, p_stride, 8, v, kv, n, out);
    for (; heads >= 4; heads -= 4, p += 4 * p_stride, out += 4 * V) values(p, p_stride, 4, v, kv, n, out);
    for (; heads; heads--, p += p_stride, out += V) values(p, p_stride, 1, v, kv, n, out);
}

const cpu_mixers MIXER(mixer) = {delta, attend_scores, attend_values, exp_sum};
