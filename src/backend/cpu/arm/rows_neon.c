/* rows_neon.c: what works on rows of activations, the delta rule and attention, with the NEON that every 64-bit Arm has. */
#include <string.h>

#include "backend/cpu/arm/neon.h"

enum { D = GDN_HEAD_DIM, V = HEAD_DIM };

float neon_dot(const float *a, const float *b, uint32_t n) {
    float32x4_t s[4];
    for (uint32_t j = 0; j < 4; j++) s[j] = vdupq_n_f32(0);
    uint32_t k = 0;
    for (; k + 16 <= n; k += 16)
        for (uint32_t j = 0; j < 4; j++) s[j] = vfmaq_f32(s[j], vld1q_f32(a + k + 4 * j), vld1q_f32(b + k + 4 * j));
    for (; k + 4 <= n; k += 4) s[0] = vfmaq_f32(s[0], vld1q_f32(a + k), vld1q_f32(b + k));
    float sum = vaddvq_f32(vaddq_f32(vaddq_f32(s[0], s[1]), vaddq_f32(s[2], s[3])));
    for (; k < n; k++) sum += a[k] * b[k];
    return sum;
}

/* exp(x) for any x: 2^n · p(r), r = x − n ln 2, |r| ≤ 0.35; Taylor to degree 6 (relative error under 2e-7); infinite above 88.3,
 * 1e-38 below −87.3. */
static inline float32x4_t exp4(float32x4_t x) {
    const uint32x4_t over = vcgtq_f32(x, vdupq_n_f32(88.3f));
    x = vminq_f32(vmaxq_f32(x, vdupq_n_f32(-87.3f)), vdupq_n_f32(88.3f));
    const float32x4_t n = vrndnq_f32(vmulq_n_f32(x, 1.44269504f));
    float32x4_t r = vfmsq_n_f32(x, n, 0x1.62e4p-1f);
    r = vfmsq_n_f32(r, n, 0x1.7f7d1cp-20f);
    float32x4_t p = vdupq_n_f32(1.0f / 720);
    p = vfmaq_f32(vdupq_n_f32(1.0f / 120), p, r);
    p = vfmaq_f32(vdupq_n_f32(1.0f / 24), p, r);
    p = vfmaq_f32(vdupq_n_f32(1.0f / 6), p, r);
    p = vfmaq_f32(vdupq_n_f32(0.5f), p, r);
    p = vfmaq_f32(vdupq_n_f32(1), p, r);
    p = vfmaq_f32(vdupq_n_f32(1), p, r);
    p = vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(p), vshlq_n_s32(vcvtq_s32_f32(n), 23)));
    return vbslq_f32(over, vdupq_n_f32(__builtin_inff()), p);
}

static inline float32x4_t sigmoid4(float32x4_t x) {
    const float32x4_t one = vdupq_n_f32(1);
    return vdivq_f32(one, vaddq_f32(one, exp4(vnegq_f32(x))));
}

/* The last n < 4 values of a row, and zeros */
static inline float32x4_t load_part(const float *p, uint32_t n) {
    float t[4] = {0};
    memcpy(t, p, n * sizeof *t);
    return vld1q_f32(t);
}

static inline void store_part(float *p, uint32_t n, float32x4_t v) {
    float t[4];
    vst1q_f32(t, v);
    memcpy(p, t, n * sizeof *t);
}

void neon_silu_mul(float *a, const float *b, uint32_t n) {
    uint32_t i = 0;
    for (; i + 4 <= n; i += 4) {
        const float32x4_t x = vld1q_f32(a + i), y = vmulq_f32(x, sigmoid4(x));
        vst1q_f32(a + i, b ? vmulq_f32(y, vld1q_f32(b + i)) : y);
    }
    if (i < n) {
        const float32x4_t x = load_part(a + i, n - i), y = vmulq_f32(x, sigmoid4(x));
        store_part(a + i, n - i, b ? vmulq_f32(y, load_part(b + i, n - i)) : y);
    }
}

