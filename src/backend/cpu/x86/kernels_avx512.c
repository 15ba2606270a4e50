/* kernels_avx512.c: AVX-512 F, BW, VL and DQ in float32, compiled with just these flags.
 *
 * linear: 16 floats of a 4-bit code come out of one table look-up (vpermps looks at the low four bits of each lane only).  Four outputs
 * are widened into a buffer of 1,024 inputs (16 KB, in L1) and multiplied with four rows at a time, 16 sums in registers; one to four
 * rows skip the buffer. */
#include <immintrin.h>
#include <string.h>

#include "backend/cpu/x86/avx512.h"

enum { D = GDN_HEAD_DIM, V = HEAD_DIM, BLOCK = 1024, OUTPUTS = 4 };

float avx512_dot(const float *a, const float *b, uint32_t n) {
    __m512 s0 = _mm512_setzero_ps(), s1 = s0;
    uint32_t k = 0;
    for (; k + 32 <= n; k += 32) {
        s0 = _mm512_fmadd_ps(_mm512_loadu_ps(a + k), _mm512_loadu_ps(b + k), s0);
        s1 = _mm512_fmadd_ps(_mm512_loadu_ps(a + k + 16), _mm512_loadu_ps(b + k + 16), s1);
    }
    for (; k < n; k += 16) {
        const __mmask16 part = avx512_part(n - k);
        s1 = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(part, a + k), _mm512_maskz_loadu_ps(part, b + k), s1);
    }
    return _mm512_reduce_add_ps(_mm512_add_ps(s0, s1));
}

/* 16 bytes of codes → 16 even (low nibbles) and 16 odd (high nibbles) inputs */
static inline void codes16(const uint8_t *p, __m512 *even, __m512 *odd) {
    const __m512 table = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i v = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
    *even = _mm512_permutexvar_ps(v, table);
    *odd = _mm512_permutexvar_ps(_mm512_srli_epi32(v, 4), table);
}

/* One output, n ≤ 4 rows: codes straight into the sums, the scale once a group. */
static inline __attribute__((always_inline)) void gemv(const uint8_t *codes, const uint8_t *scales, const uint8_t *biases, uint32_t groups,
                                                       const float *const *x, const float *const *sums, uint32_t n, float *acc) {
    __m512 total[4], bias_part[4];
    for (uint32_t i = 0; i < n; i++) total[i] = bias_part[i] = _mm512_setzero_ps();
    for (uint32_t g = 0; g < groups; g += 16) { /* scales and biases of up to 16 groups at a time */
        const uint32_t some = groups - g < 16 ? groups - g : 16;
        const __mmask16 part = avx512_part(some);
        float scale[16];
        _mm512_storeu_ps(scale, avx512_bf16(_mm256_maskz_loadu_epi16(part, scales + 2 * (size_t)g)));
        const __m512 bias = avx512_bf16(_mm256_maskz_loadu_epi16(part, biases + 2 * (size_t)g));
        for (uint32_t i = 0; i < n; i++) bias_part[i] = _mm512_fmadd_ps(bias, _mm512_maskz_loadu_ps(part, sums[i] + g), bias_part[i]);
        for (uint32_t h = 0; h < some; h++, codes += CPU_GROUP / 2) {
            __m512 w[4];
            codes16(codes, &w[0], &w[2]);
            codes16(codes + 16, &w[1], &w[3]);
            const __m512 s = _mm512_set1_ps(scale[h]);
            for (uint32_t i = 0; i < n; i++) {
                const float *xi = x[i] + (size_t)(g + h) * CPU_GROUP;
                __m512 a = _mm512_mul_ps(w[0], _mm512_loadu_ps(xi)), b = _mm512_mul_ps(w[1], _mm512_loadu_ps(xi + 16));
                a = _mm512_fmadd_ps(w[2], _mm512_loadu_ps(xi + 32), a);
                b = _mm512_fmadd_ps(w[3], _mm512_loadu_ps(xi + 48), b);
                total[i] = _mm512_fmadd_ps(s, _mm512_add_ps(a, b), total[i]);
            }
        }
    }
    for (uint32_t i = 0; i < n; i++) acc[i * CPU_PANEL] = _mm512_reduce_add_ps(_mm512_add_ps(total[i], bias_part[i]));
}

