/* mixer.h: the inner loops of the mixers and the functions on rows that need an exponential, written once over a vector of floats.
 *
 * Included by one file per instruction set (mixer_avx2.c, mixer_avx512.c, mixer_neon.c), which defines before:
 *   vec, LANES               the vector and how many floats it holds
 *   v_load, v_store          at any address; v_load_part, v_store_part: the first n < LANES, the rest reads as 0
 *   v_bf16, v_i8             LANES numbers of these types widened
 *   v_set, v_add, v_sub, v_mul, v_div, v_max, v_fma(a, b, c) = ab + c, v_fnma(a, b, c) = c - ab
 *   v_exp                    with a relative error under 2e-7
 *   v_sum; v_sums            the sum of the lanes of one vector; of LANES vectors, as one
 *   DELTA_VECS, CHUNK, CHUNK_VECS, SUMS (16 or 8, and a multiple of LANES), VALUE_VECS   tiles that fill the registers
 *   MIXER(name)              the name that a function has outside
 * What is a loop over a constant here is unrolled there. */
#include <stdint.h>
#include <string.h>

#include "backend/cpu/kernels.h"

enum { D = GDN_HEAD_DIM, V = HEAD_DIM };

#define INLINE static inline __attribute__((always_inline))

/* A cache line to the first, or to the second cache.  Not just inline: gcc takes a function that only prefetches for one without effect,
 * and leaves out its calls. */
INLINE void v_prefetch(const void *p) { __builtin_prefetch(p, 0, 3); }
INLINE void v_prefetch_far(const void *p) { __builtin_prefetch(p, 0, 2); }

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

/* ---- the delta rule ----
 *
 * Steps 1 … n of a chunk as one pass that reads the state S and one that writes it (docs/model.md, "Chunked form", for chunks of a few
 * rows, whose sums stay in registers).  With D_ts = α_{s+1} … α_t:
 *   u_t = β_t (v_t − D_t0 k_tᵀS − Σ_{s<t} D_ts (k_t·k_s) u_s)     o_t = D_t0 q_tᵀS + Σ_{s≤t} D_ts (q_t·k_s) u_s
 *   S ← D_n0 S + Σ_s k_s (D_ns u_s)ᵀ
 * n = 1 is the recurrent form; it takes 4 multiplications for each element of S and row, 4 rows together take 3.25. */
enum { BLOCK = 8 /* chunks in a row on the same columns of S, which stay in the first cache meanwhile */ };

typedef struct delta_chunk {
    float decay[CHUNK];     /* D_t0 */
    float left[CHUNK];      /* D_ns */
    float kk[CHUNK][CHUNK]; /* D_ts k_t·k_s, s < t */
    float qk[CHUNK][CHUNK]; /* D_ts q_t·k_s, s ≤ t */
} delta_chunk;

INLINE void delta_prepare(const float *q, const float *k, const float *alpha, uint32_t n, delta_chunk *c) {
    for (uint32_t t = 0; t < n; t++) {
        float d = 1;
        for (uint32_t s = t + 1; s-- > 0; d *= alpha[s]) {
            c->qk[t][s] = d * dot_head(q + (size_t)t * D, k + (size_t)s * D);
            if (s < t) c->kk[t][s] = d * dot_head(k + (size_t)t * D, k + (size_t)s * D);
            if (t + 1 == n) c->left[s] = d;
        }
        c->decay[t] = d;
    }
}

typedef struct delta_rows {
    const float *q, *k, *v, *alpha, *beta; /* q, k [rows][128] */
    float *out;
    size_t v_stride, out_stride;
} delta_rows;

INLINE delta_rows delta_after(delta_rows r, uint32_t n) {
    return (delta_rows){r.q + (size_t)n * D, r.k + (size_t)n * D,      r.v + n * r.v_stride, r.alpha + n,
                        r.beta + n,          r.out + n * r.out_stride, r.v_stride,           r.out_stride};
}

