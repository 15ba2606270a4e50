/* mixer_avx512.c: the loops of mixer.h with AVX-512 F, BW, VL and DQ: 32 registers of 16 floats. */
#include "backend/cpu/x86/avx512.h"

typedef __m512 vec;
enum { LANES = 16, DELTA_VECS = 8, CHUNK = 4, CHUNK_VECS = 2, SUMS = 16, VALUE_VECS = 2 /* one cache line of a row of V in bf16 */ };
#define MIXER(name) avx512_##name

static inline vec v_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void v_store(float *p, vec v) { _mm512_storeu_ps(p, v); }
static inline vec v_load_part(const float *p, uint32_t n) { return _mm512_maskz_loadu_ps(avx512_part(n), p); }
static inline void v_store_part(float *p, uint32_t n, vec v) { _mm512_mask_storeu_ps(p, avx512_part(n), v); }
static inline vec v_bf16(const uint16_t *p) { return avx512_bf16(_mm256_loadu_si256((const __m256i *)p)); }
static inline vec v_i8(const int8_t *p) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p))); }
static inline vec v_set(float x) { return _mm512_set1_ps(x); }
static inline vec v_add(vec a, vec b) { return _mm512_add_ps(a, b); }
static inline vec v_sub(vec a, vec b) { return _mm512_sub_ps(a, b); }
static inline vec v_mul(vec a, vec b) { return _mm512_mul_ps(a, b); }
static inline vec v_div(vec a, vec b) { return _mm512_div_ps(a, b); }
static inline vec v_max(vec a, vec b) { return _mm512_max_ps(a, b); }
static inline vec v_fma(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }
static inline vec v_fnma(vec a, vec b, vec c) { return _mm512_fnmadd_ps(a, b, c); }
static inline float v_sum(vec v) { return _mm512_reduce_add_ps(v); }

static inline vec v_sums(const vec s[LANES]) { return avx512_sums(s); }

/* exp(x): 2^n · p(r), r = x − n ln 2, |r| ≤ 0.35; Taylor to degree 6 (relative error under 2e-7). */
static inline vec v_exp(vec x) {
    x = _mm512_min_ps(_mm512_max_ps(x, v_set(-200)), v_set(200)); /* beyond, scalef gives 0 and infinity */
    const vec n = _mm512_roundscale_ps(v_mul(x, v_set(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    vec r = v_fnma(n, v_set(0x1.62e4p-1f), x);
    r = v_fnma(n, v_set(0x1.7f7d1cp-20f), r);
    vec p = v_set(1.0f / 720);
    p = v_fma(p, r, v_set(1.0f / 120));
    p = v_fma(p, r, v_set(1.0f / 24));
    p = v_fma(p, r, v_set(1.0f / 6));
    p = v_fma(p, r, v_set(0.5f));
    p = v_fma(p, r, v_set(1));
    p = v_fma(p, r, v_set(1));
    return _mm512_scalef_ps(p, n);
}

#include "backend/cpu/mixer.h"
