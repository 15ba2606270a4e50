/* kernels_avx2.c: AVX2 with FMA, compiled with just these flags.
 *
 * linear: four outputs are widened into a buffer of 1,024 inputs (16 KB, in L1) and multiplied with four rows of activations at a time:
 * 16 sums in registers would not fit, so two outputs by four rows.  One to three rows skip the buffer. */
#include <string.h>

#include "backend/cpu/x86/avx2.h"

enum { BLOCK = 1024 /* inputs widened at a time */ };

/* 8 bytes of codes → 8 even (low nibbles) and 8 odd (high nibbles) inputs */
static inline void codes8(const uint8_t *p, __m256 *even, __m256 *odd) {
    const __m256i v = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
    *even = _mm256_cvtepi32_ps(_mm256_and_si256(v, _mm256_set1_epi32(15)));
    *odd = _mm256_cvtepi32_ps(_mm256_srli_epi32(v, 4));
}

float avx2_dot(const float *a, const float *b, uint32_t n) {
    __m256 s0 = _mm256_setzero_ps(), s1 = s0, s2 = s0, s3 = s0;
    uint32_t k = 0;
    for (; k + 32 <= n; k += 32) {
        s0 = _mm256_fmadd_ps(_mm256_loadu_ps(a + k), _mm256_loadu_ps(b + k), s0);
        s1 = _mm256_fmadd_ps(_mm256_loadu_ps(a + k + 8), _mm256_loadu_ps(b + k + 8), s1);
        s2 = _mm256_fmadd_ps(_mm256_loadu_ps(a + k + 16), _mm256_loadu_ps(b + k + 16), s2);
        s3 = _mm256_fmadd_ps(_mm256_loadu_ps(a + k + 24), _mm256_loadu_ps(b + k + 24), s3);
    }
    for (; k + 8 <= n; k += 8) s0 = _mm256_fmadd_ps(_mm256_loadu_ps(a + k), _mm256_loadu_ps(b + k), s0);
    float sum = avx2_sum8(_mm256_add_ps(_mm256_add_ps(s0, s1), _mm256_add_ps(s2, s3)));
    for (; k < n; k++) sum += a[k] * b[k];
    return sum;
}

/* One output, n ≤ 3 rows: codes straight into the sums, the scale once a group. */
static inline __attribute__((always_inline)) void gemv(const uint8_t *codes, const uint8_t *scales, const uint8_t *biases, uint32_t groups,
                                                       const float *const *x, const float *const *sums, uint32_t n, float *acc) {
    __m256 total[3];
    float bias_part[3] = {0};
    for (uint32_t i = 0; i < n; i++) total[i] = _mm256_setzero_ps();
    for (uint32_t g = 0; g < groups; g++, codes += CPU_GROUP / 2) {
        __m256 w[8];
        for (uint32_t j = 0; j < 4; j++) codes8(codes + 8 * j, &w[j], &w[j + 4]);
        const __m256 scale = _mm256_set1_ps(load_bf16(scales + 2 * (size_t)g));
        const float bias = load_bf16(biases + 2 * (size_t)g);
        for (uint32_t i = 0; i < n; i++) {
            const float *xi = x[i] + (size_t)g * CPU_GROUP;
            __m256 a = _mm256_mul_ps(w[0], _mm256_loadu_ps(xi)), b = _mm256_mul_ps(w[1], _mm256_loadu_ps(xi + 8));
            for (uint32_t j = 2; j < 8; j += 2) {
                a = _mm256_fmadd_ps(w[j], _mm256_loadu_ps(xi + 8 * j), a);
                b = _mm256_fmadd_ps(w[j + 1], _mm256_loadu_ps(xi + 8 * j + 8), b);
            }
            total[i] = _mm256_fmadd_ps(scale, _mm256_add_ps(a, b), total[i]);
            bias_part[i] += bias * sums[i][g];
        }
    }
    for (uint32_t i = 0; i < n; i++) acc[i * CPU_WIDE] = avx2_sum8(total[i]) + bias_part[i];
}

/* Widens groups of one output, in the order of cpu_x: evens, then odds. */
static void widen(const uint8_t *codes, const uint8_t *scales, const uint8_t *biases, uint32_t groups, float *out) {
    for (uint32_t g = 0; g < groups; g++, codes += CPU_GROUP / 2, out += CPU_GROUP) {
        const __m256 scale = _mm256_set1_ps(load_bf16(scales + 2 * (size_t)g)), bias = _mm256_set1_ps(load_bf16(biases + 2 * (size_t)g));
        for (uint32_t j = 0; j < 4; j++) {
            __m256 even, odd;
            codes8(codes + 8 * j, &even, &odd);
            _mm256_storeu_ps(out + 8 * j, _mm256_fmadd_ps(scale, even, bias));
            _mm256_storeu_ps(out + 32 + 8 * j, _mm256_fmadd_ps(scale, odd, bias));
        }
    }
}