/* One chunk on `vecs` vectors of columns; from, to, v and out of r: at their first column. */
INLINE void delta_columns(const delta_chunk *c, const float *from, float *to, delta_rows r, uint32_t n, uint32_t vecs) {
    vec kv[CHUNK][DELTA_VECS], qv[CHUNK][DELTA_VECS];
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t j = 0; j < vecs; j++) kv[t][j] = qv[t][j] = v_set(0);
    for (uint32_t i = 0; i < D; i++) {
        vec s[DELTA_VECS];
        for (uint32_t j = 0; j < vecs; j++) s[j] = v_load(from + (size_t)i * D + j * LANES);
        for (uint32_t t = 0; t < n; t++) {
            const vec ki = v_set(r.k[(size_t)t * D + i]), qi = v_set(r.q[(size_t)t * D + i]);
            for (uint32_t j = 0; j < vecs; j++) {
                kv[t][j] = v_fma(ki, s[j], kv[t][j]);
                qv[t][j] = v_fma(qi, s[j], qv[t][j]);
            }
        }
    }
    for (uint32_t t = 0; t < n; t++) /* kv becomes u */
        for (uint32_t j = 0; j < vecs; j++) {
            vec u = v_fnma(v_set(c->decay[t]), kv[t][j], v_load(r.v + t * r.v_stride + j * LANES)), o = v_mul(v_set(c->decay[t]), qv[t][j]);
            for (uint32_t s = 0; s < t; s++) u = v_fnma(v_set(c->kk[t][s]), kv[s][j], u);
            kv[t][j] = v_mul(v_set(r.beta[t]), u);
            for (uint32_t s = 0; s <= t; s++) o = v_fma(v_set(c->qk[t][s]), kv[s][j], o);
            v_store(r.out + t * r.out_stride + j * LANES, o);
        }
    for (uint32_t t = 0; t + 1 < n; t++)
        for (uint32_t j = 0; j < vecs; j++) kv[t][j] = v_mul(v_set(c->left[t]), kv[t][j]);
    const vec decay = v_set(c->decay[n - 1]);
    for (uint32_t i = 0; i < D; i++) {
        vec s[DELTA_VECS];
        for (uint32_t j = 0; j < vecs; j++) s[j] = v_mul(decay, v_load(from + (size_t)i * D + j * LANES));
        for (uint32_t t = 0; t < n; t++) {
            const vec ki = v_set(r.k[(size_t)t * D + i]);
            for (uint32_t j = 0; j < vecs; j++) s[j] = v_fma(ki, kv[t][j], s[j]);
        }
        for (uint32_t j = 0; j < vecs; j++) v_store(to + (size_t)i * D + j * LANES, s[j]);
    }
}

/* All whole chunks of n rows; returns how many rows that were. */
INLINE uint32_t delta_chunks(const float *src, float *dst, delta_rows r, uint32_t rows, uint32_t n, uint32_t vecs) {
    delta_chunk chunk[BLOCK];
    uint32_t done = 0;
    for (uint32_t block; (block = (rows - done) / n) > 0; done += block * n, r = delta_after(r, block * n), src = dst) {
        if (block > BLOCK) block = BLOCK;
        for (uint32_t b = 0; b < block; b++) {
            const delta_rows of = delta_after(r, b * n);
            delta_prepare(of.q, of.k, of.alpha, n, &chunk[b]);
        }
        for (uint32_t c = 0; c < D; c += vecs * LANES) {
            delta_rows of = r;
            of.v += c, of.out += c;
            for (uint32_t b = 0; b < block; b++, of = delta_after(of, n))
                delta_columns(&chunk[b], (b ? dst : src) + c, dst + c, of, n, vecs);
        }
    }
    return done;
}

static void delta(const float *src, float *dst, const float *q, const float *k, const float *v, size_t v_stride, const float *alpha,
                  const float *beta, float *out, size_t out_stride, uint32_t rows, bool recurrent) {
    delta_rows r = {q, k, v, alpha, beta, out, v_stride, out_stride};
    const uint32_t done = recurrent ? 0 : delta_chunks(src, dst, r, rows, CHUNK, CHUNK_VECS);
    if (done < rows) delta_chunks(done ? dst : src, dst, delta_after(r, done), rows - done, 1, DELTA_VECS);
}