/* Widens groups of one output, in the order of cpu_x: evens, then odds. */
static void widen(const uint8_t *codes, const uint8_t *scales, const uint8_t *biases, uint32_t groups, float *out) {
    for (uint32_t g = 0; g < groups; g++, codes += CPU_GROUP / 2, out += CPU_GROUP) {
        const __m512 scale = _mm512_set1_ps(load_bf16(scales + 2 * (size_t)g)), bias = _mm512_set1_ps(load_bf16(biases + 2 * (size_t)g));
        for (uint32_t j = 0; j < 2; j++) {
            __m512 even, odd;
            codes16(codes + 16 * j, &even, &odd);
            _mm512_storeu_ps(out + 16 * j, _mm512_fmadd_ps(scale, even, bias));
            _mm512_storeu_ps(out + 32 + 16 * j, _mm512_fmadd_ps(scale, odd, bias));
        }
    }
}

/* acc[i][0 … 3] += four outputs × `rows` ≤ 4 rows of cols inputs */
static inline void tile(const float *w, const float *const *x, uint32_t rows, uint32_t cols, float *const *acc) {
    __m512 s[OUTPUTS][4];
    for (uint32_t o = 0; o < OUTPUTS; o++)
        for (uint32_t i = 0; i < 4; i++) s[o][i] = _mm512_setzero_ps();
    for (uint32_t k = 0; k < cols; k += 16) {
        __m512 xi[4];
        for (uint32_t i = 0; i < 4; i++) xi[i] = _mm512_loadu_ps(x[i] + k);
        for (uint32_t o = 0; o < OUTPUTS; o++) {
            const __m512 wo = _mm512_loadu_ps(w + o * BLOCK + k);
            for (uint32_t i = 0; i < 4; i++) s[o][i] = _mm512_fmadd_ps(wo, xi[i], s[o][i]);
        }
    }
    for (uint32_t i = 0; i < rows; i++)
        for (uint32_t o = 0; o < OUTPUTS; o++) acc[i][o] += _mm512_reduce_add_ps(s[o][i]);
}

void avx512_linear_f32(const weight_mat *m, uint32_t which, uint32_t first, uint32_t count, const cpu_x *x, const uint32_t *list,
                       uint32_t n, bool q8, float *acc) {
    (void)q8;
    const uint64_t row_bytes = weight_row_bytes(m), groups = weight_row_groups(m), row = (uint64_t)which * m->rows + first;
    const uint8_t *codes = m->codes + row * row_bytes, *scales = m->scales + row * groups * 2, *biases = m->biases + row * groups * 2;
    if (n <= 4) {
        const float *rows[4], *sums[4];
        for (uint32_t i = 0; i < n; i++) {
            const size_t r = list ? list[i] : i;
            rows[i] = x->f32 + r * x->cols;
            sums[i] = x->sum + r * x->groups;
        }
        for (uint32_t j = 0; j < count; j++, codes += row_bytes, scales += groups * 2, biases += groups * 2, acc++) {
            if (n == 1)
                gemv(codes, scales, biases, (uint32_t)groups, rows, sums, 1, acc);
            else if (n == 2)
                gemv(codes, scales, biases, (uint32_t)groups, rows, sums, 2, acc);
            else if (n == 3)
                gemv(codes, scales, biases, (uint32_t)groups, rows, sums, 3, acc);
            else
                gemv(codes, scales, biases, (uint32_t)groups, rows, sums, 4, acc);
        }
        return;
    }
    memset(acc, 0, (size_t)n * CPU_PANEL * sizeof *acc);
    float w[OUTPUTS * BLOCK], unused[OUTPUTS];
    for (uint32_t j = 0; j < CPU_PANEL && j < count; j += OUTPUTS) {
        for (uint32_t k = 0; k < m->cols; k += BLOCK) {
            const uint32_t cols = m->cols - k < BLOCK ? m->cols - k : BLOCK, g = k / CPU_GROUP;
            for (uint32_t o = 0; o < OUTPUTS; o++) {
                const uint64_t at = j + o < count ? j + o : j; /* outputs past the last are computed and not used */
                widen(codes + at * row_bytes + k / 2, scales + (at * groups + g) * 2, biases + (at * groups + g) * 2, cols / CPU_GROUP,
                      w + o * BLOCK);
            }
            for (uint32_t i = 0; i < n; i += 4) {
                const uint32_t rows = n - i < 4 ? n - i : 4;
                const float *xs[4];
                float *sums[4];
                for (uint32_t r = 0; r < 4; r++) {
                    const uint32_t at = i + (r < rows ? r : 0);
                    xs[r] = x->f32 + (size_t)(list ? list[at] : at) * x->cols + k;
                    sums[r] = r < rows ? acc + (size_t)at * CPU_PANEL + j : unused;
                }
                tile(w, xs, rows, cols, sums);
            }
        }
    }
}