void neon_sigmoid_mul(float *a, const float *b, uint32_t n) {
    uint32_t i = 0;
    for (; i + 4 <= n; i += 4) vst1q_f32(a + i, vmulq_f32(vld1q_f32(a + i), sigmoid4(vld1q_f32(b + i))));
    if (i < n) store_part(a + i, n - i, vmulq_f32(load_part(a + i, n - i), sigmoid4(load_part(b + i, n - i))));
}

float neon_exp_sum(float *p, uint32_t n, float max) {
    const float32x4_t m = vdupq_n_f32(max);
    float32x4_t total = vdupq_n_f32(0);
    uint32_t i = 0;
    for (; i + 4 <= n; i += 4) {
        const float32x4_t e = exp4(vsubq_f32(vld1q_f32(p + i), m));
        vst1q_f32(p + i, e);
        total = vaddq_f32(total, e);
    }
    float sum = vaddvq_f32(total), t[4];
    if (i < n) {
        vst1q_f32(t, exp4(vsubq_f32(load_part(p + i, n - i), m)));
        for (uint32_t j = 0; i < n; i++, j++) sum += p[i] = t[j];
    }
    return sum;
}

/* 32 columns of the state (16 KB) at a time, so that they stay in L1 through all rows and their 16 sums in registers.
 * o = qᵀS_new = α qᵀS + (q·k) u, so one pass reads for both products and one pass writes. */
void neon_delta(const float *src, float *dst, const float *q, const float *k, const float *v, size_t v_stride, const float *alpha,
                const float *beta, float *out, size_t out_stride, uint32_t rows) {
    enum { COLUMNS = 32, N = COLUMNS / 4 };
    for (uint32_t c = 0; c < D; c += COLUMNS) {
        const float *from = src + c;
        for (uint32_t t = 0; t < rows; t++, from = dst + c) {
            const float *qt = q + (size_t)t * D, *kt = k + (size_t)t * D;
            float32x4_t kv[N], qv[N];
            for (uint32_t j = 0; j < N; j++) kv[j] = qv[j] = vdupq_n_f32(0);
            for (uint32_t i = 0; i < D; i++)
                for (uint32_t j = 0; j < N; j++) {
                    const float32x4_t s = vld1q_f32(from + (size_t)i * D + 4 * j);
                    kv[j] = vfmaq_n_f32(kv[j], s, kt[i]);
                    qv[j] = vfmaq_n_f32(qv[j], s, qt[i]);
                }
            const float qk = neon_dot(qt, kt, D);
            for (uint32_t j = 0; j < N; j++) {
                kv[j] = vmulq_n_f32(vfmsq_n_f32(vld1q_f32(v + t * v_stride + c + 4 * j), kv[j], alpha[t]), beta[t]);
                vst1q_f32(out + t * out_stride + c + 4 * j, vfmaq_n_f32(vmulq_n_f32(qv[j], alpha[t]), kv[j], qk));
            }
            for (uint32_t i = 0; i < D; i++)
                for (uint32_t j = 0; j < N; j++) {
                    const float32x4_t s = vld1q_f32(from + (size_t)i * D + 4 * j);
                    vst1q_f32(dst + c + (size_t)i * D + 4 * j, vfmaq_n_f32(vmulq_n_f32(s, alpha[t]), kv[j], kt[i]));
                }
        }
    }
}

/* Eight values of a row of the cache */
static inline void kv8(const void *base, calla_kv kv, size_t t, uint32_t i, float32x4_t x[2]) {
    if (kv == CALLA_KV_F32) {
        const float *p = (const float *)base + t * V + i;
        x[0] = vld1q_f32(p);
        x[1] = vld1q_f32(p + 4);
    } else {
        const uint16x8_t v = neon_load_u16((const uint16_t *)base + t * V + i);
        x[0] = neon_bf16_low(v);
        x[1] = neon_bf16_high(v);
    }
}

/* Some keys from t on; `heads` ≤ 8 and `keys` ≤ 2 are constants where this is called, so that the sums stay in registers.  Two keys at a
 * time: each load of q serves two additions. */