static float largest(const float *p, uint32_t n) {
    vec most = v_set(-__builtin_inff());
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES) most = v_max(most, v_load(p + i));
    float t[LANES], max;
    v_store(t, most);
    max = t[0];
    for (uint32_t j = 1; j < LANES; j++) max = t[j] > max ? t[j] : max;
    for (; i < n; i++) max = p[i] > max ? p[i] : max;
    return max;
}

/* ---- attention.  What follows is written for any type of cache and number of heads, both constants where it is called. ---- */

INLINE size_t kv_bytes(calla_kv kv) { return V * (kv == CALLA_KV_F32 ? 4 : kv == CALLA_KV_BF16 ? 2 : 1); } /* of a row, without scales */

/* LANES values from i on of row t of a block; scale: of these, if it has any */
INLINE vec v_kv(const uint8_t *block, calla_kv kv, uint32_t t, uint32_t i, float scale) {
    const uint8_t *row = block + t * kv_bytes(kv);
    if (kv == CALLA_KV_F32) return v_load((const float *)(const void *)row + i);
    if (kv == CALLA_KV_BF16) return v_bf16((const uint16_t *)(const void *)row + i);
    return v_mul(v_i8((const int8_t *)row + i), v_set(scale));
}

INLINE float scale_of(const uint8_t *block, calla_kv kv, uint32_t t, uint32_t i) {
    if (kv != CALLA_KV_Q8) return 0;
    float scale;
    memcpy(&scale, block + KV_PAGE_TOKENS * V + (t * (V / KV_GROUP) + i / KV_GROUP) * sizeof scale, sizeof scale);
    return scale;
}

/* A tile of `heads` by SUMS / heads keys, one sum in a register for each pair: a load of q serves all keys, one of k all heads.  Keys
 * past the last are the last once more, so that a score does not depend on how many there are. */
INLINE void scores_tile(const float *q, size_t q_stride, uint32_t heads, const uint8_t *k, calla_kv kv, uint32_t t, uint32_t n, float *out,
                        size_t out_stride, const uint8_t *ahead) {
    const uint32_t keys = SUMS / heads, bytes = keys * (uint32_t)kv_bytes(kv);
    vec s[SUMS];
    uint32_t at[SUMS];
    for (uint32_t l = 0; l < keys; l++) at[l] = t + l < n ? t + l : n - 1;
    for (uint32_t j = 0; j < SUMS; j++) s[j] = v_set(0);
    for (uint32_t g = 0; g < V; g += KV_GROUP) {
        float scale[SUMS];
        for (uint32_t l = 0; l < keys; l++) scale[l] = scale_of(k, kv, at[l], g);
        for (uint32_t i = g; i < g + KV_GROUP; i += LANES) {
            vec x[SUMS];
            for (uint32_t l = 0; l < keys; l++) x[l] = v_kv(k, kv, at[l], i, scale[l]);
            for (uint32_t c = bytes / V * i; c < bytes / V * (i + LANES); c += 64) {
                v_prefetch(k + (t + 16) * kv_bytes(kv) + c);
                v_prefetch_far(ahead + t * kv_bytes(kv) + c);
            }
            for (uint32_t j = 0; j < heads; j++) {
                const vec qj = v_load(q + j * q_stride + i);
                for (uint32_t l = 0; l < keys; l++) s[j * keys + l] = v_fma(x[l], qj, s[j * keys + l]);
            }
        }
    }
    float sums[SUMS];
    for (uint32_t j = 0; j < SUMS; j += LANES) v_store(sums + j, v_sums(s + j));
    for (uint32_t l = 0; l < keys && t + l < n; l++)
        for (uint32_t j = 0; j < heads; j++) out[j * out_stride + t + l] = sums[j * keys + l];
}

/* `ahead` and the rows some tiles ahead are fetched from memory meanwhile: what the processor foresees by itself is half as fast. */
INLINE void scores(const float *q, size_t q_stride, uint32_t heads, const uint8_t *k, calla_kv kv, uint32_t n, float *out,
                   size_t out_stride, const uint8_t *ahead) {
    for (uint32_t t = 0; t < n; t += SUMS / heads) scores_tile(q, q_stride, heads, k, kv, t, n, out, out_stride, ahead ? ahead : k);
}