void avx512_weight_row(const weight_mat *m, uint32_t which, uint32_t row, float *out) {
    const uint64_t index = (uint64_t)which * m->rows + row, groups = weight_row_groups(m);
    const uint8_t *codes = m->codes + index * weight_row_bytes(m);
    if (m->bits == 16) {
        for (uint32_t k = 0; k < m->cols; k += 16) {
            const __mmask16 part = avx512_part(m->cols - k);
            _mm512_mask_storeu_ps(out + k, part, avx512_bf16(_mm256_maskz_loadu_epi16(part, codes + 2 * (size_t)k)));
        }
        return;
    }
    for (uint64_t g = 0; g < groups; g++) {
        const __m512 scale = _mm512_set1_ps(load_bf16(m->scales + (index * groups + g) * 2)),
                     bias = _mm512_set1_ps(load_bf16(m->biases + (index * groups + g) * 2));
        for (uint32_t i = 0; i < m->group; i += 32, out += 32) {
            __m512 a, b;
            if (m->bits == 8) {
                a = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)codes)));
                b = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(codes + 16))));
                codes += 32;
            } else {
                const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23),
                              high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
                __m512 even, odd;
                codes16(codes, &even, &odd);
                a = _mm512_permutex2var_ps(even, low, odd);
                b = _mm512_permutex2var_ps(even, high, odd);
                codes += 16;
            }
            _mm512_storeu_ps(out, _mm512_fmadd_ps(scale, a, bias));
            _mm512_storeu_ps(out + 16, _mm512_fmadd_ps(scale, b, bias));
        }
    }
}

void avx512_prepare_f32(const float *x, uint32_t cols, float *f32, float *sum) {
    for (uint32_t g = 0; g < cols / CPU_GROUP; g++, x += CPU_GROUP, f32 += CPU_GROUP) {
        __m512 v[4];
        avx512_reorder(x, v);
        for (uint32_t j = 0; j < 4; j++) _mm512_storeu_ps(f32 + 16 * j, v[j]);
        sum[g] = _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(v[0], v[1]), _mm512_add_ps(v[2], v[3])));
    }
}

/* exp(x): 2^n · p(r), r = x − n ln 2, |r| ≤ 0.35; Taylor to degree 6 (relative error under 2e-7). */
static inline __m512 exp16(__m512 x) {
    x = _mm512_min_ps(_mm512_max_ps(x, _mm512_set1_ps(-200)), _mm512_set1_ps(200)); /* beyond, scalef gives 0 and infinity */
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0x1.62e4p-1f), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0x1.7f7d1cp-20f), r);
    __m512 p = _mm512_set1_ps(1.0f / 720);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 120));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 24));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 6));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1));
    return _mm512_scalef_ps(p, n);
}

static inline __m512 sigmoid16(__m512 x) {
    const __m512 one = _mm512_set1_ps(1);
    return _mm512_div_ps(one, _mm512_add_ps(one, exp16(_mm512_sub_ps(_mm512_setzero_ps(), x))));
}