static inline __attribute__((always_inline)) void scores(const float *q, size_t q_stride, uint32_t heads, const void *k, calla_kv kv,
                                                         uint32_t t, uint32_t keys, float *out, size_t out_stride) {
    float32x4_t s[8][2];
    for (uint32_t j = 0; j < heads; j++) s[j][0] = s[j][1] = vdupq_n_f32(0);
    for (uint32_t i = 0; i < V; i += 8) {
        float32x4_t x[2][2];
        for (uint32_t l = 0; l < keys; l++) kv8(k, kv, t + l, i, x[l]);
        for (uint32_t j = 0; j < heads; j++) {
            const float32x4_t q0 = vld1q_f32(q + j * q_stride + i), q1 = vld1q_f32(q + j * q_stride + i + 4);
            for (uint32_t l = 0; l < keys; l++) s[j][l] = vfmaq_f32(vfmaq_f32(s[j][l], q0, x[l][0]), q1, x[l][1]);
        }
    }
    for (uint32_t j = 0; j < heads; j++)
        for (uint32_t l = 0; l < keys; l++) out[j * out_stride + t + l] = vaddvq_f32(s[j][l]);
}

static inline __attribute__((always_inline)) void all_scores(const float *q, size_t q_stride, uint32_t heads, const void *k, calla_kv kv,
                                                             uint32_t n, float *out, size_t out_stride) {
    uint32_t t = 0;
    for (; t + 2 <= n; t += 2) scores(q, q_stride, heads, k, kv, t, 2, out, out_stride);
    if (t < n) scores(q, q_stride, heads, k, kv, t, 1, out, out_stride);
}

/* Eight of the 256 dimensions at a time: 16 sums for eight heads */
static inline __attribute__((always_inline)) void values(const float *p, size_t p_stride, uint32_t heads, const void *v, calla_kv kv,
                                                         uint32_t n, float *out) {
    for (uint32_t i = 0; i < V; i += 8) {
        float32x4_t s[8][2], x[2];
        for (uint32_t j = 0; j < heads; j++)
            for (uint32_t l = 0; l < 2; l++) s[j][l] = vld1q_f32(out + (size_t)j * V + i + 4 * l);
        for (uint32_t t = 0; t < n; t++) {
            kv8(v, kv, t, i, x);
            for (uint32_t j = 0; j < heads; j++)
                for (uint32_t l = 0; l < 2; l++) s[j][l] = vfmaq_n_f32(s[j][l], x[l], p[j * p_stride + t]);
        }
        for (uint32_t j = 0; j < heads; j++)
            for (uint32_t l = 0; l < 2; l++) vst1q_f32(out + (size_t)j * V + i + 4 * l, s[j][l]);
    }
}

void neon_attend_scores(const float *q, size_t q_stride, uint32_t heads, const void *k, calla_kv kv, uint32_t n, float *out,
                        size_t out_stride) {
    for (; heads >= 8; heads -= 8, q += 8 * q_stride, out += 8 * out_stride) all_scores(q, q_stride, 8, k, kv, n, out, out_stride);
    for (; heads >= 4; heads -= 4, q += 4 * q_stride, out += 4 * out_stride) all_scores(q, q_stride, 4, k, kv, n, out, out_stride);
    for (; heads; heads--, q += q_stride, out += out_stride) all_scores(q, q_stride, 1, k, kv, n, out, out_stride);
}

void neon_attend_values(const float *p, size_t p_stride, uint32_t heads, const void *v, calla_kv kv, uint32_t n, float *out) {
    for (; heads >= 8; heads -= 8, p += 8 * p_stride, out += 8 * V) values(p, p_stride, 8, v, kv, n, out);
    for (; heads >= 4; heads -= 4, p += 4 * p_stride, out += 4 * V) values(p, p_stride, 4, v, kv, n, out);
    for (; heads; heads--, p += p_stride, out += V) values(p, p_stride, 1, v, kv, n, out);
}