/* VALUE_VECS vectors of the 256 dimensions at a time */
INLINE void values(const float *p, size_t p_stride, uint32_t heads, const uint8_t *v, calla_kv kv, uint32_t n, float *out,
                   const uint8_t *ahead) {
    for (uint32_t i = 0; i < V; i += VALUE_VECS * LANES) {
        vec s[8][VALUE_VECS], x[VALUE_VECS];
        for (uint32_t j = 0; j < heads; j++)
            for (uint32_t l = 0; l < VALUE_VECS; l++) s[j][l] = v_load(out + (size_t)j * V + i + l * LANES);
        for (uint32_t t = 0; t < n; t++) {
            const float scale = scale_of(v, kv, t, i);
            if (ahead) v_prefetch_far(ahead + t * kv_bytes(kv) + i * kv_bytes(kv) / V);
            for (uint32_t l = 0; l < VALUE_VECS; l++) x[l] = v_kv(v, kv, t, i + l * LANES, scale);
            for (uint32_t j = 0; j < heads; j++) {
                const vec pj = v_set(p[j * p_stride + t]);
                for (uint32_t l = 0; l < VALUE_VECS; l++) s[j][l] = v_fma(pj, x[l], s[j][l]);
            }
        }
        for (uint32_t j = 0; j < heads; j++)
            for (uint32_t l = 0; l < VALUE_VECS; l++) v_store(out + (size_t)j * V + i + l * LANES, s[j][l]);
    }
}

INLINE void scores_of(const float *q, size_t q_stride, uint32_t heads, const uint8_t *k, calla_kv kv, uint32_t n, float *out,
                      size_t out_stride, const uint8_t *ahead) {
    for (; heads >= 8; heads -= 8, q += 8 * q_stride, out += 8 * out_stride) scores(q, q_stride, 8, k, kv, n, out, out_stride, ahead);
    for (; heads >= 4; heads -= 4, q += 4 * q_stride, out += 4 * out_stride) scores(q, q_stride, 4, k, kv, n, out, out_stride, ahead);
    for (; heads; heads--, q += q_stride, out += out_stride) scores(q, q_stride, 1, k, kv, n, out, out_stride, ahead);
}

INLINE void values_of(const float *p, size_t p_stride, uint32_t heads, const uint8_t *v, calla_kv kv, uint32_t n, float *out,
                      const uint8_t *ahead) {
    for (; heads >= 8; heads -= 8, p += 8 * p_stride, out += 8 * V) values(p, p_stride, 8, v, kv, n, out, ahead);
    for (; heads >= 4; heads -= 4, p += 4 * p_stride, out += 4 * V) values(p, p_stride, 4, v, kv, n, out, ahead);
    for (; heads; heads--, p += p_stride, out += V) values(p, p_stride, 1, v, kv, n, out, ahead);
}

static void attend_scores(const float *q, size_t q_stride, uint32_t heads, const uint8_t *k, calla_kv kv, uint32_t n, float *out,
                          size_t out_stride, const uint8_t *ahead) {
    if (kv == CALLA_KV_F32)
        scores_of(q, q_stride, heads, k, CALLA_KV_F32, n, out, out_stride, ahead);
    else if (kv == CALLA_KV_BF16)
        scores_of(q, q_stride, heads, k, CALLA_KV_BF16, n, out, out_stride, ahead);
    else
        scores_of(q, q_stride, heads, k, CALLA_KV_Q8, n, out, out_stride, ahead);
}

static void attend_values(const float *p, size_t p_stride, uint32_t heads, const uint8_t *v, calla_kv kv, uint32_t n, float *out,
                          const uint8_t *ahead) {
    if (kv == CALLA_KV_F32)
        values_of(p, p_stride, heads, v, CALLA_KV_F32, n, out, ahead);
    else if (kv == CALLA_KV_BF16)
        values_of(p, p_stride, heads, v, CALLA_KV_BF16, n, out, ahead);
    else
        values_of(p, p_stride, heads, v, CALLA_KV_Q8, n, out, ahead);
}

const cpu_mixers MIXER(mixer) = {delta, attend_scores, attend_values, largest, exp_sum};