void avx512_silu_mul(float *a, const float *b, uint32_t n) {
    for (uint32_t i = 0; i < n; i += 16) {
        const __mmask16 part = avx512_part(n - i);
        const __m512 x = _mm512_maskz_loadu_ps(part, a + i), y = _mm512_mul_ps(x, sigmoid16(x));
        _mm512_mask_storeu_ps(a + i, part, b ? _mm512_mul_ps(y, _mm512_maskz_loadu_ps(part, b + i)) : y);
    }
}

void avx512_sigmoid_mul(float *a, const float *b, uint32_t n) {
    for (uint32_t i = 0; i < n; i += 16) {
        const __mmask16 part = avx512_part(n - i);
        _mm512_mask_storeu_ps(a + i, part,
                              _mm512_mul_ps(_mm512_maskz_loadu_ps(part, a + i), sigmoid16(_mm512_maskz_loadu_ps(part, b + i))));
    }
}

float avx512_exp_sum(float *p, uint32_t n, float max) {
    __m512 total = _mm512_setzero_ps();
    for (uint32_t i = 0; i < n; i += 16) {
        const __mmask16 part = avx512_part(n - i);
        const __m512 e = exp16(_mm512_sub_ps(_mm512_maskz_loadu_ps(part, p + i), _mm512_set1_ps(max)));
        _mm512_mask_storeu_ps(p + i, part, e);
        total = _mm512_mask_add_ps(total, part, total, e);
    }
    return _mm512_reduce_add_ps(total);
}

/* 64 columns of the state (32 KB) at a time, so that they stay in L1 through all rows.  o = qᵀS_new = α qᵀS + (q·k) u, so one pass reads
 * for both products and one pass writes. */
void avx512_delta(const float *src, float *dst, const float *q, const float *k, const float *v, size_t v_stride, const float *alpha,
                  const float *beta, float *out, size_t out_stride, uint32_t rows) {
    for (uint32_t c = 0; c < D; c += 64) {
        const float *from = src + c;
        for (uint32_t t = 0; t < rows; t++, from = dst + c) {
            const float *qt = q + (size_t)t * D, *kt = k + (size_t)t * D;
            __m512 kv[4], qv[4];
            for (uint32_t j = 0; j < 4; j++) kv[j] = qv[j] = _mm512_setzero_ps();
            for (uint32_t i = 0; i < D; i++) {
                const __m512 ki = _mm512_set1_ps(kt[i]), qi = _mm512_set1_ps(qt[i]);
                for (uint32_t j = 0; j < 4; j++) {
                    const __m512 s = _mm512_loadu_ps(from + (size_t)i * D + 16 * j);
                    kv[j] = _mm512_fmadd_ps(ki, s, kv[j]);
                    qv[j] = _mm512_fmadd_ps(qi, s, qv[j]);
                }
            }
            const __m512 a = _mm512_set1_ps(alpha[t]), b = _mm512_set1_ps(beta[t]), qk = _mm512_set1_ps(avx512_dot(qt, kt, D));
            for (uint32_t j = 0; j < 4; j++) {
                kv[j] = _mm512_mul_ps(b, _mm512_fnmadd_ps(a, kv[j], _mm512_loadu_ps(v + t * v_stride + c + 16 * j)));
                _mm512_storeu_ps(out + t * out_stride + c + 16 * j, _mm512_fmadd_ps(qk, kv[j], _mm512_mul_ps(a, qv[j])));
            }
            for (uint32_t i = 0; i < D; i++) {
                const __m512 ki = _mm512_set1_ps(kt[i]);
                for (uint32_t j = 0; j < 4; j++)
                    _mm512_storeu_ps(dst + c + (size_t)i * D + 16 * j,
                                     _mm512_fmadd_ps(ki, kv[j], _mm512_mul_ps(a, _mm512_loadu_ps(from + (size_t)i * D + 16 * j))));
            }
        }
    }
}

