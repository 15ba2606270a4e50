/* mixer_avx2.c: the loops of mixer.h with AVX2 and FMA: 16 registers of 8 floats. */
#include <string.h>

#include "backend/cpu/x86/avx2.h"

typedef __m256 vec;
enum { LANES = 8, DELTA_VECS = 4, CHUNK = 2, CHUNK_VECS = 2, SUMS = 8, VALUE_VECS = 1 };
#define MIXER(name) avx2_##name

static inline vec v_load(const float *p) { return _mm256_loadu_ps(p); }
static inline void v_store(float *p, vec v) { _mm256_storeu_ps(p, v); }
static inline vec v_bf16(const uint16_t *p) { return avx2_bf16(p); }
static inline vec v_i8(const int8_t *p) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p))); }
static inline vec v_set(float x) { return _mm256_set1_ps(x); }
static inline vec v_add(vec a, vec b) { return _mm256_add_ps(a, b); }
static inline vec v_sub(vec a, vec b) { return _mm256_sub_ps(a, b); }
static inline vec v_mul(vec a, vec b) { return _mm256_mul_ps(a, b); }
static inline vec v_div(vec a, vec b) { return _mm256_div_ps(a, b); }
static inline vec v_max(vec a, vec b) { return _mm256_max_ps(a, b); }
static inline vec v_fma(vec a, vec b, vec c) { return _mm256_fmadd_ps(a, b, c); }
static inline vec v_fnma(vec a, vec b, vec c) { return _mm256_fnmadd_ps(a, b, c); }
static inline float v_sum(vec v) { return avx2_sum8(v); }

static inline vec v_sums(const vec s[LANES]) {
    const vec a = _mm256_hadd_ps(_mm256_hadd_ps(s[0], s[1]), _mm256_hadd_ps(s[2], s[3])),
              b = _mm256_hadd_ps(_mm256_hadd_ps(s[4], s[5]), _mm256_hadd_ps(s[6], s[7])); /* halves of the sums in both 128-bit lanes */
    return v_add(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}

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
    const vec over = _mm256_cmp_ps(x, v_set(88.3f), _CMP_GT_OQ);
    x = _mm256_min_ps(_mm256_max_ps(x, v_set(-87.3f)), v_set(88.3f));
    const vec n = _mm256_round_ps(v_mul(x, v_set(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    vec r = v_fnma(n, v_set(0x1.62e4p-1f), x);
    r = v_fnma(n, v_set(0x1.7f7d1cp-20f), r);
    vec p = v_set(1.0f / 720);
    p = v_fma(p, r, v_set(1.0f / 120));
    p = v_fma(p, r, v_set(1.0f / 24));
    p = v_fma(p, r, v_set(1.0f / 6));
    p = v_fma(p, r, v_set(0.5f));
    p = v_fma(p, r, v_set(1));
    p = v_fma(p, r, v_set(1));
    p = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23)));
    return _mm256_blendv_ps(p, v_set(__builtin_inff()), over);
}

#include "backend/cpu/mixer.h"