/* acc[i][0, 1] += two outputs × `rows` ≤ 4 rows of cols inputs */
static inline void tile(const float *w, const float *const *x, uint32_t rows, uint32_t cols, float *const *acc) {
    __m256 s[2][4];
    for (uint32_t i = 0; i < 4; i++) s[0][i] = s[1][i] = _mm256_setzero_ps();
    for (uint32_t k = 0; k < cols; k += 8) {
        const __m256 w0 = _mm256_loadu_ps(w + k), w1 = _mm256_loadu_ps(w + BLOCK + k);
        for (uint32_t i = 0; i < 4; i++) {
            const __m256 xi = _mm256_loadu_ps(x[i] + k);
            s[0][i] = _mm256_fmadd_ps(w0, xi, s[0][i]);
            s[1][i] = _mm256_fmadd_ps(w1, xi, s[1][i]);
        }
    }
    for (uint32_t i = 0; i < rows; i++) {
        acc[i][0] += avx2_sum8(s[0][i]);
        acc[i][1] += avx2_sum8(s[1][i]);
    }
}

void avx2_linear_f32(const weight_mat *m, uint32_t which, uint32_t first, uint32_t count, const cpu_x *x, const uint32_t *list, uint32_t n,
                     const cpu_ahead *ahead, float *acc) {
    const uint64_t row_bytes = weight_row_bytes(m), groups = weight_row_groups(m), row = (uint64_t)which * m->rows + first;
    const uint8_t *codes = m->codes + row * row_bytes, *scales = m->scales + row * groups * 2, *biases = m->biases + row * groups * 2;
    if (n <= 3) {
        const float *rows[3], *sums[3];
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
            else
                gemv(codes, scales, biases, (uint32_t)groups, rows, sums, 3, acc);
        }
        return;
    }
    cpu_clear(acc, n, count);
    float w[2 * BLOCK], unused[2];
    for (uint32_t j = 0; j < count; j += 2) {
        for (uint32_t k = 0; k < m->cols; k += BLOCK) {
            const uint32_t cols = m->cols - k < BLOCK ? m->cols - k : BLOCK, g = k / CPU_GROUP;
            for (uint32_t o = 0; o < 2; o++) {
                const uint64_t at = j + o < count ? j + o : j; /* an odd last output is computed twice */
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

void avx2_weight_row(const weight_mat *m, uint32_t which, uint32_t row, float *out) {
    const uint64_t index = (uint64_t)which * m->rows + row, groups = weight_row_groups(m);
    const uint8_t *codes = m->codes + index * weight_row_bytes(m);
    if (m->bits == 16) {
        uint32_t k = 0;
        for (; k + 8 <= m->cols; k += 8) _mm256_storeu_ps(out + k, avx2_bf16(codes + 2 * (size_t)k));
        for (; k < m->cols; k++) out[k] = load_bf16(codes + 2 * (size_t)k);
        return;
    }
    for (uint64_t g = 0; g < groups; g++) {
        const __m256 scale = _mm256_set1_ps(load_bf16(m->scales + (index * groups + g) * 2)),
                     bias = _mm256_set1_ps(load_bf16(m->biases + (index * groups + g) * 2));
        for (uint32_t i = 0; i < m->group; i += 16, out += 16) {
            __m256 a, b;
            if (m->bits == 8) {
                a = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)codes)));
                b = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(codes + 8))));
                codes += 16;
            } else {
                __m256 even, odd;
                codes8(codes, &even, &odd);
                const __m256 low = _mm256_unpacklo_ps(even, odd), high = _mm256_unpackhi_ps(even, odd);
                a = _mm256_permute2f128_ps(low, high, 0x20);
                b = _mm256_permute2f128_ps(low, high, 0x31);
                codes += 8;
            }
            _mm256_storeu_ps(out, _mm256_fmadd_ps(scale, a, bias));
            _mm256_storeu_ps(out + 8, _mm256_fmadd_ps(scale, b, bias));
        }
    }
}

void avx2_prepare_f32(const float *x, uint32_t cols, float *f32, float *sum) {
    for (uint32_t g = 0; g < cols / CPU_GROUP; g++, x += CPU_GROUP, f32 += CPU_GROUP) {
        __m256 total = _mm256_setzero_ps();
        for (uint32_t k = 0; k < 4; k++) {
            __m256 even, odd;
            avx2_reorder(x + 16 * k, &even, &odd);
            _mm256_storeu_ps(f32 + 8 * k, even);
            _mm256_storeu_ps(f32 + 32 + 8 * k, odd);
            total = _mm256_add_ps(total, _mm256_add_ps(even, odd));
        }
        sum[g] = avx2_sum8(total);
    }
}

static void linear_avx2(const weight_mat *m, uint32_t which, uint32_t first, uint32_t count, const cpu_x *x, const uint32_t *list,
                        uint32_t n, bool q8, const cpu_ahead *ahead, float *acc) {
    if (q8)
        avx2_linear_q8(m, which, first, count, x, list, n, ahead, acc);
    else
        avx2_linear_f32(m, which, first, count, x, list, n, ahead, acc);
}

static const cpu_peak peak = {.f32 = &avx2_peak_f32, .i8 = &avx2_peak_i8};

const cpu_kernels cpu_kernels_avx2 = {.name = "avx2", .peak = &peak, .linear = linear_avx2, AVX2_COMMON};
