/* mixer_neon.c: the loops of mixer.h with the NEON that every 64-bit Arm has: 32 registers of 4 floats. */
#include <string.h>

#include "backend/cpu/arm/neon.h"

typedef float32x4_t vec;
enum { LANES = 4, DELTA_VECS = 8, CHUNK = 4, CHUNK_VECS = 2, SUMS = 16, VALUE_VECS = 2 };
#define MIXER(name) neon_##name

static inline vec v_load(const float *p) { return vld1q_f32(p); }
static inline void v_store(float *p, vec v) { vst1q_f32(p, v); }
static inline vec v_bf16(const uint16_t *p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
static inline vec v_i8(const int8_t *p) {
    int32_t four;
    memcpy(&four, p, sizeof four);
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four))))));
}
static inline vec v_set(float x) { return vdupq_n_f32(x); }
static inline vec v_add(vec a, vec b) { return vaddq_f32(a, b); }
static inline vec v_sub(vec a, vec b) { return vsubq_f32(a, b); }
static inline vec v_mul(vec a, vec b) { return vmulq_f32(a, b); }
static inline vec v_div(vec a, vec b) { return vdivq_f32(a, b); }
static inline vec v_max(vec a, vec b) { return vmaxq_f32(a, b); }
static inline vec v_fma(vec a, vec b, vec c) { return vfmaq_f32(c, a, b); }
static inline vec v_fnma(vec a, vec b, vec c) { return vfmsq_f32(c, a, b); }
static inline float v_sum(vec v) { return vaddvq_f32(v); }

static inline vec v_sums(const vec s[LANES]) { return neon_sums(s); }

static inline vec v_load_part(const float *p, uint32_t n) {
    float t[LANES] = {0};
    memcpy(t, p, n * sizeof *t);
    return v_load(t);
}

static inline void v_store_part(float *p, uint32_t n, vec v) {
    float t[LANES];
    v_store(t, v);
    memcpy(p, t, n * sizeof *t);
}

/* exp(x) for any x: 2^n · p(r), r = x − n ln 2, |r| ≤ 0.35; Taylor to degree 6 (relative error under 2e-7); infinite above 88.3,
 * 1e-38 below −87.3. */
static inline vec v_exp(vec x) {
    const uint32x4_t over = vcgtq_f32(x, v_set(88.3f));
    x = vminq_f32(vmaxq_f32(x, v_set(-87.3f)), v_set(88.3f));
    const vec n = vrndnq_f32(v_mul(x, v_set(1.44269504f)));
    vec r = v_fnma(n, v_set(0x1.62e4p-1f), x);
    r = v_fnma(n, v_set(0x1.7f7d1cp-20f), r);
    vec p = v_set(1.0f / 720);
    p = v_fma(p, r, v_set(1.0f / 120));
    p = v_fma(p, r, v_set(1.0f / 24));
    p = v_fma(p, r, v_set(1.0f / 6));
    p = v_fma(p, r, v_set(0.5f));
    p = v_fma(p, r, v_set(1));
    p = v_fma(p, r, v_set(1));
    p = vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(p), vshlq_n_s32(vcvtq_s32_f32(n), 23)));
    return vbslq_f32(over, v_set(__builtin_inff()), p);
}

#include "backend/cpu/mixer.h"