static inline __m512 kv16(const void *row, calla_kv kv, uint32_t i) {
    return kv == CALLA_KV_F32 ? _mm512_loadu_ps((const float *)row + i)
                              : avx512_bf16(_mm256_loadu_si256((const __m256i *)((const uint16_t *)row + i)));
}

static inline const void *kv_at(const void *base, calla_kv kv, size_t t) {
    return (const uint8_t *)base + t * V * (kv == CALLA_KV_F32 ? 4 : 2);
}

/* `heads` ≤ 8 is a constant where these are called, so that the sums stay in registers. */
static inline __attribute__((always_inline)) void scores(const float *q, size_t q_stride, uint32_t heads, const void *k, calla_kv kv,
                                                         uint32_t n, float *out, size_t out_stride) {
    for (uint32_t t = 0; t < n; t++) {
        const void *row = kv_at(k, kv, t);
        __m512 s[8];
        for (uint32_t j = 0; j < heads; j++) s[j] = _mm512_setzero_ps();
        for (uint32_t i = 0; i < V; i += 16) {
            const __m512 x = kv16(row, kv, i);
            for (uint32_t j = 0; j < heads; j++) s[j] = _mm512_fmadd_ps(x, _mm512_loadu_ps(q + j * q_stride + i), s[j]);
        }
        for (uint32_t j = 0; j < heads; j++) out[j * out_stride + t] = _mm512_reduce_add_ps(s[j]);
    }
}

/* 32 of the 256 dimensions at a time: one cache line of each row of V, 16 sums */
static inline __attribute__((always_inline)) void values(const float *p, size_t p_stride, uint32_t heads, const void *v, calla_kv kv,
                                                         uint32_t n, float *out) {
    for (uint32_t i = 0; i < V; i += 32) {
        __m512 s[8][2];
        for (uint32_t j = 0; j < heads; j++)
            for (uint32_t l = 0; l < 2; l++) s[j][l] = _mm512_loadu_ps(out + (size_t)j * V + i + 16 * l);
        for (uint32_t t = 0; t < n; t++) {
            const void *row = kv_at(v, kv, t);
            const __m512 x0 = kv16(row, kv, i), x1 = kv16(row, kv, i + 16);
            for (uint32_t j = 0; j < heads; j++) {
                const __m512 pj = _mm512_set1_ps(p[j * p_stride + t]);
                s[j][0] = _mm512_fmadd_ps(pj, x0, s[j][0]);
                s[j][1] = _mm512_fmadd_ps(pj, x1, s[j][1]);
            }
        }
        for (uint32_t j = 0; j < heads; j++)
            for (uint32_t l = 0; l < 2; l++) _mm512_storeu_ps(out + (size_t)j * V + i + 16 * l, s[j][l]);
    }
}

void avx512_attend_scores(const float *q, size_t q_stride, uint32_t heads, const void *k, calla_kv kv, uint32_t n, float *out,
                          size_t out_stride) {
    for (; heads >= 8; heads -= 8, q += 8 * q_stride, out += 8 * out_stride) scores(q, q_stride, 8, k, kv, n, out, out_stride);
    for (; heads >= 4; heads -= 4, q += 4 * q_stride, out += 4 * out_stride) scores(q, q_stride, 4, k, kv, n, out, out_stride);
    for (; heads; heads--, q += q_stride, out += out_stride) scores(q, q_stride, 1, k, kv, n, out, out_stride);
}

void avx512_attend_values(const float *p, size_t p_stride, uint32_t heads, const void *v, calla_kv kv, uint32_t n, float *out) {
    for (; heads >= 8; heads -= 8, p += 8 * p_stride, out += 8 * V) values(p, p_stride, 8, v, kv, n, out);
    for (; heads >= 4; heads -= 4, p += 4 * p_stride, out += 4 * V) values(p, p_stride, 4, v, kv, n, out);
    for (; heads; heads--, p += p_stride, out += V) values(p, p_stride, 1, v, kv, n, out);
}

const cpu_kernels cpu_kernels_avx512 = {.name = "avx512", .has_q8 = false, .linear = avx512_linear_f32, AVX512_COMMON};
