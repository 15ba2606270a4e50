/* kernels_avx512.c: AVX-512 F, BW, VL and DQ in float32, compiled with just these flags.
 *
 * linear: 16 floats of a 4-bit code come out of one table look-up (vpermps looks at the low four bits of each lane only).  Four outputs
 * are widened into a buffer of 1,024 inputs (16 KB, in L1) and multiplied with four rows at a time, 16 sums in registers; one to four
 * rows skip the buffer.
 *
 * Loops over arrays of sums are unrolled by pragmas, without which gcc 12 stores each sum at each step: 210 GFLOP/s in place of 125. */
#include <immintrin.h>
#include <string.h>

#include "backend/cpu/x86/avx512.h"

enum { BLOCK = 1024, OUTPUTS = 4 };

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

void avx512_dots(const float *const w[4], const float *const x[4], uint32_t n, float out[4][4]) {
    __m512 s[4][4];
#pragma GCC unroll 16
    for (uint32_t i = 0; i < 16; i++) s[i / 4][i % 4] = _mm512_setzero_ps();
    for (uint32_t k = 0; k < n; k += 16) {
        const __mmask16 part = avx512_part(n - k);
        __m512 xi[4];
#pragma GCC unroll 4
        for (uint32_t i = 0; i < 4; i++) xi[i] = _mm512_maskz_loadu_ps(part, x[i] + k);
#pragma GCC unroll 4
        for (uint32_t j = 0; j < 4; j++) {
            const __m512 wj = _mm512_maskz_loadu_ps(part, w[j] + k);
#pragma GCC unroll 4
            for (uint32_t i = 0; i < 4; i++) s[i][j] = _mm512_fmadd_ps(wj, xi[i], s[i][j]);
        }
    }
#pragma GCC unroll 16
    for (uint32_t i = 0; i < 16; i++) out[i / 4][i % 4] = _mm512_reduce_add_ps(s[i / 4][i % 4]);
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
    for (uint32_t i = 0; i < n; i++) acc[i * CPU_WIDE] = _mm512_reduce_add_ps(_mm512_add_ps(total[i], bias_part[i]));
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
#pragma GCC unroll 4
    for (uint32_t o = 0; o < OUTPUTS; o++)
#pragma GCC unroll 4
        for (uint32_t i = 0; i < 4; i++) s[o][i] = _mm512_setzero_ps();
    for (uint32_t k = 0; k < cols; k += 16) {
        __m512 xi[4];
#pragma GCC unroll 4
        for (uint32_t i = 0; i < 4; i++) xi[i] = _mm512_loadu_ps(x[i] + k);
#pragma GCC unroll 4
        for (uint32_t o = 0; o < OUTPUTS; o++) {
            const __m512 wo = _mm512_loadu_ps(w + o * BLOCK + k);
#pragma GCC unroll 4
            for (uint32_t i = 0; i < 4; i++) s[o][i] = _mm512_fmadd_ps(wo, xi[i], s[o][i]);
        }
    }
#pragma GCC unroll 4
    for (uint32_t i = 0; i < 4; i++)
#pragma GCC unroll 4
        for (uint32_t o = 0; i < rows && o < OUTPUTS; o++) acc[i][o] += _mm512_reduce_add_ps(s[o][i]);
}

void avx512_linear_f32(const weight_mat *m, uint32_t which, uint32_t first, uint32_t count, const cpu_x *x, const uint32_t *list,
                       uint32_t n, bool q8, const cpu_ahead *ahead, float *acc) {
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
        const cpu_ahead own = {codes, scales, biases};
        const uint32_t rows_ahead = cpu_rows_ahead(row_bytes, CPU_NEAR);
        for (uint32_t j = 0; j < count; j++, codes += row_bytes, scales += groups * 2, biases += groups * 2, acc++) {
            cpu_ask(cpu_ahead_of(&own, ahead, row_bytes, groups * 2, count, j, rows_ahead), row_bytes, groups * 2);
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
    cpu_clear(acc, n, count);
    float w[OUTPUTS * BLOCK], unused[OUTPUTS];
    for (uint32_t j = 0; j < count; j += OUTPUTS) {
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
                    sums[r] = r < rows ? acc + (size_t)at * CPU_WIDE + j : unused;
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

/* 16 bytes of codes of a group, widened as weight_row does */
static inline __m512 bytes16(const uint8_t *codes, __m512 scale, __m512 bias) {
    return _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)codes))), bias);
}

void avx512_byte_dots(const weight_mat *m, uint32_t which, uint32_t first, uint32_t count, const float *x, const cpu_ahead *ahead,
                      float *out) {
    enum { TWO = 2 };
    const size_t row_bytes = weight_row_bytes(m), scale_bytes = 2 * weight_row_groups(m), at = (size_t)which * m->rows + first;
    const cpu_ahead own = {m->codes + at * row_bytes, m->scales + at * scale_bytes, m->biases + at * scale_bytes};
    const uint32_t rows_ahead = cpu_rows_ahead(row_bytes, CPU_NEAR);
    for (uint32_t j = 0; j < count; j += TWO) { /* past the last that one again */
        const uint32_t behind = j + 1 < count ? 1 : 0;
        const uint8_t *codes[TWO], *far[TWO];
        cpu_ahead now[TWO];
        for (uint32_t o = 0; o < TWO; o++) {
            const cpu_ahead later = cpu_ahead_of(&own, ahead, row_bytes, scale_bytes, count, j + o, rows_ahead);
            cpu_ask((cpu_ahead){NULL, later.scales, later.biases}, 0, scale_bytes);
            now[o] = cpu_ahead_of(&own, NULL, row_bytes, scale_bytes, count, j, o * behind);
            codes[o] = now[o].codes, far[o] = later.codes;
        }
        __m512 s[TWO][2];
#pragma GCC unroll 2
        for (uint32_t o = 0; o < TWO; o++) s[o][0] = s[o][1] = _mm512_setzero_ps();
        for (uint32_t k = 0; k < m->cols; k += CPU_GROUP)
#pragma GCC unroll 2
            for (uint32_t o = 0; o < TWO; o++) {
                const size_t g = k / CPU_GROUP * (size_t)2;
                const __m512 scale = _mm512_set1_ps(load_bf16(now[o].scales + g)), bias = _mm512_set1_ps(load_bf16(now[o].biases + g));
                _mm_prefetch(far[o] + k, _MM_HINT_T0);
#pragma GCC unroll 2
                for (uint32_t i = 0; i < CPU_GROUP; i += 32) { /* in the order of avx512_dot */
                    s[o][0] = _mm512_fmadd_ps(bytes16(codes[o] + k + i, scale, bias), _mm512_loadu_ps(x + k + i), s[o][0]);
                    s[o][1] = _mm512_fmadd_ps(bytes16(codes[o] + k + i + 16, scale, bias), _mm512_loadu_ps(x + k + i + 16), s[o][1]);
                }
            }
#pragma GCC unroll 2
        for (uint32_t o = 0; o < TWO; o++) out[j + o * behind] = _mm512_reduce_add_ps(_mm512_add_ps(s[o][0], s[o][1]));
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

static const cpu_peak peak = {.f32 = &avx512_peak_f32};

const cpu_kernels cpu_kernels_avx512 = {.name = "avx512", .peak = &peak, .has_q8 = false, .linear = avx512_linear_f32, AVX512_COMMON};
